"""A member of a classic group: joins within `poll`, and sends heartbeats in the background.

The rules are in `machines.groups.classic.member`. This module owns the requests and the clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from semel.client.cluster.cluster import Cluster
from semel.client.group.member import GroupMember, Hooks, RebalanceListener
from semel.config import Values
from semel.errors import ErrorCode, KafkaError, Retriable, error_for
from semel.machines.groups.classic.member import ClassicMembership, ClassicMembershipState
from semel.machines.transactions.producer import GroupMetadata

#: A join waits for all members, so it may take longer than other requests; this is added to their time limit.
_JOIN_GRACE_MS = 5_000


class ClassicGroupMember(GroupMember):
    """A member of a group of the classic protocol."""

    def __init__(self, cluster: Cluster, config: Values, hooks: Hooks) -> None:
        self.machine = ClassicMembership(
            config["group.id"],
            config["group.instance.id"],
            config["session.timeout.ms"],
            config["max.poll.interval.ms"],
            config["heartbeat.interval.ms"],
            tuple(config["partition.assignment.strategy"]),
            config["client.rack"],
        )
        super().__init__(cluster, config, hooks, self.machine)
        self._last_answer = self._loop.time()
        #: As the group's leader: how many partitions each topic had when they were assigned.
        self._shared_out: dict[str, int] | None = None

    @property
    def busy(self) -> bool:
        return self.machine.state is not ClassicMembershipState.STABLE or bool(self.machine.lost)

    def subscribe(self, topics: Iterable[str], listener: RebalanceListener) -> None:
        self._listener = listener
        self.machine.subscribe(topics)
        if self.machine.state is ClassicMembershipState.LEFT:
            self.machine.state = ClassicMembershipState.UNJOINED

    def on_commit_refused(self, code: ErrorCode, committed_as: GroupMetadata) -> None:
        self.machine.on_commit_refused(code, committed_as)

    def _leave_request(self) -> Any:
        return self.machine.leave_request("the consumer was closed or unsubscribed")

    # --- joining --------------------------------------------------------------------------------------------------

    async def settle(self) -> None:
        machine = self.machine
        tries = 0
        while self.busy:
            if machine.lost:
                await self._drop_lost()
                continue
            if machine.state is ClassicMembershipState.FAILED and machine.error is not None:
                raise machine.error
            if machine.state is ClassicMembershipState.LEFT:
                return
            if machine.to_revoke():
                async with self._hand_over():
                    await self._revoke(machine.to_revoke())
                continue  # meanwhile a heartbeat may have told that the group removed this member
            try:
                await self._join_once()
            except Retriable as error:
                machine.on_disconnect()
                self._doubt_coordinator()
                self._warn_of_waiting(error)
            if machine.state is ClassicMembershipState.STABLE:
                self._waiting_is_over()
            else:
                tries += 1
                # The first response to a new member only holds its id: no need to wait.
                await asyncio.sleep(0 if tries == 1 else self._cluster.backoff(tries))

    async def _join_once(self) -> None:
        machine = self.machine
        to = self._coordinator
        timeout_ms = max(self._config["request.timeout.ms"], self._config["max.poll.interval.ms"] + _JOIN_GRACE_MS)
        # A broker holds a join until all members have joined: commits must not wait behind it on the same connection.
        response = await self._cluster.request(to, machine.join_request(), timeout_ms=timeout_ms, lane="join")
        machine.on_join(response)
        self._doubt_coordinator(response.error_code)
        code = ErrorCode.of(response.error_code)
        if code.retriable:
            self._warn_of_waiting(error_for(code, code.meaning))
        self._shared_out = None
        if machine.state is ClassicMembershipState.ASSIGNING:
            self._shared_out = await self._count_partitions(machine.topics_to_assign())
            machine.assign(self._shared_out)
        if machine.state is not ClassicMembershipState.SYNCING:
            return
        response = await self._cluster.request(to, machine.sync_request(), timeout_ms=timeout_ms, lane="join")
        added, gone = machine.on_sync(response, self._now_ms())
        self._doubt_coordinator(response.error_code)
        if not machine.is_stable:
            return
        self._last_answer = self._loop.time()
        if self._heartbeats is None or self._heartbeats.done():
            self._heartbeats = self._loop.create_task(self._beat())
        async with self._hand_over():
            if machine.lost:
                return  # the group removed this member while the user was busy
            if gone or machine.has_news:
                machine.rejoin()
                await self._revoke(gone)
            await self._take_over(added)

    async def follow_topics(self) -> None:
        """As leader, assign again if a topic has more partitions, was created or was deleted."""
        machine = self.machine
        if self._shared_out is None or not machine.is_stable:
            return
        if await self._count_partitions(machine.topics_to_assign()) != self._shared_out:
            machine.rejoin()

    async def _count_partitions(self, topics: frozenset[str]) -> dict[str, int]:
        try:
            await self._cluster.refresh_metadata(topics)
        except Retriable:
            raise
        except KafkaError:
            pass  # one topic that must not be read does not keep the others from being assigned
        known = self._cluster.metadata.topics
        return {topic: len(known[topic].partitions) for topic in topics if topic in known}

    # --- heartbeats -----------------------------------------------------------------------------------------------

    async def _beat(self) -> None:
        """Send heartbeats as long as this is a member. A user who stops polling for too long ends the membership."""
        machine = self.machine
        while True:
            next_ms = machine.next_heartbeat_ms if machine.is_alive else self._now_ms() + machine.heartbeat_interval_ms
            # A millisecond at least: between two of them the machine would say "wait" again and again.
            await asyncio.sleep(max(0.001, next_ms / 1000 - self._loop.time()))
            if machine.is_alive and self._has_stopped_polling:
                self._tell_of_stopped_polling()
                await self._send_ignoring_errors(machine.on_poll_interval_passed())
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
                self._coordinator, request, timeout_ms=self._config["session.timeout.ms"]
            )
        except KafkaError:
            self._doubt_coordinator()
            machine.next_heartbeat_ms = self._now_ms() + int(self._cluster.backoff(1) * 1000)
            if self._loop.time() - self._last_answer > self._config["session.timeout.ms"] / 1000:
                machine.on_silence()
            return
        if machine.generation_id == generation_id:
            self._last_answer = self._loop.time()
            machine.on_heartbeat(response)
        self._doubt_coordinator(response.error_code)
