"""Drives the group coordinator in the real host, over a log in memory."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from semel.broker.coordinators.host import CoordinatorHost
from semel.errors import ErrorCode
from semel.machines.contract import AnswerParked, Decision
from semel.machines.groups.coordinator import GroupCoordinator, GroupSettings, TopicInfo
from semel.wire import encode_versioned
from semel.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse
from semel.wire.messages.coordinator_records import ConsumerProtocolSubscription
from semel.wire.messages.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
    SyncGroupResponse,
)
from semel.wire.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from semel.wire.messages.transactions import TxnOffsetCommitRequest
from tests.machines.fake_broker import FakeBroker, LogEntry, LogMarker

GROUP = "payments"
TOPICS = {"ledger": TopicInfo(UUID(int=1), 4), "audit": TopicInfo(UUID(int=2), 2)}


def subscription(*topics: str) -> bytes:
    return encode_versioned(ConsumerProtocolSubscription(topics=list(topics)), 1)


class Answers:
    """Performs `AnswerParked` by keeping the answers, by token."""

    def __init__(self) -> None:
        self.by_token: dict[int, Any] = {}

    def perform(self, effect: AnswerParked) -> None:
        assert effect.token not in self.by_token, "a request is answered once"
        self.by_token[effect.token] = effect.reply

    def is_awaited(self, _: AnswerParked) -> bool:
        return True


class GroupDriver:
    """Sends requests to a coordinator in the broker's own host; `fail_next` makes the next append fail."""

    def __init__(
        self, settings: GroupSettings | None = None, now_ms: int = 1_000_000, log: list[LogEntry] | None = None
    ) -> None:
        self.settings = settings or GroupSettings(group_initial_rebalance_delay_ms=0)
        self.broker = FakeBroker(now_ms)
        self.broker.log = [] if log is None else log
        self.tokens = 0
        self.ids = 0
        self.parked = Answers()
        self.coordinator = GroupCoordinator(self.settings, TOPICS)
        self.host = CoordinatorHost(
            self.broker.as_broker(),
            "__consumer_offsets",
            self.coordinator,
            {AnswerParked: self.parked},
            replay_marker=self._replay_marker,
        )
        for partition in range(self.settings.offsets_topic_num_partitions):
            self.host.ready(partition)

    def _replay_marker(self, partition: int, producer_id: int, commit: bool) -> None:
        self.coordinator.complete_transaction(producer_id, partition, commit)

    @property
    def now_ms(self) -> int:
        return self.broker.clock_ms

    @property
    def log(self) -> list[LogEntry]:
        return self.broker.log

    @property
    def answers(self) -> dict[int, Any]:
        return self.parked.by_token

    @property
    def fail_next(self) -> bool:
        return self.broker.fail_next

    @fail_next.setter
    def fail_next(self, fails: bool) -> None:
        self.broker.fail_next = fails

    @property
    def failures(self) -> int:
        return self.broker.failures

    def do(self, decision: Decision[Any]) -> Any:
        """Have the host write a decision and carry it out."""
        failures = self.failures
        reply = self.host.settle(decision)
        if self.failures > failures:
            # Parked requests hear of a failed append in the next turn of the loop.
            self.broker.loop.run_due()
        return reply

    def marker(self, producer_id: int, *, commit: bool, group: str = GROUP) -> None:
        """End a transaction in the partition of this group."""
        marker = LogMarker(self.coordinator.partition_for(group), producer_id, commit)
        self.log.append(marker)
        self._replay_marker(marker.partition, producer_id, commit)

    def at(self, now_ms: int) -> None:
        """Let time pass, firing the host's timer whenever it is due."""
        loop = self.broker.loop
        while (wake_ms := loop.next_at_ms()) is not None and wake_ms <= now_ms:
            self.broker.clock_ms = max(self.broker.clock_ms, int(wake_ms))
            loop.run_due()
        self.broker.clock_ms = now_ms

    def pass_ms(self, ms: int) -> None:
        self.at(self.now_ms + ms)

    def restarted(self) -> GroupDriver:
        """Another broker, with nothing but the log."""
        other = GroupDriver(self.settings, self.now_ms, list(self.log))
        other.tokens, other.ids = self.tokens, self.ids
        return other

    # Requests

    def token(self) -> int:
        self.tokens += 1
        return self.tokens

    def new_member_id(self) -> str:
        self.ids += 1
        return f"{self.ids:08}"

    def answered(self, token: int, decision: Decision[Any]) -> Any:
        reply = self.do(decision)
        return reply if reply is not None else self.answers.get(token)

    def join(
        self,
        member_id: str = "",
        *,
        group: str = GROUP,
        version: int = 9,
        instance: str | None = None,
        protocols: list[tuple[str, bytes]] | None = None,
        protocol_type: str = "consumer",
        session_ms: int = 10_000,
        rebalance_ms: int = 60_000,
        client_id: str = "app",
    ) -> tuple[int, JoinGroupResponse | None]:
        """The token, and the answer if there is one already."""
        token = self.token()
        offered = [("range", subscription("ledger"))] if protocols is None else protocols
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=session_ms,
            rebalance_timeout_ms=rebalance_ms,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocols=[JoinGroupRequest.JoinGroupRequestProtocol(name=n, metadata=m) for n, m in offered],
        )
        decision = self.coordinator.join_group(
            request, version, self.now_ms, token, client_id, "/127.0.0.1", self.new_member_id
        )
        return token, self.answered(token, decision)

    def admitted(self, **options: Any) -> tuple[str, int, JoinGroupResponse | None]:
        """Join as a client does: ask for an id, then join with it."""
        _, asked = self.join(**options)
        assert asked is not None and asked.error_code == ErrorCode.MEMBER_ID_REQUIRED
        token, reply = self.join(asked.member_id, **options)
        return asked.member_id, token, reply

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: dict[str, bytes] | None = None,
        *,
        group: str = GROUP,
        instance: str | None = None,
        protocol_type: str | None = None,
        protocol_name: str | None = None,
    ) -> tuple[int, SyncGroupResponse | None]:
        token = self.token()
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type=protocol_type,
            protocol_name=protocol_name,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=m, assignment=a)
                for m, a in (assignments or {}).items()
            ],
        )
        version = 4 if protocol_type is None or protocol_name is None else 5
        return token, self.answered(token, self.coordinator.sync_group(request, version, self.now_ms, token))

    def heartbeat(
        self, member_id: str, generation: int, *, group: str = GROUP, instance: str | None = None
    ) -> ErrorCode:
        request = HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        return ErrorCode(self.do(self.coordinator.heartbeat(request, 4, self.now_ms)).error_code)

    def leave(self, *members: tuple[str, str | None], group: str = GROUP) -> LeaveGroupResponse:
        request = LeaveGroupRequest(
            group_id=group,
            members=[LeaveGroupRequest.MemberIdentity(member_id=m, group_instance_id=i) for m, i in members],
        )
        reply: LeaveGroupResponse = self.do(self.coordinator.leave_group(request, 5, self.now_ms))
        return reply

    def stable_group(self, count: int, **options: Any) -> tuple[list[str], int]:
        """A group of so many members, each with an assignment `b"a<position>"`, and its generation."""
        members: list[str] = []
        tokens: dict[str, int] = {}
        for _ in range(count):
            member_id, token, _ = self.admitted(**options)
            for other in members:
                token_again, _ = self.join(other, **options)
                tokens[other] = token_again
            members.append(member_id)
            tokens[member_id] = token
        group = self.coordinator.groups[options.get("group", GROUP)]
        self.pass_ms(self.settings.group_initial_rebalance_delay_ms)
        generation = group.generation_id  # type: ignore[union-attr]
        given = {member_id: f"a{position}".encode() for position, member_id in enumerate(members)}
        leader = group.leader_id  # type: ignore[union-attr]
        for member_id in [*[m for m in members if m != leader], leader]:
            self.sync(member_id, generation, given if member_id == leader else None, group=group.group_id)
        assert group.state.value == "Stable", group.state
        return members, generation

    def commit(
        self,
        offset: int = 10,
        *,
        member_id: str = "",
        generation: int = -1,
        instance: str | None = None,
        group: str = GROUP,
        topic: str = "ledger",
        partition: int = 0,
        version: int = 9,
        metadata: str | None = "",
        retention_ms: int = -1,
    ) -> ErrorCode:
        request = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance,
            retention_time_ms=retention_ms,
            topics=[
                OffsetCommitRequest.OffsetCommitRequestTopic(
                    name=topic,
                    topic_id=TOPICS[topic].topic_id if topic in TOPICS else UUID(int=99),
                    partitions=[
                        OffsetCommitRequest.OffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=metadata
                        )
                    ],
                )
            ],
        )
        reply = self.do(self.coordinator.offset_commit(request, version, self.now_ms))
        return ErrorCode(reply.topics[0].partitions[0].error_code)

    def txn_commit(
        self,
        offset: int = 10,
        *,
        producer_id: int = 7,
        member_id: str = "",
        generation: int = -1,
        instance: str | None = None,
        group: str = GROUP,
        topic: str = "ledger",
        partition: int = 0,
    ) -> ErrorCode:
        request = TxnOffsetCommitRequest(
            transactional_id="t",
            group_id=group,
            producer_id=producer_id,
            producer_epoch=0,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            topics=[
                TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=""
                        )
                    ],
                )
            ],
        )
        reply = self.do(self.coordinator.txn_offset_commit(request, 3, self.now_ms))
        return ErrorCode(reply.topics[0].partitions[0].error_code)

    def consumer_heartbeat(
        self,
        member_id: str,
        epoch: int,
        *,
        owned: dict[UUID, list[int]] | None = None,
        topics: list[str] | None = None,
        regex: str | None = None,
        instance: str | None = None,
        assignor: str | None = None,
        rebalance_ms: int | None = None,
        group: str = GROUP,
        version: int = 1,
    ) -> ConsumerGroupHeartbeatResponse:
        """A heartbeat; a join (epoch 0) brings what a join must unless told otherwise."""
        joining = epoch == 0
        if joining:
            owned = {} if owned is None else owned
            topics = ["ledger"] if topics is None and regex is None else topics
        request = ConsumerGroupHeartbeatRequest(
            group_id=group,
            member_id=member_id,
            member_epoch=epoch,
            instance_id=instance,
            rebalance_timeout_ms=(30_000 if joining else -1) if rebalance_ms is None else rebalance_ms,
            subscribed_topic_names=topics,
            subscribed_topic_regex=regex,
            server_assignor=assignor,
            topic_partitions=None
            if owned is None
            else [
                ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in owned.items()
            ],
        )
        decision = self.coordinator.consumer_group_heartbeat(
            request, version, self.now_ms, "app", "/127.0.0.1", self.new_member_id
        )
        reply: ConsumerGroupHeartbeatResponse = self.do(decision)
        return reply

    def fetched(
        self, *, group: str = GROUP, topic: str = "ledger", partition: int = 0, require_stable: bool = False
    ) -> tuple[int, ErrorCode]:
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequest.OffsetFetchRequestGroup(
                    group_id=group,
                    topics=[OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])],
                )
            ],
            require_stable=require_stable,
        )
        reply = self.do(self.coordinator.offset_fetch(request, 9, self.now_ms)).groups[0]
        if reply.error_code:
            return -1, ErrorCode(reply.error_code)
        found = reply.topics[0].partitions[0]
        return found.committed_offset, ErrorCode(found.error_code)
