"""A consumer's life in a group whose coordinator assigns (group.protocol=consumer, KIP-848).

The rules are in `machines.consumer_membership`. Heartbeats go on in the background; what they bring (partitions to let
go of and to take on) is carried out when `poll` comes by, callbacks included.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterable

from semel.client.cluster import Cluster, Coordinator
from semel.client.group_member import Listener, tell
from semel.config import Values
from semel.errors import ErrorCode, KafkaError, Retriable
from semel.machines.consumer_membership import ConsumerMembership, State
from semel.machines.contract import TopicPartition
from semel.machines.transaction_manager import GroupMetadata

_COORDINATOR_IN_DOUBT = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


class ConsumerMember:
    """A member of a group of the consumer protocol. See `ClassicMember` for the arguments."""

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
        self._wake = asyncio.Event()
        self._heartbeats: asyncio.Task[None] | None = None
        self.machine = ConsumerMembership(
            config["group.id"],
            str(uuid.uuid4()),
            config["group.instance.id"],
            config["client.rack"],
            config["max.poll.interval.ms"],
            config["group.remote.assignor"],
        )

    @property
    def metadata(self) -> GroupMetadata:
        return self.machine.metadata

    @property
    def busy(self) -> bool:
        machine = self.machine
        names = self._cluster.metadata.topic_names
        return (
            bool(machine.lost)
            or machine.state is State.FAILED
            or machine.unnamed(names)
            or machine.wanted(names) != machine.owned
        )

    def subscribe(self, topics: Iterable[str], listener: Listener) -> None:
        self._listener = listener
        self.machine.subscribe(topics)
        self._wake.set()
        if self._heartbeats is None or self._heartbeats.done():
            self._heartbeats = self._loop.create_task(self._beat())

    def rejoin(self) -> None:
        """Nothing to do: the coordinator sees new partitions by itself."""

    def on_commit_refused(self, code: ErrorCode) -> None:
        if code is ErrorCode.STALE_MEMBER_EPOCH:
            self.machine.hurry()
        elif code in (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID):
            self.machine.fence()
        self._wake.set()

    def polled(self) -> None:
        self._last_poll = self._loop.time()

    async def settle(self) -> None:
        machine = self.machine
        if machine.lost:
            lost = machine.lost
            machine.let_go(lost)
            self._apply(machine.owned)
            await tell(self._listener.on_lost or self._listener.on_revoked, lost)
            self._wake.set()
        if machine.state is State.FAILED and machine.error is not None:
            raise machine.error
        names = self._cluster.metadata.topic_names
        if machine.unnamed(names):
            await self._learn_names()
        revoked = machine.owned - machine.wanted(names)
        if revoked:
            await self._before_revoke()
            await tell(self._listener.on_revoked, revoked)
            machine.let_go(revoked)
            self._apply(machine.owned)
        added = machine.wanted(names) - machine.owned
        if added:
            machine.take_on(added)
            self._apply(machine.owned)
            await tell(self._listener.on_assigned, added)
        if revoked or added:
            self._wake.set()

    async def _learn_names(self) -> None:
        try:
            await self._cluster.refresh_metadata(self.machine.topics)
        except Retriable:
            pass  # asked again below
        if self.machine.unnamed(self._cluster.metadata.topic_names):
            await asyncio.sleep(self._cluster.backoff(1))

    async def _beat(self) -> None:
        machine = self.machine
        tries = 0
        while True:
            idle = self._loop.time() - self._last_poll
            if machine.state is State.MEMBER and idle > self._config["max.poll.interval.ms"] / 1000:
                await self._step_down()
            self._wake.clear()
            request = machine.heartbeat_request(self._now_ms())
            if request is None:
                await self._sleep_until(machine.next_heartbeat_ms)
                continue
            tries += 1
            pause_ms = int(self._cluster.backoff(tries) * 1000)
            try:
                response = await self._cluster.request(Coordinator("group", machine.group_id), request)
            except Retriable:
                self._cluster.forget_coordinator("group", machine.group_id)
                machine.on_no_answer(self._now_ms(), pause_ms)
                continue
            except KafkaError as error:
                machine.error, machine.state = error, State.FAILED
                self._notify()
                return
            code = machine.on_response(response, self._now_ms(), pause_ms)
            if code in _COORDINATOR_IN_DOUBT:
                self._cluster.forget_coordinator("group", machine.group_id)
            if code is ErrorCode.NONE:
                tries = 0
            if self.busy:
                self._notify()

    async def _sleep_until(self, at_ms: int) -> None:
        """Until then, or until there is something to say; at least often enough to see who stopped polling."""
        wait = max(0.001, min(at_ms / 1000 - self._loop.time(), self._config["heartbeat.interval.ms"] / 1000))
        try:
            async with asyncio.timeout(wait):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _step_down(self) -> None:
        """The user has not polled for max.poll.interval.ms: others shall have the partitions."""
        owned, topics = self.machine.owned, self.machine.topics
        await self._say_goodbye()
        self.machine.owned = self.machine.lost = owned
        self.machine.subscribe(topics)
        self._notify()

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    async def leave(self) -> None:
        """Let go of everything in good order, and say goodbye."""
        if self._heartbeats is not None:
            self._heartbeats.cancel()
        owned = self.machine.owned
        if owned:
            await self._before_revoke()
            await tell(self._listener.on_revoked, owned)
        await self._say_goodbye()
        self._apply(())

    async def _say_goodbye(self) -> None:
        request = self.machine.leave_request()
        if request is None:
            return
        try:
            await self._cluster.request(Coordinator("group", self.machine.group_id), request, timeout_ms=5_000)
        except KafkaError:
            self._cluster.forget_coordinator("group", self.machine.group_id)
