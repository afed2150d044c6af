"""What both kinds of group members share: handing partitions over, finding the coordinator, leaving.

Guarantees: partitions are handed over, and callbacks run, only while the user is in `poll`, which returns no records
meanwhile. So the partitions of the records that `poll` returned belong to this member until the next `poll`, and can be
committed. `on_revoked` runs before its partitions are given up; if it raises, they are given up all the same.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
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
_LEAVE_TIMEOUT_MS = 5_000
#: How long a coordinator may be missing before a warning: the first group of a cluster has to wait for one.
_PASSING_S = 5.0

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class RebalanceListener:
    """The user's callbacks for a rebalance."""

    on_assigned: Callback | None = None
    on_revoked: Callback | None = None
    on_lost: Callback | None = None


class MembershipMachine(Protocol):
    """What the machines of both group protocols have in common."""

    group_id: str
    owned: frozenset[TopicPartition]
    lost: frozenset[TopicPartition]

    @property
    def metadata(self) -> GroupMetadata: ...
    def let_go(self, partitions: Iterable[TopicPartition]) -> None: ...


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a member may call of its consumer."""

    #: Read these partitions, and no others.
    apply: Callable[[Iterable[TopicPartition]], None]
    #: Partitions are about to be given up: commit, if that is configured.
    before_revoke: Callable[[], Awaitable[None]]
    #: Wake up a `poll` that waits.
    notify: Callable[[], None]


class GroupMember(ABC):
    """A consumer's membership in its group."""

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
        #: The log says why this member has lost its partitions.
        self._loss_is_told = False
        #: Partitions are being handed over: `poll` returns no records.
        self.handing_over = False

    @property
    def metadata(self) -> GroupMetadata:
        """The member in whose name offsets are committed."""
        return self._membership.metadata

    @property
    def in_touch(self) -> bool:
        """Whether heartbeats are running and the group still has this member."""
        return self._heartbeats is not None and not self._heartbeats.done() and not self._membership.lost

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether `settle` has something to do for the group."""

    @abstractmethod
    def subscribe(self, topics: Iterable[str], listener: RebalanceListener) -> None:
        """Change the topics of this member and its listener."""

    @abstractmethod
    async def settle(self) -> None:
        """Do what the group asks for: join, give partitions up, take partitions over."""

    @abstractmethod
    def on_commit_refused(self, code: ErrorCode, committed_as: GroupMetadata) -> None:
        """A commit in this name was refused because the group has moved on."""

    @abstractmethod
    def _leave_request(self) -> Any:
        """The request that ends the membership; None if this is not a member."""

    @abstractmethod
    async def follow_topics(self) -> None:
        """Check for changes to topics that the coordinator does not see by itself."""

    def polled(self) -> None:
        """The user is in `poll`, and so alive."""
        self._last_poll = self._loop.time()
        self._in_poll.set()

    def poll_over(self) -> None:
        """`poll` has returned to the user."""
        self._in_poll.clear()

    def alive(self) -> None:
        """The user iterates over records, and so is alive. From any thread."""
        self._last_poll = self._loop.time()

    @property
    def _has_stopped_polling(self) -> bool:
        idle_s = self._loop.time() - self._last_poll
        return not self._in_poll.is_set() and idle_s > self._config["max.poll.interval.ms"] / 1000

    def _tell_of_stopped_polling(self) -> None:
        self._loss_is_told = bool(self._membership.owned)
        _log.warning(
            "group '%s': nobody called poll() for %.1f s, and max.poll.interval.ms=%d: this member leaves until the "
            "next poll, and others read its partitions from what is committed. Take less at a time "
            "(max.poll.records), or raise max.poll.interval.ms",
            self._membership.group_id,
            self._loop.time() - self._last_poll,
            self._config["max.poll.interval.ms"],
        )

    # --- handing over ---------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _hand_over(self) -> AsyncIterator[None]:
        if not self._in_poll.is_set():
            self._notify()  # a user who iterates has to come to `poll`
        await self._in_poll.wait()
        self.handing_over = True
        try:
            yield
        finally:
            self.handing_over = False
            self._notify()

    async def _drop_lost(self) -> None:
        """Drop partitions that the group has given away already. Nothing can be committed for them."""
        async with self._hand_over():
            lost = self._membership.lost
            if lost and not self._loss_is_told:
                _log.warning(
                    "group '%s' has removed this member: %d partitions are lost, and others may have read on in them "
                    "from what is committed (no heartbeat arrived in time, or another has its group.instance.id)",
                    self._membership.group_id,
                    len(lost),
                )
            self._loss_is_told = False
            self._membership.let_go(lost)
            self._apply(self._membership.owned)
            await _call_listener(self._listener.on_lost or self._listener.on_revoked, lost)

    async def _revoke(self, partitions: frozenset[TopicPartition]) -> None:
        """Give these partitions up, after committing and telling the listener. To be called while handing over."""
        if not partitions:
            return
        try:
            await self._before_revoke()
            await _call_listener(self._listener.on_revoked, partitions)
        finally:
            self._membership.let_go(partitions)
            self._apply(self._membership.owned)

    async def _take_over(self, partitions: frozenset[TopicPartition]) -> None:
        """Take these partitions over. To be called while handing over."""
        self._apply(self._membership.owned)
        await _call_listener(self._listener.on_assigned, partitions)

    # --- the coordinator ------------------------------------------------------------------------------------------

    @property
    def _coordinator(self) -> Coordinator:
        return Coordinator("group", self._membership.group_id)

    def _doubt_coordinator(self, error_code: int | None = None) -> None:
        """Look up the coordinator again; with an error code, only if it says that the coordinator has moved."""
        if error_code is None or error_code in _COORDINATOR_IN_DOUBT:
            self._cluster.forget_coordinator("group", self._membership.group_id)

    def _warn_of_waiting(self, error: KafkaError) -> None:
        """Warn that the coordinator cannot be reached. A broker that is down is reported by its connection."""
        if not isinstance(error, Disconnected):
            group_id = self._membership.group_id
            what = f"group '{group_id}' cannot be joined"
            self._cluster.wait_warnings.begin(("group", group_id), what, error.why, after_s=_PASSING_S)

    def _waiting_is_over(self) -> None:
        self._cluster.wait_warnings.end(("group", self._membership.group_id))

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    async def leave(self) -> None:
        """Commit, tell the listener, and leave, so that others need not wait for session.timeout.ms."""
        if self._heartbeats is not None:
            self._heartbeats.cancel()
        owned = self._membership.owned
        try:
            if owned:
                await self._before_revoke()
                await _call_listener(self._listener.on_revoked, owned)
        finally:
            await self._send_ignoring_errors(self._leave_request())
            self._apply(())

    async def quit(self) -> None:
        """Leave, without committing or telling the listener."""
        if self._heartbeats is not None:
            self._heartbeats.cancel()
        await self._send_ignoring_errors(self._leave_request())

    async def _send_ignoring_errors(self, request: Any) -> None:
        """Send a request whose failure does not matter: the coordinator notices when the session times out."""
        if request is None:
            return
        try:
            await self._cluster.request(self._coordinator, request, timeout_ms=_LEAVE_TIMEOUT_MS)
        except KafkaError:
            self._doubt_coordinator()


async def _call_listener(callback: Callback | None, partitions: Iterable[TopicPartition]) -> None:
    """Call a listener's callback, and wait for it if it is a coroutine."""
    if callback is None:
        return
    result = callback(sorted(partitions))
    if inspect.isawaitable(result):
        await result
