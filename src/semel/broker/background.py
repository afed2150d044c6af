"""What the broker does on its own: retention, compaction, expiry of producers, idle connections."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from semel.broker.partitions import Partition
from semel.errors import Refused

if TYPE_CHECKING:
    from semel.broker.server import BrokerServer

logger = logging.getLogger(__name__)


class Background:
    """Periodic work, each kind at its own interval under Kafka's name for it."""

    def __init__(self, broker: BrokerServer) -> None:
        self._broker = broker
        self._timers: set[asyncio.TimerHandle] = set()
        self._stopped = False

    def start(self) -> None:
        """Begin."""
        settings = self._broker.settings
        self._every(settings["log.retention.check.interval.ms"], self._retain)
        if settings["log.cleaner.enable"]:
            self._every(max(settings["log.cleaner.backoff.ms"], 1), self._compact)
        self._every(settings["producer.id.expiration.check.interval.ms"], self._expire_producers)
        if settings["connections.max.idle.ms"] > 0:
            self._every(settings["connections.max.idle.ms"], self._broker.close_idle_connections)

    def stop(self) -> None:
        """Begin nothing more."""
        self._stopped = True
        for timer in self._timers:
            timer.cancel()

    def _every(self, interval_ms: int, work: Callable[[], None]) -> None:
        def run() -> None:
            self._timers.discard(timer)
            if self._stopped:
                return
            try:
                work()
            finally:
                self._every(interval_ms, work)

        timer = self._broker.loop.call_later(interval_ms / 1000, run)
        self._timers.add(timer)

    def _each(self, what: str, work: Callable[[Partition], object]) -> None:
        """One partition's trouble is its own: it is logged, and the others have their turn."""
        for partition in self._broker.topics.all_partitions():
            if partition.opened is None and not partition.directory.exists():
                continue
            try:
                work(partition)
            except (OSError, Refused):
                logger.exception("%s of %s failed", what, partition)

    def _retain(self) -> None:
        now_ms = self._broker.now_ms()
        self._each("retention", lambda partition: partition.log.retain(now_ms))

    def _compact(self) -> None:
        now_ms = self._broker.now_ms()

        def compact(partition: Partition) -> None:
            if "compact" in partition.topic.values["cleanup.policy"]:
                partition.log.compact(now_ms)

        self._each("compaction", compact)

    def _expire_producers(self) -> None:
        now_ms, expiration_ms = self._broker.now_ms(), self._broker.settings["producer.id.expiration.ms"]

        def expire(partition: Partition) -> None:
            if partition.opened is not None:
                partition.opened.producers.expire(now_ms, expiration_ms)

        self._each("expiry of producers", expire)
