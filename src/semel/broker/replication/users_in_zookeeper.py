"""The users of a cluster, changed in ZooKeeper without a broker.

A cluster that lets nobody in without a password needs a user before its first broker starts, and its brokers may be
that user themselves. Kafka's own tool does the same (`kafka-configs.sh --zookeeper`). Brokers that run are told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from typing import TypeVar

from semel.broker.replication.to_zookeeper import open_session
from semel.broker.stored.scram import MECHANISMS
from semel.broker.stored_users import scram_keys
from semel.cluster.session import MultiRefused, NodeExists, ZooKeeperError, ZooKeeperSession
from semel.config import ConfigError, Values
from semel.machines.znodes import paths
from semel.machines.znodes.entities import USERS, credentials_in, decode_name, encode_scram, entity_path
from semel.machines.znodes.operations import Create, SetData
from semel.machines.znodes.values import decode_config, encode_config, encode_config_change

Result = TypeVar("Result")

ATTEMPTS = 10


class UsersInZooKeeper:
    """`settings` are those of a broker. `ConfigError` says what is in the way."""

    def __init__(self, settings: Values) -> None:
        self._settings = settings

    def describe(self) -> dict[str, dict[str, int]]:
        """Every user's mechanisms, and how many iterations each has."""
        return self._with_session(_describe)

    def set_password(self, user: str, password: str, mechanisms: Iterable[str], iterations: int) -> None:
        """Let a user in with this password. What there was for these mechanisms is replaced."""
        wanted = {one: encode_scram(scram_keys(one, password, iterations)) for one in mechanisms}
        self._with_session(partial(_change, user=user, wanted=wanted))

    def delete(self, user: str, mechanisms: Iterable[str]) -> None:
        """Remove a user's credentials."""
        self._with_session(partial(_change, user=user, wanted=dict.fromkeys(mechanisms)))

    def _with_session(self, work: Callable[[ZooKeeperSession], Awaitable[Result]]) -> Result:
        async def run() -> Result:
            session = await open_session(self._settings)
            try:
                return await work(session)
            finally:
                await session.close()

        try:
            return asyncio.run(run())
        except (ZooKeeperError, ValueError) as error:
            raise ConfigError(f"ZooKeeper: {error}") from None


async def _describe(session: ZooKeeperSession) -> dict[str, dict[str, int]]:
    found = {}
    folder = f"/config/{USERS}"
    if await session.exists(folder) is None:
        return {}
    for encoded in (await session.get_children(folder))[0]:
        path, user = f"{folder}/{encoded}", decode_name(encoded)
        keys = credentials_in(decode_config((await session.get(path))[0], path))
        if keys and user is not None:
            found[user] = {MECHANISMS[number]: one.iterations for number, one in sorted(keys.items())}
    return found


async def _change(session: ZooKeeperSession, *, user: str, wanted: Mapping[str, str | None]) -> None:
    """Set credentials, and remove those that are None. The user's quotas are in the same node, and stay."""
    entity = entity_path(USERS, user)
    path = f"/config/{entity}"
    for folder in ("/config", f"/config/{USERS}", paths.CONFIG_CHANGES, path):
        with suppress(NodeExists):
            await session.create(folder)
    for _ in range(ATTEMPTS):
        data, stat = await session.get(path)
        merged = {**decode_config(data, path), **wanted}
        kept = {name: text for name, text in merged.items() if text is not None}
        notice = Create(paths.config_change(), encode_config_change(entity), sequential=True)
        try:
            await session.multi((SetData(path, encode_config(kept), stat.version), notice))
            return
        except MultiRefused as refused:
            refused.raise_unless_outrun()
            continue  # somebody else was faster: once more, on top of that change
    raise ConfigError(f"others are changing user {user}; try again")
