"""What handlers say in a cluster: who leads, when a write is committed, and where to go instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from semel.broker.later_reply import LaterReply
from semel.broker.replication.partition import ReplicatedPartition
from semel.config.broker import RACK_AWARE_SELECTOR
from semel.errors import ErrorCode, Refused
from semel.machines.replication.nearest import Candidate, nearest_replica
from semel.records.layout import PRODUCER, PRODUCER_AT
from semel.wire.messages.fetch import FetchResponse
from semel.wire.messages.produce import ProduceResponse

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.replication.membership import Membership
    from semel.broker.server import BrokerServer
    from semel.broker.topics.partition import Partition
    from semel.broker.topics.topic import Topic
    from semel.log.partition_log import PartitionLog
    from semel.wire.messages.fetch import FetchRequest

#: From these versions on an answer may say who leads (KIP-951).
PRODUCE_HINTS_SINCE, FETCH_HINTS_SINCE = 10, 16


def led(membership: Membership, topic: str, index: int) -> tuple[ErrorCode, int, int, list[int], list[int], list[int]]:
    """(error, leader, leader epoch, replicas, in-sync replicas, offline replicas) of a partition, for Metadata.

    A leader whose port refuses connections is told to nobody: a client that is sent back to it waits for a second and
    more before it asks again, one that is told of no leader a tenth of that.
    """
    state, replicas = membership.state_of(topic, index)
    live = membership.live_brokers()
    offline = [broker for broker in replicas if broker not in live]
    if state is None or state.leader not in live or membership.certificates.refuses(state.leader):
        epoch = -1 if state is None else state.leader_epoch
        in_sync = [] if state is None else list(state.isr)
        return ErrorCode.LEADER_NOT_AVAILABLE, -1, epoch, list(replicas), in_sync, offline
    return ErrorCode.NONE, state.leader, state.leader_epoch, list(replicas), list(state.isr), offline


def brokers(membership: Membership, call: Call, *, live_only: bool) -> list[tuple[int, str, int, str | None]]:
    """(id, host, port, rack) of the brokers, as the client's listener has it."""
    registrations = membership.reader.registrations if live_only else membership.named_brokers.all()
    rows = []
    for broker, registration in sorted(registrations.items()):
        address = membership.address_in(registration, call.connection.listener_name)
        if address is not None:
            rows.append((broker, *address, registration.rack))
    return rows


def fenced_brokers(membership: Membership, call: Call) -> list[tuple[int, str, int, str | None]]:
    """The same of brokers that the cluster knows and that are not there."""
    rows = []
    for broker, registration in membership.named_brokers.gone().items():
        address = membership.address_in(registration, call.connection.listener_name)
        if address is not None:
            rows.append((broker, *address, registration.rack))
    return rows


# Produce


def check_may_write(partition: Partition, acks: int, records: Any, now_ms: int) -> None:
    """Before a batch is appended: somebody must lead, and with acks=all enough replicas must be there (P3). What was
    sent behind a batch that was refused for one of these must not overtake it."""
    if not isinstance(partition, ReplicatedPartition):
        return
    refused = partition.refused_batches
    try:
        log = partition.log
        if acks == -1 and partition.replica is not None:
            partition.replica.check_enough_replicas()
    except Refused as error:
        producer_id, producer_epoch, first_sequence = PRODUCER.unpack_from(records, PRODUCER_AT)
        refused.add(producer_id, producer_epoch, first_sequence, error.code, now_ms)
        raise
    if len(refused):
        producer_id, producer_epoch, first_sequence = PRODUCER.unpack_from(records, PRODUCER_AT)
        expected = log.producers.expected_sequence(producer_id, producer_epoch)
        code = refused.holding_back(producer_id, producer_epoch, first_sequence, expected, now_ms)
        if code is not None:
            raise Refused(code, f"{partition}: an earlier batch of producer {producer_id} was refused and comes first")


def once_committed(
    broker: BrokerServer,
    call: Call,
    written: list[Partition],
    acks: int,
    timeout_ms: int,
    response: ProduceResponse,
    answers: list[ProduceResponse.PartitionProduceResponse],
) -> LaterReply | None:
    """The reply that comes when every batch is committed, or has its error in its answer; None if all are now."""
    waits: _Waits | None = None
    for partition, answer in zip(written, answers, strict=True):
        assert isinstance(partition, ReplicatedPartition)
        replica = partition.replica
        if replica is None:
            answer.error_code, answer.base_offset = ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
            continue
        replica.appended()
        if acks == -1:
            if waits is None:
                waits = _Waits(broker, call, response)
            # The end of the log is at or past this batch, and for a retry past its original.
            code = replica.tell_when_committed(replica.log.end_offset, partial(waits.told, answer))
            if code is None:
                waits.open[id(answer)] = answer
            elif code is not ErrorCode.NONE:
                answer.error_code, answer.base_offset = code, -1
    if waits is None or not waits.open:
        return None
    waits.timer = broker.loop.call_later(timeout_ms / 1000, waits.time_is_up)
    return waits.later


class _Waits:
    """A produce of which some batches are not committed yet."""

    __slots__ = ("_broker", "_call", "_response", "later", "open", "timer")

    def __init__(self, broker: BrokerServer, call: Call, response: ProduceResponse) -> None:
        self._broker = broker
        self._call = call
        self._response = response
        self.later = LaterReply()
        #: Their answers.
        self.open: dict[int, ProduceResponse.PartitionProduceResponse] = {}
        self.timer: asyncio.TimerHandle | None = None

    def told(self, answer: ProduceResponse.PartitionProduceResponse, code: ErrorCode) -> None:
        if self.open.pop(id(answer), None) is None:
            return  # its time was up
        if code is not ErrorCode.NONE:
            answer.error_code, answer.base_offset = code, -1
        if not self.open:
            self._finish()

    def time_is_up(self) -> None:
        for answer in self.open.values():
            answer.error_code, answer.base_offset = ErrorCode.REQUEST_TIMED_OUT, -1
        self.open.clear()
        self._finish()

    def _finish(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
        hint_produce(self._broker, self._call, self._response)
        self.later.finish(self._response)


def hint_produce(broker: BrokerServer, call: Call, response: ProduceResponse) -> None:
    """Say who leads what we do not (KIP-951)."""
    if broker.cluster is None or call.version < PRODUCE_HINTS_SINCE:
        return
    leaders: set[int] = set()
    for topic in response.responses:
        for row in topic.partition_responses:
            if row.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER:
                found = _leader_of(broker, topic.name, topic.topic_id, row.index)
                if found is not None:
                    row.current_leader = ProduceResponse.LeaderIdAndEpoch(leader_id=found[0], leader_epoch=found[1])
                    leaders.add(found[0])
    response.node_endpoints = _endpoints(broker.cluster, call, leaders, ProduceResponse.NodeEndpoint)


def hint_fetch(broker: BrokerServer, call: Call, response: FetchResponse) -> None:
    """The same for a Fetch."""
    if broker.cluster is None or call.version < FETCH_HINTS_SINCE:
        return
    leaders: set[int] = set()
    codes = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH)
    for topic in response.responses:
        for row in topic.partitions:
            if row.error_code in codes:
                found = _leader_of(broker, topic.topic, topic.topic_id, row.partition_index)
                if found is not None:
                    row.current_leader = FetchResponse.LeaderIdAndEpoch(leader_id=found[0], leader_epoch=found[1])
                    leaders.add(found[0])
    response.node_endpoints = _endpoints(broker.cluster, call, leaders, FetchResponse.NodeEndpoint)


def _leader_of(broker: BrokerServer, name: str, topic_id: UUID, index: int) -> tuple[int, int] | None:
    topic: Topic | None = broker.topics.topics.get(name) or broker.topics.by_id.get(topic_id)
    if topic is None or broker.cluster is None:
        return None
    code, leader, epoch, *_ = led(broker.cluster, topic.name, index)
    return (leader, epoch) if code is ErrorCode.NONE and leader != broker.node_id else None


def _endpoints(membership: Membership, call: Call, leaders: Iterable[int], row: Callable[..., Any]) -> list[Any]:
    found = []
    for leader in sorted(leaders):
        address = membership.address_of(leader, call.connection.listener_name)
        if address is not None:
            rack = membership.reader.registrations[leader].rack
            found.append(row(node_id=leader, host=address[0], port=address[1], rack=rack))
    return found


# Fetch from the nearest replica (KIP-392)


def nearest(broker: BrokerServer, partition: Partition, rack: str, offset: int) -> int | None:
    """The follower that a client in this rack should read from; None: this leader."""
    membership = broker.cluster
    replica = partition.replica if isinstance(partition, ReplicatedPartition) else None
    leader = None if replica is None else replica.leader
    if membership is None or leader is None or broker.settings["replica.selector.class"] != RACK_AWARE_SELECTOR:
        return None
    assert isinstance(partition, ReplicatedPartition)
    registrations = membership.reader.registrations
    followers = [
        Candidate(fed.feed.follower, registrations[fed.feed.follower].rack, fed.start_offset)
        for fed in partition.feeds
        if fed.feed.follower in registrations
    ]
    return nearest_replica(leader, broker.rack, followers, rack, offset)


def log_for_reader(partition: Partition) -> PartitionLog:
    """The log of this broker's replica, for a client that may read from followers."""
    if isinstance(partition, ReplicatedPartition) and partition.reader_role < 0:
        raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker has no replica of {partition}")
    return partition.own_log


# Fetch of a replica


def check_replica(broker: BrokerServer, request: FetchRequest, call: Call) -> None:
    """A fetch that says it comes from a replica: only from a broker of this cluster, in its current life (P4)."""
    replica = request.replica_state.replica_id if call.version >= 15 else request.replica_id
    membership = broker.cluster
    if membership is None or call.version < 15 or replica not in membership.image.brokers or replica == broker.node_id:
        raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{replica} is not a replica of this cluster")
    inter_broker = membership.door.listener.name
    if call.connection.listener_name != inter_broker:
        why = f"replicas come by the listener {inter_broker} (inter.broker.listener.name)"
        raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, why)
    if request.replica_state.replica_epoch < membership.image.broker_epoch(replica):
        raise Refused(ErrorCode.STALE_BROKER_EPOCH, f"broker {replica} has begun another life since")
