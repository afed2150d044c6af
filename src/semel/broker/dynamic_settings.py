"""Broker settings that change while the broker runs, and outlive it.

Guarantees:

- What was changed is in the metadata store before it holds, and holds again after a restart.
- A broker's own value stands before the cluster's default, that before what the broker was started with.
- Only settings that take effect at once can be changed: the defaults of topics, and those that are looked up whenever
  they matter. Any other is refused, never accepted and forgotten.
"""

from __future__ import annotations

from collections.abc import Mapping

from semel.broker.metadata_store import LocalMetadataStore
from semel.config import BROKER, TOPIC, ConfigError, Values
from semel.errors import ErrorCode, Refused

#: The name under which the defaults of all brokers are changed.
ALL_BROKERS = ""
DYNAMIC = frozenset(row.broker_name for row in TOPIC if row.broker_name is not None) | {
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "max.connections",
    "max.connections.per.ip",
    "producer.id.expiration.ms",
    # Nothing is ever replicated or moved here; tools that verify a reassignment take these back afterwards.
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
}
_STORE_ENTRY = "broker-settings"


class DynamicSettings:
    """The settings a broker was started with, and what was laid over them since."""

    def __init__(self, store: LocalMetadataStore, node_id: int, started_with: Values) -> None:
        self._store = store
        self._own = str(node_id)
        self.started_with = started_with
        stored, self._version = store.get(_STORE_ENTRY)
        self._changed: dict[str, dict[str, str]] = stored or {}

    def changed(self, name: str) -> Mapping[str, str]:
        """What was changed under this name, a broker's number or `ALL_BROKERS`."""
        return self._changed.get(name, {})

    @property
    def own(self) -> Mapping[str, str]:
        """What was changed for this broker alone."""
        return self.changed(self._own)

    @property
    def values(self) -> Values:
        """What holds now."""
        return self._laid_over(self._changed)

    def replace(self, name: str, overrides: dict[str, str], *, validate_only: bool = False) -> None:
        """Give a broker, or all of them, these settings instead of the ones changed before."""
        before = self.changed(name)
        for setting, value in overrides.items():
            if setting not in BROKER:
                raise Refused(ErrorCode.INVALID_CONFIG, f"there is no broker setting {setting!r}")
            if setting not in DYNAMIC and before.get(setting) != value:
                raise Refused(ErrorCode.INVALID_REQUEST, f"{setting} cannot be changed while the broker runs")
        changed = {**self._changed, name: overrides}
        try:
            self._laid_over(changed)
        except ConfigError as error:
            raise Refused(ErrorCode.INVALID_REQUEST, str(error)) from None
        if validate_only:
            return
        try:
            self._version = self._store.update(_STORE_ENTRY, changed, self._version)
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the change could not be written: {error}") from error
        self._changed = changed

    def _laid_over(self, changed: Mapping[str, Mapping[str, str]]) -> Values:
        if not any(changed.values()):
            return self.started_with
        given: dict[str, object] = {name: self.started_with[name] for name in self.started_with.explicit}
        given.update(changed.get(ALL_BROKERS, {}))
        given.update(changed.get(self._own, {}))
        return BROKER.parse(given)
