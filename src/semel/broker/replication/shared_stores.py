"""The stores of a broker in a cluster: in memory what ZooKeeper has, and changed there (`shared`)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING

from semel.broker.stored.delegation_tokens import StoredTokens
from semel.broker.stored.group_settings import GroupSettings
from semel.broker.stored.quotas import CLIENT_ID, IP, USER, Entity, QuotaTable, check_quota, quota_bounds
from semel.broker.stored.scram import MECHANISMS, CredentialKey, ScramCredentials
from semel.errors import ErrorCode, Refused
from semel.machines.security.delegation_tokens import DelegationToken, DelegationTokens
from semel.machines.security.scram import ScramKeys
from semel.machines.znodes import tokens
from semel.machines.znodes.entities import (
    CLIENTS,
    GROUPS,
    IPS,
    USERS,
    NoSuchName,
    client_of_user,
    encode_quota,
    encode_scram,
    entity_path,
)
from semel.machines.znodes.operations import Create, Delete, Operation, SetData

if TYPE_CHECKING:
    from semel.broker.replication.shared import Present, Shared

logger = logging.getLogger(__name__)


def _path_of(make: Callable[[], str], code: ErrorCode) -> str:
    try:
        return make()
    except NoSuchName as error:
        raise Refused(code, str(error)) from None


# SCRAM


class SharedScram(ScramCredentials):
    """Credentials in `/config/users/<name>`."""

    def __init__(self, shared: Shared) -> None:
        super().__init__({})
        self._shared = shared
        self._secret = b""

    @property
    def secret(self) -> bytes:
        """One for all brokers: with different ones, asking two of them would tell whether a user exists."""
        return self._secret

    def use_secret(self, secret: bytes) -> None:
        self._secret = secret

    def told(self, user: str, keys: Mapping[int, ScramKeys]) -> None:
        """A user has these credentials, by mechanism, and no others."""
        for mechanism in MECHANISMS:
            self._credentials.pop((user, mechanism), None)
            if mechanism in keys:
                self._credentials[user, mechanism] = keys[mechanism]
        self._shapes.clear()

    async def know(self) -> None:
        await self._shared.know()

    async def replace(self, changes: Mapping[CredentialKey, ScramKeys | None]) -> None:
        by_user: dict[str, dict[str, ScramKeys | None]] = {}
        for (user, mechanism), keys in changes.items():
            by_user.setdefault(user, {})[MECHANISMS[mechanism]] = keys
        items = []
        for user, own in by_user.items():
            path = _path_of(partial(entity_path, USERS, user), ErrorCode.UNACCEPTABLE_CREDENTIAL)
            texts = {name: None if keys is None else encode_scram(keys) for name, keys in own.items()}
            items.append((path, _changes(texts)))
        await self._shared.change_configs(items)


def _changes(wanted: Mapping[str, str | None]) -> Callable[[dict[str, str]], dict[str, str]]:
    """Set settings, and remove those that are None. The others stay: a user's quotas and credentials share a node."""

    def change(present: dict[str, str]) -> dict[str, str]:
        merged = {**present, **wanted}
        return {name: text for name, text in merged.items() if text is not None}

    return change


# Quotas


def quotas_in(entity: Entity, config: Mapping[str, str], path: str) -> dict[str, float]:
    """The quotas of a node. One that cannot be is logged and left out."""
    found = {}
    for name in quota_bounds(entity):
        if name in config:
            try:
                value = float(config[name])
                check_quota(entity, name, value)
            except (ValueError, Refused) as error:
                logger.error("%s in ZooKeeper: %s=%s is not used: %s", path, name, config[name], error)
            else:
                found[name] = value
    return found


class SharedQuotas(QuotaTable):
    """Quotas in `/config/users`, `/config/clients` and `/config/ips`."""

    def __init__(self, shared: Shared) -> None:
        super().__init__({})
        self._shared = shared

    def told(self, entity: Entity, quotas: dict[str, float]) -> bool:
        """An entity has these quotas now; whether they are others than before."""
        if self._quotas.get(entity, {}) == quotas:
            return False
        if quotas:
            self._quotas[entity] = quotas
        else:
            del self._quotas[entity]
        return True

    async def replace(self, changes: Mapping[Entity, Mapping[str, float | None]]) -> None:
        items = []
        for entity, values in changes.items():
            bounds = quota_bounds(entity)
            wanted = {
                name: None if value is None else encode_quota(value, whole=bounds.get(name) is not None)
                for name, value in values.items()
            }
            items.append((_quota_path(entity), _changes(wanted)))
        await self._shared.change_configs(items)


def _quota_path(entity: Entity) -> str:
    names = dict(entity)

    def path() -> str:
        if IP in names:
            return entity_path(IPS, names[IP])
        if USER not in names:
            return entity_path(CLIENTS, names[CLIENT_ID])
        if CLIENT_ID not in names:
            return entity_path(USERS, names[USER])
        return client_of_user(names[USER], names[CLIENT_ID])

    return _path_of(path, ErrorCode.INVALID_REQUEST)


# Groups


class SharedGroupSettings(GroupSettings):
    """Settings of groups in `/config/groups/<id>`, which only Semel has."""

    def __init__(self, shared: Shared) -> None:
        super().__init__({})
        self._shared = shared

    def told(self, group_id: str, overrides: dict[str, str]) -> None:
        if overrides:
            self._changed[group_id] = overrides
        else:
            self._changed.pop(group_id, None)

    async def replace(self, changes: Mapping[str, dict[str, str]]) -> None:
        def only(overrides: dict[str, str]) -> Callable[[dict[str, str]], dict[str, str]]:
            return lambda _: overrides

        for group_id, overrides in changes.items():
            await self.alter(group_id, only(overrides), validate_only=False)

    async def alter(
        self, group_id: str, change: Callable[[dict[str, str]], dict[str, str]], *, validate_only: bool
    ) -> None:
        """Change what is in ZooKeeper at that moment. `change` refuses what is not legal."""
        path = _path_of(partial(entity_path, GROUPS, group_id), ErrorCode.INVALID_REQUEST)
        if validate_only:
            await self._shared.know()
            change(dict(self.overrides_of(group_id)))
            return
        await self._shared.change_configs([(path, change)])


# Delegation tokens


class SharedTokens(StoredTokens):
    """Tokens in `/delegation_token/tokens`. `delegation.token.secret.key` must be the same on all brokers."""

    def __init__(self, shared: Shared, machine: DelegationTokens) -> None:
        super().__init__(machine)
        self._shared = shared

    def told(self, path: str, data: bytes | None) -> None:
        if data is None:
            self.tokens.remove(path.rpartition("/")[2])
        else:
            self.tokens.put(tokens.decode_token(data, path))

    async def know(self) -> None:
        await self._shared.know()

    async def put(self, token: DelegationToken) -> None:
        path, data = tokens.token_path(token.token_id), tokens.encode_token(token)

        def decide(present: Present) -> tuple[Operation, ...]:
            write = Create(path, data) if present is None else SetData(path, data, present[1])
            return write, tokens.notification(token.token_id)

        await self._shared.change([(path, decide)], tokens.CHANGES)

    async def remove(self, token_ids: Collection[str]) -> None:
        def decider(token_id: str) -> Callable[[Present], tuple[Operation, ...]]:
            def decide(present: Present) -> tuple[Operation, ...]:
                if present is None:
                    return ()  # another broker was faster
                return Delete(tokens.token_path(token_id), present[1]), tokens.notification(token_id)

            return decide

        await self._shared.change([(tokens.token_path(one), decider(one)) for one in token_ids], tokens.CHANGES)
