"""Settings of single groups, instead of the broker's defaults (KIP-848).

Guarantees:

- A group can have settings before it exists, and keeps them until they are removed. They are in the metadata store
  before they hold, and hold again after a restart.
- They stay within the broker's bounds (`group.consumer.min.*` and `group.consumer.max.*`), and the session timeout is
  longer than the heartbeat interval.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping

from semel.broker.stored.entry import StoredEntry, settings_by_name
from semel.broker.stored.metadata_store import LocalMetadataStore
from semel.config import GROUP, ConfigError, Values, group_values
from semel.errors import ErrorCode, Refused

_STORE_ENTRY = "group-settings"


class GroupSettings(ABC):
    """The groups that have settings of their own, wherever they are stored."""

    def __init__(self, changed: dict[str, dict[str, str]]) -> None:
        self._changed = changed

    def __iter__(self) -> Iterator[str]:
        return iter(self._changed)

    def overrides_of(self, group_id: str) -> Mapping[str, str]:
        """A group's own settings."""
        return self._changed.get(group_id, {})

    def values(self, group_id: str, broker: Values) -> Values:
        """The settings in force for a group."""
        return group_values(broker, self.overrides_of(group_id))

    @staticmethod
    def check(overrides: dict[str, str], broker: Values) -> None:
        """Refuse settings that are not legal for a group."""
        try:
            values = group_values(broker, overrides)
            for name in overrides:
                _check_bounds(name, values, broker)
        except ConfigError as error:
            raise Refused(ErrorCode.INVALID_CONFIG, str(error)) from None
        if values["consumer.session.timeout.ms"] <= values["consumer.heartbeat.interval.ms"]:
            raise Refused(
                ErrorCode.INVALID_CONFIG, "consumer.session.timeout.ms must be above consumer.heartbeat.interval.ms"
            )

    @abstractmethod
    async def replace(self, changes: Mapping[str, dict[str, str]]) -> None:
        """Replace the own settings of groups. They were checked by `check`."""


class GroupSettingsStore(GroupSettings):
    """Settings of groups on disk."""

    def __init__(self, store: LocalMetadataStore) -> None:
        self._entry = StoredEntry(store, _STORE_ENTRY)
        super().__init__(self._entry.read_as(settings_by_name))

    async def replace(self, changes: Mapping[str, dict[str, str]]) -> None:
        """With one write."""
        changed = {**self._changed, **changes}
        for group_id, overrides in changes.items():
            if not overrides:
                del changed[group_id]
        await self._entry.replace_beside(changed)
        self._changed = changed


def _check_bounds(name: str, values: Values, broker: Values) -> None:
    default = GROUP[name].broker_name or ""
    family, _, rest = default.rpartition("consumer.")
    least, most = (broker[f"{family}consumer.{bound}.{rest}"] for bound in ("min", "max"))
    if not least <= values[name] <= most:
        raise ConfigError(f"{name}={values[name]}: the broker allows {least} to {most}")
