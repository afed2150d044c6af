"""Broker settings that change while the broker runs, and outlive it.

Guarantees:

- What was changed is in the metadata store before it holds, and holds again after a restart.
- A broker's own value stands before the cluster's default, that before what the broker was started with.
- What Kafka lets one change is changed, and nothing else. The defaults of topics, and settings that are looked up
  whenever they matter, hold at once. The others are those that mean nothing here (`semel.config.kept`, threads) and
  the listeners: they are kept and described, and change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from semel.broker.stored.entry import StoredEntry
from semel.broker.stored.metadata_store import LocalMetadataStore
from semel.config import BROKER, TOPIC, ConfigError, Setting, Values
from semel.config.kept import is_of_one_broker, kept_setting
from semel.errors import ErrorCode, Refused

#: The name under which the defaults of all brokers are changed.
ALL_BROKERS = ""
DYNAMIC = frozenset(row.broker_name for row in TOPIC if row.broker_name is not None) | {
    "log.cleaner.backoff.ms",
    "log.cleaner.dedupe.buffer.size",
    "max.connections",
    "max.connections.per.ip",
    "producer.id.expiration.ms",
    "transaction.partition.verification.enable",
    # One loop has no threads to add.
    "background.threads",
    "num.io.threads",
    "num.network.threads",
    "num.recovery.threads.per.data.dir",
    # Nothing is ever replicated or moved here; tools that verify a reassignment take these back afterwards.
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
}
#: Kept and described like the others; the broker goes on listening where it was started.
_LISTENERS = frozenset(("listener.security.protocol.map", "listeners"))
DYNAMIC |= _LISTENERS
#: Kafka's keys and certificates belong to a listener: without its name they are refused.
_OF_A_LISTENER = ("ssl.key.", "ssl.keystore.", "ssl.truststore.")
_STORE_ENTRY = "broker-settings"


def dynamic_setting(name: str) -> Setting:
    """The row of a broker setting, whether or not it means anything here."""
    return kept_setting(name) or BROKER.row(name)


class DynamicSettings:
    """The settings a broker was started with, and what was laid over them since."""

    def __init__(self, store: LocalMetadataStore, node_id: int, started_with: Values) -> None:
        self._entry = StoredEntry(store, _STORE_ENTRY)
        self._own = str(node_id)
        self.started_with = started_with
        self._changed: dict[str, dict[str, str]] = self._entry.read() or {}

    def overrides_of(self, name: str) -> Mapping[str, str]:
        """What was changed under this name, a broker's number or `ALL_BROKERS`."""
        return self._changed.get(name, {})

    @property
    def own(self) -> Mapping[str, str]:
        """What was changed for this broker alone."""
        return self.overrides_of(self._own)

    @property
    def values(self) -> Values:
        """What holds now."""
        return self._laid_over(self._changed)

    def replace(self, name: str, overrides: dict[str, str], *, validate_only: bool = False) -> None:
        """Give a broker, or all of them, these settings instead of the ones changed before."""
        before = self.overrides_of(name)
        try:
            for setting, value in overrides.items():
                row = dynamic_setting(setting)
                if before.get(setting) == value:
                    continue
                _check_dynamic(name, setting)
                row.read(value)
            changed = {**self._changed, name: overrides}
            self._laid_over(changed)
        except ConfigError as error:
            unknown = any(setting not in BROKER and kept_setting(setting) is None for setting in overrides)
            raise Refused(ErrorCode.INVALID_CONFIG if unknown else ErrorCode.INVALID_REQUEST, str(error)) from None
        if validate_only:
            return
        self._entry.replace(changed)
        self._changed = changed

    def text(self, name: str) -> str | None:
        """What holds, as Kafka's tools print it, also of a setting that is only kept."""
        for changed in (self.own, self.overrides_of(ALL_BROKERS), self.started_with.passed_by):
            if name in changed:
                return changed[name]
        row = dynamic_setting(name)
        return self.started_with.text(name) if name in BROKER else row.write(row.default)

    def _laid_over(self, changed: Mapping[str, Mapping[str, str]]) -> Values:
        if not any(changed.values()):
            return self.started_with
        given: dict[str, object] = {name: self.started_with[name] for name in self.started_with.explicit}
        for overrides in (changed.get(ALL_BROKERS, {}), changed.get(self._own, {})):
            given.update((name, text) for name, text in overrides.items() if name in BROKER and name not in _LISTENERS)
        return BROKER.parse(given)


def _check_dynamic(name: str, setting: str) -> None:
    """Refuse what Kafka refuses to change while the broker runs, or to change for all brokers at once."""
    if setting in BROKER and setting not in DYNAMIC:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{setting} cannot be changed while the broker runs")
    if setting.startswith(_OF_A_LISTENER):
        raise Refused(
            ErrorCode.INVALID_REQUEST, f"{setting} is that of a listener: change listener.name.NAME.{setting}"
        )
    if name == ALL_BROKERS and is_of_one_broker(setting):
        raise Refused(ErrorCode.INVALID_REQUEST, f"{setting} is changed for one broker, not for all of them")
