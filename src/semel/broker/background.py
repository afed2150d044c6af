"""What the broker does periodically: retention, compaction, expiry of producers, idle connections."""

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

#: How often the broker looks whether its data directory was removed.
WATCH_INTERVAL_S = 1.0


class Background:
    """Periodic work. Each kind has its interval in a setting with Kafka's name."""

    def __init__(self, broker: BrokerServer) -> None:
        self._broker = broker
        self._timers: set[asyncio.TimerHandle] = set()
        self._watching: asyncio.TimerHandle | None = None
        self._stopped = False
        self._compacting = False
        #: Partitions that could not be compacted because something in them is unreadable: not tried again.
        self._uncleanable: set[Partition] = set()
        self._unflushed_since: dict[Partition, int] = {}

    def start(self) -> None:
        """Start the timers."""
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
        """Start no more work."""
        self._stopped = True
        for timer in self._timers:
            timer.cancel()

    def _watch(self) -> None:
        """Look every second whether the data directory still exists."""
        if not self._stopped:
            self._broker.look_after_data()
            if self._watching is not None:
                self._timers.discard(self._watching)
            self._watching = self._broker.loop.call_later(WATCH_INTERVAL_S, self._watch)
            self._timers.add(self._watching)

    def _every(self, setting: str, work: Callable[[], None]) -> None:
        """Repeat the work. The pause is this setting, read again each time because it may change."""

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
        """Look every second, or more often with a short `semel.request.arrival.timeout.ms`."""
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
        """Do the work for one partition after the other, with requests served in between. A failure is logged."""
        for partition in list(self._broker.topics.all_partitions()):
            if self._stopped:
                return
            if partition.open_log is None and (partition.offline is not None or not partition.directory.exists()):
                continue  # being offline was logged once; the next request tries to open it again
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
        """Compact one partition after the other. The long part runs on a thread while clients are served."""
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
                    # The old segments are kept until the new ones are complete.
                    logger.exception("compaction of %s failed", partition)
                except Refused:
                    logger.exception("compaction of %s failed; it is left alone until the next start", partition)
                    self._uncleanable.add(partition)
        finally:
            self._compacting = False

    async def _compact_one(self, partition: Partition, log: PartitionLog) -> None:
        """Run rounds until one has covered all dirty records: a round is bounded by the keys it can remember."""
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
                # Else the thread would keep the process alive until it has read the whole log.
                compaction.cancel()
                raise
            stopped_short = compaction.stopped_short

    def _checkpoint(self) -> None:
        self._broker.topics.give_up_removed_partitions()
        try:
            self._broker.topics.checkpoint_recovery_points()
        except OSError as error:
            logger.error("recovery points cannot be written; recovery after a crash will take longer: %s", error)

    def _flush_what_waited(self) -> None:
        """Fsync partitions whose `flush.ms` is over, checked every `log.flush.scheduler.interval.ms`."""
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
