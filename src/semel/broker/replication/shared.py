"""What all brokers of a cluster share besides topics: users, quotas, access rules, settings of groups, tokens.

Guarantees:

- It is in ZooKeeper, under Apache Kafka's paths and in its form. Every broker has all of it in memory, and decides by
  that: nothing waits for ZooKeeper but a change.
- A change is made to what is in ZooKeeper at that moment, so that brokers that change the same user or the same rules
  at once lose nothing of each other. A change and its notification, which is Kafka's, are written together.
- A change is answered once this broker knows it. The others are told by their watches, within a moment.
- What cannot be read changes nothing: the rules and users that were known stay, and the log says so. A broker does not
  start with what it cannot read, because a rule that denies may be among it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from semel.broker.replication.shared_stores import (
    SharedGroupSettings,
    SharedQuotas,
    SharedScram,
    SharedTokens,
    quotas_in,
)
from semel.cluster.nodes_reader import BOTH, FOLDER, LEAF, NodesReader
from semel.cluster.session import MultiRefused, NodeExists, NoNode, ZooKeeperError
from semel.errors import ErrorCode, Refused
from semel.machines.znodes import access, paths, tokens
from semel.machines.znodes.entities import CLIENTS, GROUPS, IPS, USERS, credentials_in, decode_name
from semel.machines.znodes.operations import Create, Operation, SetData, multi_size_bytes
from semel.machines.znodes.values import UnreadableZnode, decode_config, encode_config, encode_config_change

if TYPE_CHECKING:
    from semel.broker.replication.membership import Membership
    from semel.broker.replication.shared_rules import SharedRules
    from semel.broker.server import BrokerServer

logger = logging.getLogger(__name__)

_RULES = (FOLDER, FOLDER, LEAF)
_SHAPES = {
    "/config/users": (FOLDER, BOTH, FOLDER, LEAF),
    "/config/clients": (FOLDER, LEAF),
    "/config/ips": (FOLDER, LEAF),
    "/config/groups": (FOLDER, LEAF),
    access.LITERAL_FOLDER: _RULES,
    access.PREFIXED_FOLDER: _RULES,
    tokens.FOLDER: (FOLDER, LEAF),
}
#: How often a change is tried that others have made old.
ATTEMPTS = 10
#: So many nodes are changed together, and so many bytes.
AT_ONCE, AT_ONCE_BYTES = 100, 512 * 1024
#: How many notifications stay: whoever was away reads everything again.
NOTIFICATIONS_KEPT = 100

#: A node as it was read, with its version; None if there is none.
Present = tuple[bytes, int] | None
#: What to write about one node, by what is there. Nothing: it is as it should be.
Decide = Callable[[Present], tuple[Operation, ...]]
#: From the settings of a node to those that it is to have.
ChangeConfig = Callable[[dict[str, str]], dict[str, str]]


class Shared:
    """The shared state of one broker's cluster: `broker.cluster.shared`."""

    def __init__(self, broker: BrokerServer, membership: Membership) -> None:
        self._broker = broker
        self._session = membership.session
        self.reader = NodesReader(membership.session, _SHAPES, self._told, self._settled)
        self.scram = SharedScram(self)
        self.quotas = SharedQuotas(self)
        self.group_settings = SharedGroupSettings(self)
        self.tokens: SharedTokens | None = None
        #: None without an authorizer.
        self.rules: SharedRules | None = None
        self._quotas_changed = False

    async def load(self) -> None:
        """Read everything, and let the broker use it."""
        stores = self._broker.stores
        stores.scram, stores.quotas, stores.group_settings = self.scram, self.quotas, self.group_settings
        stores.delegation_tokens = self.tokens = SharedTokens(self, stores.no_tokens())
        with suppress(NodeExists):
            await self._session.create(paths.SCRAM_SECRET, secrets.token_bytes(32))
        self.scram.use_secret((await self._session.get(paths.SCRAM_SECRET))[0])
        await self.reader.load()
        self._broker.update_quotas()

    async def know(self) -> None:
        """What was changed through other brokers, up to now. If ZooKeeper does not answer, the change that follows will
        be refused anyway."""
        with suppress(ZooKeeperError):
            await self.reader.know()

    # What is told

    def _told(self, path: str, data: bytes | None) -> None:
        pattern = access.pattern_at(path)
        if pattern is not None:
            if self.rules is not None:
                self.rules.told(pattern, data)
        elif path.startswith(tokens.FOLDER):
            assert self.tokens is not None
            self.tokens.told(path, data)
        elif path.startswith("/config/"):
            self._told_config(path, {} if data is None else decode_config(data, path))
        elif data is not None:
            logger.warning("%s in ZooKeeper is left alone: it is about nothing that has access rules here", path)

    def _told_config(self, path: str, config: dict[str, str]) -> None:
        kind, *rest = path.removeprefix("/config/").split("/")
        name = decode_name(rest[0])
        if kind == GROUPS:
            self.group_settings.told(rest[0] if name is None else name, config)
            if "groups" in self._broker.__dict__:
                self._broker.groups.configure(rest[0] if name is None else name)
            return
        client_id = decode_name(rest[2]) if len(rest) == 3 else None
        if kind == USERS and len(rest) == 1 and name is not None:
            try:
                self.scram.told(name, credentials_in(config))
            except ValueError as error:
                logger.error("%s in ZooKeeper: its credentials stay as they were: %s", path, error)
        entity: tuple[tuple[str, str | None], ...]
        if kind == USERS:
            entity = (("user", name),) if len(rest) == 1 else (("client-id", client_id), ("user", name))
        else:
            entity = (({CLIENTS: "client-id", IPS: "ip"}[kind], name),)
        self._quotas_changed |= self.quotas.told(entity, quotas_in(entity, config, path))

    def _settled(self) -> None:
        if self._quotas_changed:
            self._quotas_changed = False
            self._broker.update_quotas()

    # Changes

    async def change_configs(self, changes: Sequence[tuple[str, ChangeConfig]]) -> None:
        """Change the settings of entities (users/alice). `Refused` if ZooKeeper does not answer."""
        items = []
        for entity, change in changes:
            path = f"/config/{entity}"
            folder = path.rpartition("/")[0]
            if entity.count("/") > 1:
                await self._make_folders(folder)
            items.append((path, self._config_decider(path, entity, change)))
        await self.change(items, paths.CONFIG_CHANGES)

    @staticmethod
    def _config_decider(path: str, entity: str, change: ChangeConfig) -> Decide:
        def decide(present: Present) -> tuple[Operation, ...]:
            before = {} if present is None else decode_config(present[0], path)
            after = change(dict(before))
            if after == before:
                return ()
            data = encode_config(after)
            write = Create(path, data) if present is None else SetData(path, data, present[1])
            return write, Create(paths.config_change(), encode_config_change(entity), sequential=True)

        return decide

    async def _make_folders(self, folder: str) -> None:
        parts = folder.strip("/").split("/")
        try:
            for length in range(1, len(parts) + 1):
                with suppress(NodeExists):
                    await self._session.create("/" + "/".join(parts[:length]))
        except ZooKeeperError as error:
            raise _no_answer(error) from None

    async def change(self, items: Sequence[tuple[str, Decide]], *notified: str) -> None:
        """Change nodes, as many together as fit. `notified` are the folders of the notifications, to be tidied up."""
        done = 0
        try:
            while done < len(items):
                done += await self._change_some(items[done : done + AT_ONCE])
            for folder in notified:
                with suppress(ZooKeeperError):  # the change is written; whoever makes the next one tidies up
                    await self._forget_old_notifications(folder)
        except ZooKeeperError as error:
            raise _no_answer(error) from None
        except UnreadableZnode as error:
            raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, str(error)) from None
        finally:
            await self.know()

    async def _change_some(self, items: Sequence[tuple[str, Decide]]) -> int:
        for _ in range(ATTEMPTS):
            await self._session.sync("/")
            present = await asyncio.gather(*(self._present(path) for path, _ in items))
            operations: list[Operation] = []
            count = 0
            for (_, decide), found in zip(items, present, strict=True):
                more = decide(found)
                if operations and multi_size_bytes([*operations, *more]) > AT_ONCE_BYTES:
                    break
                operations += more
                count += 1
            try:
                if operations:
                    await self._session.multi(operations)
                return count
            except MultiRefused as refused:
                refused.raise_unless_outrun()
                continue  # another broker was faster: once more, on top of its change
        raise Refused(ErrorCode.REQUEST_TIMED_OUT, "others are changing the same; try again")

    async def _present(self, path: str) -> Present:
        try:
            data, stat = await self._session.get(path)
        except NoNode:
            return None
        return data, stat.version

    async def _forget_old_notifications(self, folder: str) -> None:
        names = (await self._session.get_children(folder))[0]
        for name in names[:-NOTIFICATIONS_KEPT]:
            with suppress(NoNode):  # another broker tidies up as well
                await self._session.delete(f"{folder}/{name}")


def _no_answer(error: ZooKeeperError) -> Refused:
    return Refused(ErrorCode.REQUEST_TIMED_OUT, f"ZooKeeper did not answer: {error}")
