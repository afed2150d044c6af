"""What the broker does periodically: retention, compaction, expiry of producers, idle connections.

What is done for every partition is done in turns of the loop, with requests served in between: there may be many.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from semel.broker.topics.partition import Partition
from semel.config import INT64_MAX
from semel.errors import Refused

if TYPE_CHECKING:
    from semel.broker.server import BrokerServer
    from semel.log.partition_log import PartitionLog

logger = logging.getLogger(__name__)

#: How often the broker looks whether its data directory was removed.
WATCH_INTERVAL_S = 1.0
#: Of how many partitions it looks each time: some milliseconds of work.
WATCHED_AT_ONCE = 500


class Background:
    """Periodic work. Each kind has its interval in a setting with Kafka's name."""

    def __init__(self, broker: BrokerServer) -> None:
        self._broker = broker
        self._timers: set[asyncio.TimerHandle] = set()
        self._watching: asyncio.TimerHandle | None = None
        self._stopped = False
        #: Partitions that could not be compacted because something in them is unreadable: not tried again.
        self._uncleanable: set[Partition] = set()
        self._unflushed_since: dict[Partition, int] = {}
        #: Partitions whose files are looked for in the next seconds.
        self._watched: list[Partition] = []

    def start(self) -> None:
        """Start the timers."""
        settings = self._broker.settings
        self._every("log.retention.check.interval.ms", self._retain)
        if settings["log.cleaner.enable"]:
            self._every("log.cleaner.backoff.ms", self._compact_all)
        self._every("producer.id.expiration.check.interval.ms", self._expire_producers)
        self._every("log.flush.offset.checkpoint.interval.ms", self._checkpoint)
        if settings["log.flush.scheduler.interval.ms"] < INT64_MAX:
            self._every("log.flush.scheduler.interval.ms", self._flush_what_waited)
        if settings["connections.max.idle.ms"] > 0:
            self._every("connections.max.idle.ms", self._broker.connections.close_idle)
        if settings["delegation.token.secret.key"] is not None:
            self._every("delegation.token.expiry.check.interval.ms", self._remove_ended_tokens)
        self._look_after_connections()

        self._watch()

    def stop(self) -> None:
        """Start no more work."""
        self._stopped = True
        for timer in self._timers:
            timer.cancel()

    def _watch(self) -> None:
        """Look every second whether the data directory and its logs still exist, and whether there are new
        certificates."""
        if not self._stopped:
            self._broker.look_after_data()
            self._look_after_partitions()
            self._broker.listening.look_after_files()
            if self._watching is not None:
                self._timers.discard(self._watching)
            self._watching = self._broker.loop.call_later(WATCH_INTERVAL_S, self._watch)
            self._timers.add(self._watching)

    def _look_after_partitions(self) -> None:
        """Whether their files are still there; of very many partitions a part each time."""
        topics = self._broker.topics
        if not self._watched:
            self._watched = [partition for partition in topics.all_partitions() if partition.open_log is not None]
        for partition in self._watched[-WATCHED_AT_ONCE:]:
            topics.give_up_if_removed(partition)
        del self._watched[-WATCHED_AT_ONCE:]

    def _every(self, setting: str, work: Callable[[], Coroutine[Any, Any, None] | None]) -> None:
        """Repeat the work, with a pause between its end and its next beginning. The pause is this setting, read again
        each time because it may change."""

        def run() -> None:
            self._timers.discard(timer)
            if self._stopped:
                return
            begun = None
            try:
                begun = work()
            finally:
                if begun is None:
                    self._every(setting, work)
                else:
                    self._broker.spawn(finish(begun))

        async def finish(begun: Coroutine[Any, Any, None]) -> None:
            try:
                await begun
            finally:
                if not self._stopped:
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

    async def _partitions(self) -> AsyncIterator[Partition]:
        """Every partition, with requests served in between. It ends when the broker stops."""
        turns = self._broker.turns
        since = turns.clock()
        for partition in list(self._broker.topics.all_partitions()):
            if self._stopped:
                return
            yield partition
            since = await turns.rest(since)
        turns.worked(since)

    async def _each(self, what: str, work: Callable[[Partition], object]) -> None:
        """Do the work for one partition after the other. A failure is logged."""
        async for partition in self._partitions():
            if partition.open_log is None and (partition.offline is not None or not partition.has_files):
                continue  # being offline was logged once; the next request tries to open it again
            try:
                work(partition)
            except (OSError, Refused):
                logger.exception("%s of %s failed", what, partition)

    async def _retain(self) -> None:
        now_ms = self._broker.now_ms()
        await self._each("retention", lambda partition: partition.own_log.retention.enforce(now_ms))

    async def _compact_all(self) -> None:
        """Compact one partition after the other. The long part runs on a thread while clients are served."""
        turns = self._broker.turns
        since = turns.clock()
        for partition in list(self._broker.topics.all_partitions()):
            if self._stopped:
                return
            if (
                partition.open_log is not None
                and "compact" in partition.topic.values["cleanup.policy"]
                and partition not in self._uncleanable
            ):
                try:
                    if await self._compact_one(partition, partition.open_log):
                        since = turns.clock()
                except OSError:
                    # The old segments are kept until the new ones are complete.
                    logger.exception("compaction of %s failed", partition)
                except Refused:
                    logger.exception("compaction of %s failed; it is left alone until the next start", partition)
                    self._uncleanable.add(partition)
            since = await turns.rest(since)
        turns.worked(since)

    async def _compact_one(self, partition: Partition, log: PartitionLog) -> bool:
        """Run rounds until one has covered all dirty records: a round is bounded by the keys it can remember. Returns
        whether there was anything to do."""
        began, stopped_short = False, True
        while stopped_short and not self._stopped and partition.open_log is log:
            buffer_bytes = self._broker.settings["log.cleaner.dedupe.buffer.size"]
            compaction = log.cleaner.plan(self._broker.now_ms(), dedupe_buffer_bytes=buffer_bytes)
            if compaction is None:
                break
            began = True
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
        return began

    async def _checkpoint(self) -> None:
        try:
            self._broker.topics.checkpoint_recovery_points()
        except OSError as error:
            logger.error("recovery points cannot be written; recovery after a crash will take longer: %s", error)

    async def _flush_what_waited(self) -> None:
        """Fsync partitions whose `flush.ms` is over, checked every `log.flush.scheduler.interval.ms`."""
        now_ms = self._broker.now_ms()
        due = []
        async for partition in self._partitions():
            log = partition.open_log
            if log is None or log.end_offset <= log.flusher.recovery_point:
                self._unflushed_since.pop(partition, None)
            elif now_ms - self._unflushed_since.setdefault(partition, now_ms) >= partition.topic.values["flush.ms"]:
                due.append(partition)
                del self._unflushed_since[partition]
        if due:
            self._broker.spawn(self._broker.durability.flusher.flush(due))

    async def _expire_producers(self) -> None:
        now_ms, expiration_ms = self._broker.now_ms(), self._broker.settings["producer.id.expiration.ms"]
        async for partition in self._partitions():
            if partition.open_log is not None:
                partition.open_log.producers.expire(now_ms, expiration_ms)

    async def _remove_ended_tokens(self) -> None:
        await self._broker.changes.run(self._broker.stores.delegation_tokens.remove_ended(self._broker.now_ms()))
