"""A consumer's life in a classic group: joins when `poll` asks for it, sends heartbeats in between.

The rules are in `machines.membership`; this module owns the requests, the clock and the listener's callbacks. Callbacks
run before the partitions they speak of change hands, so that a revoked partition can still be committed.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from semel.client.cluster import Cluster, Coordinator
from semel.config import Values
from semel.errors import ErrorCode, KafkaError, Retriable
from semel.machines.contract import TopicPartition
from semel.machines.membership import Membership, State
from semel.machines.transaction_manager import GroupMetadata

Callback = Callable[[list[TopicPartition]], object]

#: A join waits for every member: longer than any one request, but not for ever.
_JOIN_GRACE_MS = 5_000


@dataclass(slots=True)
class Listener:
    """What the consumer's user wants to be told."""

    on_assigned: Callback | None = None
    on_revoked: Callback | None = None
    on_lost: Callback | None = None


async def tell(callback: Callback | None, partitions: Iterable[TopicPartition]) -> None:
    """Call a listener's callback, and wait for it where it is a coroutine."""
    if callback is None:
        return
    result = callback(sorted(partitions, key=lambda p: (p.topic, p.partition)))
    if inspect.isawaitable(result):
        await result


class Member(Protocol):
    """What a consumer needs of its membership, whichever protocol the group speaks."""

    @property
    def metadata(self) -> GroupMetadata: ...
    @property
    def busy(self) -> bool:
        """Whether the group wants something of this member that `settle` has to do."""
        ...

    def subscribe(self, topics: Iterable[str], listener: Listener) -> None: ...
    async def settle(self) -> None:
        """Do what the group wants: join, let go, take over."""
        ...

    def rejoin(self) -> None: ...
    def on_commit_refused(self, code: ErrorCode) -> None: ...
    def polled(self) -> None:
        """The user is alive."""
        ...

    async def leave(self) -> None: ...


class ClassicMember:
    """A member of a group of the classic protocol.

    `apply(partitions)` makes the consumer read exactly these; `before_revoke()` is its chance to commit.
    """

    def __init__(
        self,
        cluster: Cluster,
        config: Values,
        *,
        apply: Callable[[Iterable[TopicPartition]], None],
        before_revoke: Callable[[], Awaitable[None]],
        notify: Callable[[], None],
    ) -> None:
        self._cluster = cluster
        self._config = config
        self._apply = apply
        self._before_revoke = before_revoke
        self._notify = notify
        self._listener = Listener()
        self._loop = asyncio.get_running_loop()
        self._last_poll = self._loop.time()
        self._last_answer = self._loop.time()
        self._heartbeats: asyncio.Task[None] | None = None
        self.machine = Membership(
            config["group.id"],
            config["group.instance.id"],
            config["session.timeout.ms"],
            config["max.poll.interval.ms"],
            config["heartbeat.interval.ms"],
            tuple(config["partition.assignment.strategy"]),
            config["client.rack"],
        )

    @property
    def metadata(self) -> GroupMetadata:
        return self.machine.metadata

    @property
    def busy(self) -> bool:
        return self.machine.state is not State.STABLE or bool(self.machine.lost)

    def subscribe(self, topics: Iterable[str], listener: Listener) -> None:
        self._listener = listener
        self.machine.subscribe(topics)
        if self.machine.state is State.LEFT:
            self.machine.state = State.UNJOINED

    def rejoin(self) -> None:
        self.machine.rejoin()

    def on_commit_refused(self, code: ErrorCode) -> None:
        self.machine.on_commit_refused(code)

    def polled(self) -> None:
        self._last_poll = self._loop.time()

    # --- joining --------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        tries = 0
        while self.busy:
            machine = self.machine
            if machine.lost:
                lost = machine.lost
                machine.let_go(lost)
                self._apply(machine.owned)
                listener = self._listener
                await tell(listener.on_lost or listener.on_revoked, lost)
            if machine.state is State.FAILED and machine.error is not None:
                raise machine.error
            if machine.state is State.LEFT:
                return
            await self._revoke(machine.to_revoke())
            try:
                await self._join_once()
            except Retriable:
                machine.on_disconnect()
                self._cluster.forget_coordinator("group", machine.group_id)
            if machine.state is not State.STABLE:
                tries += 1
                # The first answer to a new member is only its id: that is no reason to wait.
                await asyncio.sleep(0 if tries == 1 else self._cluster.backoff(tries))

    async def _join_once(self) -> None:
        machine = self.machine
        to = Coordinator("group", machine.group_id)
        timeout_ms = max(self._config["request.timeout.ms"], self._config["max.poll.interval.ms"] + _JOIN_GRACE_MS)
        response = await self._cluster.request(to, machine.join_request(), timeout_ms=timeout_ms)
        machine.on_join(response)
        self._doubt_coordinator(response.error_code)
        if machine.state is State.ASSIGNING:
            machine.assign(await self._count_partitions(machine.topics_to_assign()))
        if machine.state is not State.SYNCING:
            return
        response = await self._cluster.request(to, machine.sync_request(), timeout_ms=timeout_ms)
        added, gone = machine.on_sync(response, self._now_ms())
        self._doubt_coordinator(response.error_code)
        if not machine.is_stable:
            return
        self._last_answer = self._loop.time()
        if self._heartbeats is None or self._heartbeats.done():
            self._heartbeats = self._loop.create_task(self._beat())
        if gone:
            await self._revoke(gone)
            machine.rejoin()
        self._apply(machine.owned)
        await tell(self._listener.on_assigned, added)

    async def _revoke(self, partitions: frozenset[TopicPartition]) -> None:
        if not partitions:
            return
        await self._before_revoke()
        await tell(self._listener.on_revoked, partitions)
        self.machine.let_go(partitions)
        self._apply(self.machine.owned)

    async def _count_partitions(self, topics: frozenset[str]) -> dict[str, int]:
        try:
            await self._cluster.refresh_metadata(topics)
        except Retriable:
            raise
        except KafkaError:
            pass  # one topic that may not be read does not keep the others from being shared out
        known = self._cluster.metadata.topics
        return {topic: len(known[topic].partitions) for topic in topics if topic in known}

    def _doubt_coordinator(self, error_code: int) -> None:
        if error_code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            self._cluster.forget_coordinator("group", self.machine.group_id)

    # --- heartbeats -----------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        """For as long as this is a member, whether the user polls or not; one who does not for too long is none."""
        machine = self.machine
        while True:
            next_ms = machine.next_heartbeat_ms if machine.is_alive else self._now_ms() + machine.heartbeat_interval_ms
            await asyncio.sleep(max(0.0, next_ms / 1000 - self._loop.time()))
            idle = self._loop.time() - self._last_poll
            if machine.is_alive and idle > self._config["max.poll.interval.ms"] / 1000:
                await self._send(machine.on_poll_interval_passed())
                self._notify()
            request = machine.heartbeat_request(self._now_ms())
            if request is not None:
                await self._beat_once(request)
                if not machine.is_stable:
                    self._notify()

    async def _beat_once(self, request: Any) -> None:
        machine = self.machine
        generation_id = machine.generation_id
        try:
            response = await self._cluster.request(
                Coordinator("group", machine.group_id), request, timeout_ms=self._config["session.timeout.ms"]
            )
        except KafkaError:
            self._cluster.forget_coordinator("group", machine.group_id)
            machine.next_heartbeat_ms = self._now_ms() + int(self._cluster.backoff(1) * 1000)
            if self._loop.time() - self._last_answer > self._config["session.timeout.ms"] / 1000:
                machine.on_silence()
            return
        if machine.generation_id == generation_id:
            self._last_answer = self._loop.time()
            machine.on_heartbeat(response)
        self._doubt_coordinator(response.error_code)

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    # --- leaving --------------------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Say goodbye, so that the others need not wait for the session to run out."""
        if self._heartbeats is not None:
            self._heartbeats.cancel()
        owned = self.machine.owned
        if owned:
            await self._before_revoke()
            await tell(self._listener.on_revoked, owned)
        await self._send(self.machine.leave_request("the consumer was closed or unsubscribed"))
        self._apply(())

    async def _send(self, request: Any) -> None:
        """Say something that needs no answer: whoever does not hear it finds out by the session's end."""
        if request is None:
            return
        try:
            await self._cluster.request(Coordinator("group", self.machine.group_id), request, timeout_ms=5_000)
        except KafkaError:
            self._cluster.forget_coordinator("group", self.machine.group_id)
