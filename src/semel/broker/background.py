"""What the broker does on its own: retention, compaction, expiry of producers, idle connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from semel.broker.topics.partition import Partition
from semel.config import INT64_MAX
from semel.errors import Refused

if TYPE_CHECKING:
    from semel.broker.server import BrokerServer
    from semel.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

#: How long writes may go into a directory that somebody has removed.
WATCH_INTERVAL_S = 1.0


class Background:
    """Periodic work, each kind at its own interval under Kafka's name for it."""

    def __init__(self, broker: BrokerServer) -> None:
        self._broker = broker
        self._timers: set[asyncio.TimerHandle] = set()
        self._watching: asyncio.TimerHandle | None = None
        self._stopped = False
        self._compacting = False
        #: Partitions that hold something unreadable: it does not get better by being read again.
        self._uncleanable: set[Partition] = set()
        self._unflushed_since: dict[Partition, int] = {}

    def start(self) -> None:
        """Begin."""
        settings = self._broker.settings
        self._every("log.retention.check.interval.ms", self._retain)
        if settings["log.cleaner.enable"]:
            self._every("log.cleaner.backoff.ms", self._compact)
        self._every("producer.id.expiration.check.interval.ms", self._expire_producers)
        self._every("log.flush.offset.checkpoint.interval.ms", self._checkpoint)
        if settings["log.flush.scheduler.interval.ms"] < INT64_MAX:
            self._every("log.flush.scheduler.interval.ms", self._flush_what_waited)
        if settings["connections.max.idle.ms"] > 0:
            self._every("connections.max.idle.ms", self._broker.connections.close_idle)
        self._look_after_connections()

        self._watch()

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopped = True
        for timer in self._timers:
            timer.cancel()

    def _watch(self) -> None:
        """Look every second whether the data directory is still there."""
        if not self._stopped:
            self._broker.look_after_data()
            if self._watching is not None:
                self._timers.discard(self._watching)
            self._watching = self._broker.loop.call_later(WATCH_INTERVAL_S, self._watch)
            self._timers.add(self._watching)

    def _every(self, setting: str, work: Callable[[], None]) -> None:
        """Do the work again and again, with the setting of this name between; it may change meanwhile."""

        def run() -> None:
            self._timers.discard(timer)
            if self._stopped:
                return
            try:
                work()
            finally:
                self._every(setting, work)

        timer = self._broker.loop.call_later(max(self._broker.settings[setting], 1) / 1000, run)
        self._timers.add(timer)

    def _look_after_connections(self) -> None:
        """Every second, or more often where less than that is allowed."""
        pause_s = min(1.0, self._broker.settings["semel.request.arrival.timeout.ms"] / 4000)

        def run() -> None:
            self._timers.discard(timer)
            if not self._stopped:
                try:
                    self._broker.look_after_connections()
                finally:
                    self._look_after_connections()

        timer = self._broker.loop.call_later(pause_s, run)
        self._timers.add(timer)

    async def _each(self, what: str, work: Callable[[Partition], object]) -> None:
        """Partition by partition, with requests served in between. One partition's trouble is its own: it is logged."""
        for partition in list(self._broker.topics.all_partitions()):
            if self._stopped:
                return
            if partition.open_log is None and (partition.offline is not None or not partition.directory.exists()):
                continue  # what is offline was told once; whoever asks for it tries again
            try:
                work(partition)
            except (OSError, Refused):
                logger.exception("%s of %s failed", what, partition)
            await asyncio.sleep(0)

    def _retain(self) -> None:
        now_ms = self._broker.now_ms()
        self._broker.spawn(self._each("retention", lambda partition: partition.log.retention.enforce(now_ms)))

    def _compact(self) -> None:
        if not self._compacting:
            self._compacting = True
            self._broker.spawn(self._compact_all())

    async def _compact_all(self) -> None:
        """Partition by partition; the long part of each runs on a thread while clients are served."""
        try:
            for partition in list(self._broker.topics.all_partitions()):
                if self._stopped:
                    return
                if "compact" not in partition.topic.values["cleanup.policy"] or partition.open_log is None:
                    continue
                if partition in self._uncleanable:
                    continue
                try:
                    await self._compact_one(partition, partition.open_log)
                except OSError:
                    # The old segments are untouched until the new ones are whole.
                    logger.exception("compaction of %s failed", partition)
                except Refused:
                    logger.exception("compaction of %s failed; it is left alone until the next start", partition)
                    self._uncleanable.add(partition)
        finally:
            self._compacting = False

    async def _compact_one(self, partition: Partition, log: PartitionLog) -> None:
        """Round by round, while the keys of one round do not cover all that is dirty."""
        stopped_short = True
        while stopped_short and not self._stopped and partition.open_log is log:
            buffer_bytes = self._broker.settings["log.cleaner.dedupe.buffer.size"]
            compaction = log.cleaner.plan(self._broker.now_ms(), dedupe_buffer_bytes=buffer_bytes)
            if compaction is None:
                return
            try:
                await self._broker.loop.run_in_executor(None, compaction.run)
                if partition.open_log is not None:
                    compaction.apply()
            except (OSError, Refused):
                compaction.abandon()
                raise
            except asyncio.CancelledError:
                # The thread would keep the process alive until it had read the whole log.
                compaction.cancel()
                raise
            stopped_short = compaction.stopped_short

    def _checkpoint(self) -> None:
        self._broker.topics.give_up_removed_partitions()
        try:
            self._broker.topics.checkpoint_recovery_points()
        except OSError as error:
            logger.error("recovery points cannot be written down, a crash will take longer to recover from: %s", error)

    def _flush_what_waited(self) -> None:
        """Fsync what `flush.ms` does not want to wait any longer, as seen at the scheduler's interval."""
        now_ms = self._broker.now_ms()
        due = []
        for partition in self._broker.topics.all_partitions():
            log = partition.open_log
            if log is None or log.end_offset <= log.flusher.recovery_point:
                self._unflushed_since.pop(partition, None)
            elif now_ms - self._unflushed_since.setdefault(partition, now_ms) >= partition.topic.values["flush.ms"]:
                due.append(partition)
                del self._unflushed_since[partition]
        if due:
            self._broker.spawn(self._broker.durability.flusher.flush(due))

    def _expire_producers(self) -> None:
        now_ms, expiration_ms = self._broker.now_ms(), self._broker.settings["producer.id.expiration.ms"]
        for partition in self._broker.topics.all_partitions():
            if partition.open_log is not None:
                partition.open_log.producers.expire(now_ms, expiration_ms)
