"""Broker settings that change while the broker runs, and outlive it.

Guarantees:

- A change is in the metadata store before it holds, and holds again after a restart.
- A broker's own value comes before the default for all brokers, and that before what the broker was started with.
- Only settings that Kafka can change at run time are changed. Defaults of topics, and settings that are read when they
  are used, hold at once. Settings without effect here (`semel.config.kept`, threads) and the listeners are stored and
  described, and change nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from semel.broker.stored.entry import StoredEntry, settings_by_name
from semel.broker.stored.metadata_store import LocalMetadataStore
from semel.config import BROKER, TOPIC, ConfigError, Setting, Values
from semel.config.kept import OF_ONE_BROKER, is_of_one_broker, kept_setting
from semel.config.table import OF_A_LISTENER
from semel.errors import ErrorCode, Refused

logger = logging.getLogger(__name__)

#: The resource name of the defaults for all brokers.
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
    # Nothing is replicated or moved here. Tools that verify a reassignment remove these settings afterwards.
    "follower.replication.throttled.rate",
    "leader.replication.throttled.rate",
    "replica.alter.log.dirs.io.max.bytes.per.second",
}
#: Stored and described like the others. The broker keeps listening as it was started.
_LISTENERS = frozenset(
    (
        "listener.security.protocol.map",
        "listeners",
        "sasl.enabled.mechanisms",
        "sasl.jaas.config",
        "sasl.mechanism.inter.broker.protocol",
    )
)
DYNAMIC |= _LISTENERS
#: TLS, for new connections.
DYNAMIC |= {name for name in BROKER.rows if name.startswith("ssl.") and name in OF_ONE_BROKER}
#: Keys and certificates belong to a listener in Kafka: without a listener's name they are refused.
_OF_A_LISTENER = ("ssl.key.", "ssl.keystore.", "ssl.truststore.")
_STORE_ENTRY = "broker-settings"


def dynamic_setting(name: str) -> Setting:
    """The row of a broker setting, with or without effect here."""
    return BROKER.find(name) or kept_setting(name) or BROKER.row(name)


def is_of_tls(name: str) -> bool:
    """Whether it is a setting of TLS, of one listener or of all."""
    parts = OF_A_LISTENER.fullmatch(name)
    return (parts["setting"] if parts else name).startswith("ssl.")


class DynamicSettings:
    """The settings a broker was started with, and the changes since."""

    def __init__(self, store: LocalMetadataStore, node_id: int, started_with: Values) -> None:
        self._entry = StoredEntry(store, _STORE_ENTRY)
        self._own = str(node_id)
        self.started_with = started_with
        self._changed = self._entry.read_as(settings_by_name)

    def overrides_of(self, name: str) -> Mapping[str, str]:
        """The changed settings of a broker, by its number, or of `ALL_BROKERS`."""
        return self._changed.get(name, {})

    @property
    def own(self) -> Mapping[str, str]:
        """The changed settings of this broker alone."""
        return self.overrides_of(self._own)

    @property
    def values(self) -> Values:
        """The settings in force."""
        return self._laid_over(self._changed)

    def replace(self, name: str, overrides: dict[str, str], *, validate_only: bool = False) -> None:
        """Replace the changed settings of a broker, or of all brokers."""
        changed = self._with(name, overrides)
        if validate_only:
            return
        self._entry.replace(changed)
        self._changed = changed

    def adopt(self, changed: dict[str, dict[str, str]]) -> bool:
        """Use these changed settings, which a cluster keeps for its brokers; whether they are others than before. What
        is not legal here is left out."""
        legal = {}
        for name, overrides in changed.items():
            try:
                self._laid_over({name: overrides})
                legal[name] = overrides
            except ConfigError as error:
                logger.error("settings of the cluster for %s are not used: %s", name or "all brokers", error)
        is_new = legal != self._changed
        self._changed = legal
        return is_new

    def values_with(self, name: str, overrides: dict[str, str]) -> Values:
        """The settings as they would be with these. Refused says what is wrong with them."""
        return self._laid_over(self._with(name, overrides))

    @property
    def changes_tls(self) -> bool:
        """Whether any setting of TLS was changed."""
        return any(is_of_tls(setting) for overrides in self._changed.values() for setting in overrides)

    def _with(self, name: str, overrides: dict[str, str]) -> dict[str, dict[str, str]]:
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
        return changed

    def text(self, name: str) -> str | None:
        """The value in force as Kafka's tools print it, also of a setting without effect."""
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
    parts = OF_A_LISTENER.fullmatch(setting)
    if setting in BROKER and (parts["setting"] if parts else setting) not in DYNAMIC:
        raise Refused(ErrorCode.INVALID_REQUEST, f"{setting} cannot be changed while the broker runs")
    if setting.startswith(_OF_A_LISTENER):
        raise Refused(
            ErrorCode.INVALID_REQUEST, f"{setting} belongs to a listener: change listener.name.NAME.{setting}"
        )
    if name == ALL_BROKERS and is_of_one_broker(setting):
        raise Refused(ErrorCode.INVALID_REQUEST, f"{setting} can be changed for one broker only, not for all")
