"""A member of a group whose coordinator assigns the partitions (group.protocol=consumer, KIP-848).

The rules are in `machines.groups.consumer.member`. Heartbeats run in the background. The changes that they bring
(partitions to give up and to take over) are carried out in the next `poll`, with the callbacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from semel.client.cluster.cluster import Cluster
from semel.client.group.member import GroupMember, Hooks, RebalanceListener
from semel.config import Values
from semel.errors import ErrorCode, KafkaError, Retriable, error_for
from semel.machines.groups.consumer.member import ConsumerMembership, ConsumerMembershipState
from semel.machines.transactions.producer import GroupMetadata


class ConsumerGroupMember(GroupMember):
    """A member of a group of the consumer protocol."""

    def __init__(self, cluster: Cluster, config: Values, hooks: Hooks) -> None:
        self.machine = ConsumerMembership(
            config["group.id"],
            str(cluster.environment.new_uuid()),
            config["group.instance.id"],
            config["client.rack"],
            config["max.poll.interval.ms"],
            config["group.remote.assignor"],
        )
        super().__init__(cluster, config, hooks, self.machine)
        self._wake = asyncio.Event()
        self._stepped_down = False

    @property
    def busy(self) -> bool:
        machine = self.machine
        names = self._cluster.metadata.topic_names
        return (
            bool(machine.lost)
            or machine.state is ConsumerMembershipState.FAILED
            or machine.unnamed(names)
            or machine.wanted(names) != machine.owned
        )

    def subscribe(self, topics: Iterable[str], listener: RebalanceListener) -> None:
        self._listener = listener
        self.machine.subscribe(topics)
        self._wake.set()
        if self._heartbeats is None or self._heartbeats.done():
            self._heartbeats = self._loop.create_task(self._beat())

    def on_commit_refused(self, code: ErrorCode, committed_as: GroupMetadata) -> None:
        self.machine.on_commit_refused(code, committed_as)
        self._wake.set()

    def polled(self) -> None:
        super().polled()
        if self._stepped_down:
            self._stepped_down = False
            self.machine.subscribe(self.machine.topics)
            self._wake.set()

    def _leave_request(self) -> Any:
        return self.machine.leave_request()

    async def follow_topics(self) -> None:
        """Nothing to do: the coordinator sees new topics and partitions by itself."""

    async def settle(self) -> None:
        machine = self.machine
        if machine.lost:
            await self._drop_lost()
            self._wake.set()
        if machine.state is ConsumerMembershipState.FAILED and machine.error is not None:
            raise machine.error
        names = self._cluster.metadata.topic_names
        if machine.unnamed(names):
            await self._learn_names()
        if machine.wanted(names) == machine.owned:
            return
        async with self._hand_over():
            try:
                await self._revoke(machine.owned - machine.wanted(names) - machine.lost)
                added = machine.wanted(names) - machine.owned
                if added:
                    machine.take_on(added)
                    await self._take_over(added)
            finally:
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
            if machine.state is ConsumerMembershipState.MEMBER and self._has_stopped_polling:
                await self._step_down()
            self._wake.clear()
            request = machine.heartbeat_request(self._now_ms())
            if request is None:
                await self._sleep_until(machine.next_heartbeat_ms)
                continue
            tries += 1
            pause_ms = int(self._cluster.backoff(tries) * 1000)
            try:
                response = await self._cluster.request(self._coordinator, request)
            except Retriable as error:
                self._doubt_coordinator()
                self._warn_of_waiting(error)
                machine.on_no_answer(self._now_ms(), pause_ms)
                continue
            except KafkaError as error:
                machine.error, machine.state = error, ConsumerMembershipState.FAILED
                self._notify()
                return
            code = machine.on_response(response, self._now_ms(), pause_ms)
            self._doubt_coordinator(code)
            if code is ErrorCode.NONE:
                tries = 0
                self._waiting_is_over()
            elif code.retriable:
                self._warn_of_waiting(error_for(code, code.meaning))
            if self.busy:
                self._notify()

    async def _sleep_until(self, at_ms: int) -> None:
        """Sleep until then, or until woken up; not too long, to notice a user who stopped polling."""
        wait = max(0.001, min(at_ms / 1000 - self._loop.time(), self._config["heartbeat.interval.ms"] / 1000))
        try:
            async with asyncio.timeout(wait):
                await self._wake.wait()
        except TimeoutError:
            return

    async def _step_down(self) -> None:
        """The user has not polled for max.poll.interval.ms: leave the group until the next poll."""
        self._tell_of_stopped_polling()
        owned = self.machine.owned
        await self._send_ignoring_errors(self._leave_request())
        self.machine.owned = self.machine.lost = owned
        self._stepped_down = True
        self._notify()
