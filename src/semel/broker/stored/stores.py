"""Everything that the broker stores about itself except its topics, by subject."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from semel.broker.stored.dynamic_settings import DynamicSettings
from semel.broker.stored.group_settings import GroupSettings, GroupSettingsStore
from semel.broker.stored.metadata_store import LocalMetadataStore
from semel.broker.stored.producer_ids import ProducerIds
from semel.broker.stored.quotas import QuotaStore, QuotaTable

if TYPE_CHECKING:
    from semel.broker.stored.delegation_tokens import StoredTokens
    from semel.broker.stored.scram import ScramCredentials
    from semel.config import Values
    from semel.machines.security.delegation_tokens import DelegationTokens


class ProducerIdSource(Protocol):
    """Who hands out producer ids."""

    def take(self) -> int:
        """The next unused producer id."""


class Stores:
    """The stores of one broker, over one metadata store."""

    def __init__(
        self, metadata: LocalMetadataStore, node_id: int, settings: Values, highest_producer_id: Callable[[], int]
    ) -> None:
        """`settings`: what the broker was started with."""
        self.metadata = metadata
        self._settings = settings
        self.producer_ids: ProducerIdSource = ProducerIds(metadata, node_id, highest_producer_id)
        self.broker_settings = DynamicSettings(metadata, node_id, settings)
        self.group_settings: GroupSettings = GroupSettingsStore(metadata)
        self.quotas: QuotaTable = QuotaStore(metadata)

    @cached_property
    def scram(self) -> ScramCredentials:
        """SCRAM credentials, read when somebody asks for them: no listener does."""
        from semel.broker.stored.scram import ScramStore

        return ScramStore(self.metadata)

    @cached_property
    def delegation_tokens(self) -> StoredTokens:
        """Delegation tokens, read when somebody asks for them."""
        from semel.broker.stored.delegation_tokens import DelegationTokenStore

        return DelegationTokenStore(self.metadata, self.no_tokens())

    def no_tokens(self) -> DelegationTokens:
        """The machine of delegation tokens, as the settings have it, before any token is in it."""
        from semel.machines.security.delegation_tokens import DelegationTokens, TokenLimits

        settings = self._settings
        secret = settings["delegation.token.secret.key"]
        limits = TokenLimits(settings["delegation.token.max.lifetime.ms"], settings["delegation.token.expiry.time.ms"])
        return DelegationTokens(None if secret is None else secret.encode(), limits)
