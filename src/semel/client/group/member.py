"""What every member of a group does, whichever protocol the group speaks: hand partitions over, be heard, say goodbye.

Guarantees: partitions change hands, and callbacks run, only while the user is in `poll`, which hands out nothing
meanwhile. So what `poll` returned is this member's until the next `poll`, and can be committed whole. Callbacks run
before the partitions they speak of are gone, and one that raises does not keep them from going.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from semel.client.cluster.cluster import Cluster, Coordinator
from semel.config import Values
from semel.errors import Disconnected, ErrorCode, KafkaError
from semel.machines.transactions.producer import GroupMetadata
from semel.machines.values import TopicPartition

Callback = Callable[[list[TopicPartition]], object]

_COORDINATOR_IN_DOUBT = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)
_GOODBYE_MS = 5_000
#: How long a coordinator may be looked for before that is told: the first group of a cluster waits for one.
_PASSING_S = 5.0


@dataclass(slots=True)
class RebalanceListener:
    """What the consumer's user wants to be told."""

    on_assigned: Callback | None = None
    on_revoked: Callback | None = None
    on_lost: Callback | None = None


class MembershipMachine(Protocol):
    """The part of a membership that both protocols have."""

    group_id: str
    owned: frozenset[TopicPartition]
    lost: frozenset[TopicPartition]

    @property
    def metadata(self) -> GroupMetadata: ...
    def let_go(self, partitions: Iterable[TopicPartition]) -> None: ...


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a member may ask of its consumer."""

    #: Read exactly these partitions.
    apply: Callable[[Iterable[TopicPartition]], None]
    #: Commit, if that is wanted: partitions are about to go.
    before_revoke: Callable[[], Awaitable[None]]
    #: Wake a `poll` that waits.
    notify: Callable[[], None]


class GroupMember(ABC):
    """A consumer's place in its group."""

    def __init__(self, cluster: Cluster, config: Values, hooks: Hooks, machine: MembershipMachine) -> None:
        self._cluster = cluster
        self._config = config
        self._membership = machine
        self._apply, self._before_revoke, self._notify = hooks.apply, hooks.before_revoke, hooks.notify
        self._listener = RebalanceListener()
        self._loop = asyncio.get_running_loop()
        self._last_poll = self._loop.time()
        self._in_poll = asyncio.Event()
        self._heartbeats: asyncio.Task[None] | None = None
        #: Partitions are changing hands: nothing may be handed out.
        self.handing_over = False

    @property
    def metadata(self) -> GroupMetadata:
        """As whom to commit."""
        return self._membership.metadata

    @property
    def in_touch(self) -> bool:
        """Whether heartbeats go on and the group counts this member in."""
        return self._heartbeats is not None and not self._heartbeats.done() and not self._membership.lost

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether the group wants something of this member that `settle` has to do."""

    @abstractmethod
    def subscribe(self, topics: Iterable[str], listener: RebalanceListener) -> None:
        """Change what this member wants to read, and who is told of what it gets."""

    @abstractmethod
    async def settle(self) -> None:
        """Do what the group wants: join, let go, take over."""

    @abstractmethod
    def on_commit_refused(self, code: ErrorCode, committed_as: GroupMetadata) -> None:
        """A commit, made under this name, was refused because the group has moved on."""

    @abstractmethod
    def _goodbye(self) -> Any:
        """The request that ends the membership; None for one who is no member."""

    @abstractmethod
    async def follow_topics(self) -> None:
        """From time to time: has anything changed that the group does not see by itself?"""

    def polled(self) -> None:
        """The user is in `poll`, and alive."""
        self._last_poll = self._loop.time()
        self._in_poll.set()

    def poll_over(self) -> None:
        """The user has what `poll` returned."""
        self._in_poll.clear()

    def alive(self) -> None:
        """The user takes records one by one, and is alive. From any thread."""
        self._last_poll = self._loop.time()

    @property
    def _polls_no_more(self) -> bool:
        idle_s = self._loop.time() - self._last_poll
        return not self._in_poll.is_set() and idle_s > self._config["max.poll.interval.ms"] / 1000

    # --- handing over ---------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _hand_over(self) -> AsyncIterator[None]:
        if not self._in_poll.is_set():
            self._notify()  # one who takes records one by one is to come to `poll`
        await self._in_poll.wait()
        self.handing_over = True
        try:
            yield
        finally:
            self.handing_over = False
            self._notify()

    async def _drop_lost(self) -> None:
        """The group has given these away already: nothing can be committed for them."""
        async with self._hand_over():
            lost = self._membership.lost
            self._membership.let_go(lost)
            self._apply(self._membership.owned)
            await _tell(self._listener.on_lost or self._listener.on_revoked, lost)

    async def _revoke(self, partitions: frozenset[TopicPartition]) -> None:
        """Let go of these in good order. To be called while handing over."""
        if not partitions:
            return
        try:
            await self._before_revoke()
            await _tell(self._listener.on_revoked, partitions)
        finally:
            self._membership.let_go(partitions)
            self._apply(self._membership.owned)

    async def _take_over(self, partitions: frozenset[TopicPartition]) -> None:
        """Read these too. To be called while handing over."""
        self._apply(self._membership.owned)
        await _tell(self._listener.on_assigned, partitions)

    # --- the coordinator ------------------------------------------------------------------------------------------

    @property
    def _coordinator(self) -> Coordinator:
        return Coordinator("group", self._membership.group_id)

    def _doubt_coordinator(self, error_code: int | None = None) -> None:
        """Look for it anew; with a code, only if that says that it is another one."""
        if error_code is None or error_code in _COORDINATOR_IN_DOUBT:
            self._cluster.forget_coordinator("group", self._membership.group_id)

    def _warn_of_waiting(self, error: KafkaError) -> None:
        """The group's coordinator cannot be had. A broker that is down is told of where it is noticed."""
        if not isinstance(error, Disconnected):
            group_id = self._membership.group_id
            what = f"group '{group_id}' cannot be joined"
            self._cluster.wait_warnings.begin(("group", group_id), what, error.why, after_s=_PASSING_S)

    def _waiting_is_over(self) -> None:
        self._cluster.wait_warnings.end(("group", self._membership.group_id))

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    async def leave(self) -> None:
        """Let go of everything in good order, and say goodbye: the others need not wait for the session to run out."""
        if self._heartbeats is not None:
            self._heartbeats.cancel()
        owned = self._membership.owned
        try:
            if owned:
                await self._before_revoke()
                await _tell(self._listener.on_revoked, owned)
        finally:
            await self._say(self._goodbye())
            self._apply(())

    async def quit(self) -> None:
        """Say goodbye and nothing else: nobody is there to commit or to be told."""
        if self._heartbeats is not None:
            self._heartbeats.cancel()
        await self._say(self._goodbye())

    async def _say(self, request: Any) -> None:
        """Say something that needs no answer: whoever does not hear it finds out by the session's end."""
        if request is None:
            return
        try:
            await self._cluster.request(self._coordinator, request, timeout_ms=_GOODBYE_MS)
        except KafkaError:
            self._doubt_coordinator()


async def _tell(callback: Callback | None, partitions: Iterable[TopicPartition]) -> None:
    """Call a listener's callback, and wait for it where it is a coroutine."""
    if callback is None:
        return
    result = callback(sorted(partitions))
    if inspect.isawaitable(result):
        await result
