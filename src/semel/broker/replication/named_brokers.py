"""Whom Metadata names: this broker, those that are there, and those that were until a while ago.

Guarantee: no client is told a list that its own broker is missing in, also while that is not registered yet; and a
broker that is killed or restarted stays in the list for a while.

Kafka's clients see a dead broker in the list until its session has ended. librdkafka takes one that is missing once for
gone for good, together with the requests that wait for it (its issue 5511), and after an empty list it knows nobody to
ask any more.
"""

from __future__ import annotations

from collections.abc import Callable

from semel.cluster.image_reader import ImageReader
from semel.machines.znodes.values import BrokerRegistration

#: How long a broker that is gone is named.
NAMED_FOR_MS = 60_000


class NamedBrokers:
    """What this broker remembers of the others."""

    def __init__(
        self, broker_id: int, reader: ImageReader, now_ms: Callable[[], int], own: Callable[[], BrokerRegistration]
    ) -> None:
        self._broker_id, self._reader = broker_id, reader
        self._now_ms, self._own = now_ms, own
        #: Each broker's registration, and when it was there last.
        self._last_seen: dict[int, tuple[BrokerRegistration, int]] = {}
        #: Of those that were there since this broker runs, when that was last.
        self._was_there: dict[int, int] = {}

    def look(self) -> None:
        """Remember who is there."""
        now_ms = self._now_ms()
        # Of those that were gone when this broker started, ZooKeeper knows where they were.
        for broker, life in self._reader.lives().items():
            if broker not in self._last_seen:
                self._last_seen[broker] = BrokerRegistration(life.endpoints, {}, -1), now_ms
        for broker, registration in {self._broker_id: self._own(), **self._reader.registrations}.items():
            self._last_seen[broker] = registration, now_ms
            self._was_there[broker] = now_ms

    def there_lately(self) -> dict[int, str | None]:
        """The brokers that are there, or were a moment ago and are probably restarted: each with its rack."""
        self.look()
        since_ms = self._now_ms() - NAMED_FOR_MS
        return {
            broker: self._last_seen[broker][0].rack for broker, at_ms in self._was_there.items() if at_ms >= since_ms
        }

    def gone(self) -> dict[int, BrokerRegistration]:
        """Those that the cluster has had and that are not there, where they were last."""
        self.look()
        away = sorted(self._reader.lives().keys() - self._reader.registrations.keys())
        return {broker: self._last_seen[broker][0] for broker in away}

    def all(self) -> dict[int, BrokerRegistration]:
        self.look()
        named_since_ms = self._now_ms() - NAMED_FOR_MS
        return {
            broker: registration
            for broker, (registration, seen_ms) in sorted(self._last_seen.items())
            if seen_ms >= named_since_ms
        }
