"""What handlers say in a cluster: who leads, when a write is committed, and where to go instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from semel.broker.replication.partition import ReplicatedPartition
from semel.errors import ErrorCode, Refused
from semel.machines.replication.leader import Fetched
from semel.machines.replication.values import FetchFrom
from semel.wire.messages.fetch import FetchResponse
from semel.wire.messages.produce import ProduceResponse

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.fetch_sessions import FetchedPartition
    from semel.broker.replication.membership import Membership
    from semel.broker.server import BrokerServer
    from semel.broker.topics.partition import Partition
    from semel.broker.topics.topic import Topic
    from semel.wire.messages.fetch import FetchRequest

#: From these versions on an answer may say who leads (KIP-951).
PRODUCE_HINTS_SINCE, FETCH_HINTS_SINCE = 10, 16


def led(membership: Membership, topic: str, index: int) -> tuple[ErrorCode, int, int, list[int], list[int], list[int]]:
    """(error, leader, leader epoch, replicas, in-sync replicas, offline replicas) of a partition, for Metadata."""
    state, replicas = membership.state_of(topic, index)
    live = membership.live_brokers()
    offline = [broker for broker in replicas if broker not in live]
    if state is None or state.leader not in live:
        epoch = -1 if state is None else state.leader_epoch
        in_sync = [] if state is None else list(state.isr)
        return ErrorCode.LEADER_NOT_AVAILABLE, -1, epoch, list(replicas), in_sync, offline
    return ErrorCode.NONE, state.leader, state.leader_epoch, list(replicas), list(state.isr), offline


def brokers(membership: Membership, call: Call) -> list[tuple[int, str, int, str | None]]:
    """(id, host, port, rack) of every live broker, as the client's listener has it."""
    rows = []
    for broker in membership.live_brokers():
        address = membership.address_of(broker, call.connection.listener_name)
        if address is not None:
            rows.append((broker, *address, membership.reader.registrations[broker].rack))
    return rows


# Produce


def check_may_write(partition: Partition, acks: int) -> None:
    """Before a batch is appended: somebody must lead, and with acks=all enough replicas must be there (P3)."""
    if isinstance(partition, ReplicatedPartition):
        _ = partition.log
        if acks == -1 and partition.replica is not None:
            partition.replica.check_enough_replicas()


def once_committed(
    broker: BrokerServer,
    written: list[Partition],
    answers: list[ProduceResponse.PartitionProduceResponse],
    acks: int,
    timeout_ms: int,
) -> Any:
    """None, or a coroutine that returns when every batch is committed, or has its error in its answer."""
    waits = []
    for partition, answer in zip(written, answers, strict=True):
        assert isinstance(partition, ReplicatedPartition)
        replica = partition.replica
        if replica is None:
            answer.error_code, answer.base_offset = ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
            continue
        replica.appended()
        if acks == -1:
            # The end of the log is at or past this batch, and for a retry past its original.
            wait = replica.wait_for(replica.log.end_offset)
            if not wait.done() or wait.result() is not ErrorCode.NONE:
                waits.append((wait, answer))
    return _wait_for_all(waits, timeout_ms) if waits else None


async def _wait_for_all(
    waits: list[tuple[asyncio.Future[ErrorCode], ProduceResponse.PartitionProduceResponse]], timeout_ms: int
) -> None:
    pending = [wait for wait, _ in waits if not wait.done()]
    if pending:
        await asyncio.wait(pending, timeout=timeout_ms / 1000)
    for wait, answer in waits:
        code = wait.result() if wait.done() else ErrorCode.REQUEST_TIMED_OUT
        if not wait.done():
            wait.cancel()
        if code is not ErrorCode.NONE:
            answer.error_code, answer.base_offset = code, -1


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


# Fetch of a replica


def check_replica(broker: BrokerServer, request: FetchRequest, call: Call) -> None:
    """A fetch that says it comes from a replica: only from a broker of this cluster, in its current life (P4)."""
    replica = request.replica_state.replica_id if call.version >= 15 else request.replica_id
    membership = broker.cluster
    if membership is None or call.version < 15 or replica not in membership.image.brokers or replica == broker.node_id:
        raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"{replica} is not a replica of this cluster")
    inter_broker = broker.settings["inter.broker.listener.name"] or broker.listening.listeners[0].name
    if call.connection.listener_name != inter_broker:
        why = f"replicas come by the listener {inter_broker} (inter.broker.listener.name)"
        raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, why)
    if request.replica_state.replica_epoch < membership.image.broker_epoch(replica):
        raise Refused(ErrorCode.STALE_BROKER_EPOCH, f"broker {replica} has begun another life since")


def fetched_by_replica(partition: Partition, request: FetchRequest, one: FetchedPartition) -> Fetched:
    """What the leader says to a follower's fetch. `Refused` with its error."""
    replica = partition.replica if isinstance(partition, ReplicatedPartition) else None
    if replica is None:
        raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{partition} is not led by this broker")
    state = request.replica_state
    fetched = replica.fetched(
        FetchFrom(
            state.replica_id, state.replica_epoch, one.current_leader_epoch, one.fetch_offset, one.last_fetched_epoch
        )
    )
    if fetched.error is not ErrorCode.NONE:
        raise Refused(fetched.error, f"broker {state.replica_id} cannot fetch {partition}")
    return fetched
