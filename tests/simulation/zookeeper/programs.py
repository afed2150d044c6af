"""Random programs for ZooKeeper, and what they show on a real ZooKeeper and on the simulated one.

A program is made before it is run, from a seed, so both get the same. What it shows is made comparable: zxids are
counted from the program's first node, sessions by their place, and times are left out.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from semel.cluster import session as zk
from semel.cluster.session import EventType, SessionState, Stat, WatchEvent, ZooKeeperSession
from semel.machines.znodes import operations as op
from semel.machines.znodes.operations import Acl, Check, Create, Delete, Operation, SetData

SESSIONS = 3
#: The third session shows an identity.
DIGEST = "ada:secret"
_NAMES = ("a", "b", "c")
_ACLS = (
    op.OPEN,
    (Acl(op.ALL, "auth", ""),),
    (Acl(op.READ, "world", "anyone"), Acl(op.ALL, "auth", "")),
    (Acl(op.ALL & ~op.DELETE, "world", "anyone"),),
    (Acl(op.READ | op.ADMIN, "world", "anyone"), Acl(op.WRITE, "digest", "bob:x1y2")),
    (Acl(op.READ, "world", "anyone"), Acl(op.READ, "digest", "bob:x1y2")),
    (Acl(op.ALL, "digest", "nobody"),),
    (Acl(op.ALL, "nonsense", "x"),),
    (),
)

Step = tuple[Any, ...]


def random_path(chance: random.Random, root: str) -> str:
    return root + "".join("/" + chance.choice(_NAMES) for _ in range(chance.choice((1, 1, 1, 2, 2, 3))))


def random_operation(chance: random.Random, root: str) -> Operation:
    path = random_path(chance, root)
    version = chance.choice((-1, -1, -1, 0, 0, 1, 2))
    kind = chance.choice(("create", "create", "delete", "set", "set", "check"))
    if kind == "create":
        acl = chance.choice(_ACLS) if chance.random() < 0.15 else op.OPEN
        return Create(path, chance.randbytes(chance.randrange(8)), acl, chance.random() < 0.3, chance.random() < 0.25)
    if kind == "delete":
        return Delete(path if chance.random() < 0.98 else "/zookeeper", version)
    if kind == "set":
        return SetData(path, chance.randbytes(chance.randrange(8)), version)
    return Check(path, version)


def program(seed: int, steps: int, root: str) -> list[Step]:
    chance = random.Random(seed)
    out: list[Step] = []
    for _ in range(steps):
        who = chance.randrange(SESSIONS)
        watch = chance.random() < 0.5
        kind = chance.choices(
            ("write", "exists", "get", "children", "multi", "sync", "set_acl", "get_acl", "close", "drop", "too_large"),
            (40, 12, 12, 12, 14, 2, 3, 3, 3, 3, 0.4),
        )[0]
        path = random_path(chance, root) if chance.random() < 0.85 else root
        if kind == "write":
            out.append((who, kind, random_operation(chance, root)))
        elif kind == "multi":
            out.append((who, kind, [random_operation(chance, root) for _ in range(chance.randrange(1, 5))]))
        elif kind == "set_acl":
            out.append((who, kind, path, chance.choice(_ACLS), chance.choice((-1, 0, 1))))
        elif kind in ("exists", "get", "children"):
            out.append((who, kind, path, watch))
        else:
            out.append((who, kind, path))
    return out


class World(Protocol):
    """Where a program is run."""

    async def open(self, digest: str | None) -> ZooKeeperSession: ...

    async def drop_connection(self, session: ZooKeeperSession) -> None: ...


@dataclass
class Run:
    """One run of a program. `shown` has a line for every step."""

    world: World
    root: str
    shown: list[Any] = field(default_factory=list)
    sessions: list[ZooKeeperSession] = field(default_factory=list)
    #: Since the last step, by session: states, and events with the number of the watch that they came to.
    states: list[list[SessionState]] = field(default_factory=list)
    events: list[list[tuple[EventType, str, int]]] = field(default_factory=list)
    _owners: dict[int, int] = field(default_factory=dict)
    _base: int = 0
    _watches: int = 0

    async def of(self, steps: list[Step]) -> list[Any]:
        first = await self.world.open(None)
        await first.create(self.root)
        self._base = (await first.get(self.root))[1].czxid
        for number in range(SESSIONS):
            self.sessions.append(await self._open(number))
            self.states.append([])
            self.events.append([])
            self._listen(number)
        try:
            for step in steps:
                outcome = await self._outcome(step)
                for session in self.sessions:  # whatever was sent to it before is there now
                    await session.exists("/")
                states = [sorted(set(each), key=str) for each in self.states]
                self.shown.append((step, outcome, states, self._told(step)))
                for each in (*self.states, *self.events):
                    each.clear()
        finally:
            for session in (first, *self.sessions):
                await session.close()
        return self.shown

    async def _open(self, number: int) -> ZooKeeperSession:
        session = await self.world.open(DIGEST if number == SESSIONS - 1 else None)
        self._owners[session.session_id] = len(self._owners) + 1
        return session

    def _listen(self, number: int) -> None:
        self.sessions[number].add_listener(self.states[number].append)

    def _told(self, step: Step) -> list[Any]:
        """The events of each session. Where ZooKeeper gives no order (nodes that end with a session, several watches on
        one node, the watches of a lost connection) they are sorted."""
        out = []
        for events in self.events:
            if step[1] in ("close", "drop", "too_large"):
                out.append(sorted(events, key=str))
                continue
            grouped: list[tuple[EventType, str, list[int]]] = []
            for type_, path, watch in events:
                if grouped and grouped[-1][:2] == (type_, path):
                    grouped[-1][2].append(watch)
                else:
                    grouped.append((type_, path, [watch]))
            out.append([(type_, path, sorted(watches)) for type_, path, watches in grouped])
        return out

    def _watch(self, who: int, wanted: bool) -> Callable[[WatchEvent], None] | None:
        if not wanted:
            return None
        self._watches += 1
        number = self._watches
        return lambda event: self.events[who].append((event.type, event.path, number))

    async def _outcome(self, step: Step) -> Any:
        who, kind, *rest = step
        try:
            return self._comparable(await self._do(who, kind, *rest))
        except zk.MultiRefused as refused:
            return refused.index, type(refused.error)
        except zk.ZooKeeperError as error:
            return type(error)

    async def _do(self, who: int, kind: str, *rest: Any) -> Any:
        session = self.sessions[who]
        match kind, *rest:
            case "write", Create(path, data, acl, ephemeral, sequential):
                return await session.create(path, data, acl=acl, ephemeral=ephemeral, sequential=sequential)
            case "write", Delete(path, version):
                return await session.delete(path, version)
            case "write", SetData(path, data, version):
                return await session.set(path, data, version)
            case "write", Check():
                return await session.multi(rest)
            case "multi", operations:
                return await session.multi(operations)
            case "exists", path, watch:
                return await session.exists(path, self._watch(who, watch))
            case "get", path, watch:
                return await session.get(path, self._watch(who, watch))
            case "children", path, watch:
                return await session.get_children(path, self._watch(who, watch))
            case "get_acl", path:
                return await session.get_acl(path)
            case "set_acl", path, acl, version:
                return await session.set_acl(path, acl, version)
            case "sync", path:
                return await session.sync(path)
            case "close", _:
                await session.close()
                self.sessions[who] = await self._open(who)
                self._listen(who)
            case "drop", _:
                await self._reconnected(who, self.world.drop_connection(session))
            case "too_large", path:
                await self._reconnected(who, self._too_large(session, path))
        return None

    async def _too_large(self, session: ZooKeeperSession, path: str) -> None:
        try:
            await session.set(path, bytes(op.JUTE_MAX_BYTES))
        except zk.ConnectionLoss:
            return
        raise AssertionError("a request above jute's bound was answered")

    async def _reconnected(self, who: int, dropping: Awaitable[None]) -> None:
        back = asyncio.Event()
        self.sessions[who].add_listener(lambda state: back.set() if state is SessionState.CONNECTED else None)
        await dropping
        await back.wait()

    def _comparable(self, value: Any) -> Any:
        if isinstance(value, Stat):
            zxids = {name: getattr(value, name) for name in ("czxid", "mzxid", "pzxid")}
            owner = value.ephemeral_owner
            return value._replace(
                ctime=0,
                mtime=int(value.mtime >= value.ctime),
                ephemeral_owner=self._owners[owner] if owner else 0,
                **{name: zxid - self._base for name, zxid in zxids.items()},
            )
        if isinstance(value, list | tuple):
            return type(value)(map(self._comparable, value))
        return value
