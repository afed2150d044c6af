"""Groups and their offsets: every request goes to the group coordinator, through its host."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from copy import copy
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from semel.broker.access.operations import authorized_operations, visible_topics
from semel.broker.coordinators.transactions import for_writer
from semel.broker.dispatch import Pace
from semel.broker.handlers.transactions import once_settled
from semel.broker.handlers.verification import must_ask
from semel.broker.topics.internal import CONSUMER_OFFSETS
from semel.errors import ErrorCode, Refused
from semel.machines.groups.classic.rebalance import refuse_join
from semel.machines.internal_topics import after_failed_append
from semel.machines.security.access import ResourceType
from semel.machines.values import TopicPartition
from semel.wire.messages.consumer_groups import ConsumerGroupDescribeResponse
from semel.wire.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.server import BrokerServer

#: From this version on the sender of a TxnOffsetCommit knows TRANSACTION_ABORTABLE.
ABORTABLE_SINCE = 4
#: From this version on a TxnOffsetCommit adds its partition to the transaction by itself (KIP-890).
IMPLICIT_ADD_SINCE = 5


#: How many partitions of a commit, members of a LeaveGroup, and groups of a request are handled in one piece.
PARTITIONS_AT_ONCE = 100
MEMBERS_AT_ONCE = 200
#: The protocols of all members are compared whenever a member joins. Clients name two or three.
MOST_PROTOCOLS = 1000
#: The subscription of a member of the consumer protocol is one record, written and read in one piece.
MOST_SUBSCRIBED = 5000
GROUPS_AT_ONCE = 20


def _answer(broker: BrokerServer, request: Any, call: Call, command: Callable[..., Any], groups: Iterable[str]) -> Any:
    for group_id in groups:
        broker.groups.host.ready_for(group_id)
    return broker.groups.host.answer(command(request, call.version, broker.now_ms()), *groups)


def _about_groups(
    broker: BrokerServer, call: Call, command: Callable[..., Any], request: Any, field: str, answers: str
) -> Generator[None, None, Any]:
    """Serve a request about many groups, some at a time. Each group is handled once, and in one piece."""
    shell = broker.groups
    names = list(dict.fromkeys(getattr(request, field)))
    reply = None
    terms: dict[int, int] = {}
    for start in range(0, max(len(names), 1), GROUPS_AT_ONCE):
        some = names[start : start + GROUPS_AT_ONCE]
        for group_id in some:
            shell.host.begin_reply(group_id, terms)
            yield
        part = copy(request)
        setattr(part, field, some)
        answered = shell.host.settle(command(part, call.version, broker.now_ms()))
        if getattr(request, "include_authorized_operations", False):
            _add_operations(broker, call, answered.groups)
        if reply is None:
            reply = answered
        else:
            getattr(reply, answers).extend(getattr(answered, answers))
        yield
    return shell.host.once_on_disk(reply, terms)


def _add_operations(broker: BrokerServer, call: Call, groups: Iterable[Any]) -> None:
    for group in groups:
        if group.error_code == ErrorCode.NONE:
            group.authorized_operations = authorized_operations(broker, call, ResourceType.GROUP, group.group_id)


def _parts(request: Any) -> list[Any]:
    """Split a commit or deletion of offsets into parts that are small enough for one piece."""
    parts: list[Any] = []
    room = 0
    for topic in request.topics:
        for start in range(0, max(len(topic.partitions), 1), PARTITIONS_AT_ONCE):
            piece = copy(topic)
            piece.partitions = topic.partitions[start : start + PARTITIONS_AT_ONCE]
            size = len(piece.partitions) + 1
            if size > room:
                parts.append(copy(request))
                parts[-1].topics = []
                room = PARTITIONS_AT_ONCE + 1
            parts[-1].topics.append(piece)
            room -= size
    return parts


def _is_large(request: Any) -> bool:
    return len(request.topics) + sum(len(topic.partitions) for topic in request.topics) > PARTITIONS_AT_ONCE


async def _in_parts(broker: BrokerServer, request: Any, call: Call, serve: Callable[[Any], Any]) -> Any:
    """Serve a request part by part. Each part is decided by itself: the group may have changed in between."""
    pace = Pace(broker, call)
    reply = None
    for part in _parts(request):
        answered = serve(part)
        if type(answered) is CoroutineType:
            answered = await answered
        if getattr(answered, "error_code", ErrorCode.NONE) != ErrorCode.NONE:
            return answered
        if reply is None:
            reply = answered
        else:
            last, first = reply.topics[-1:], answered.topics[:1]
            if last and first and (last[0].name, _id(last[0])) == (first[0].name, _id(first[0])):
                last[0].partitions.extend(first[0].partitions)
                del answered.topics[:1]
            reply.topics.extend(answered.topics)
        await pace.rest()
    return reply


def _id(topic: Any) -> Any:
    return getattr(topic, "topic_id", None)


def join_group(broker: BrokerServer, request: Any, call: Call) -> Any:
    """Join a group, or wait until the others have joined."""
    if len(request.protocols) > MOST_PROTOCOLS:
        why = f"a member may name {MOST_PROTOCOLS} assignment protocols, not {len(request.protocols)}"
        raise Refused(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, why)
    cluster = broker.cluster
    if cluster is not None:
        index = broker.groups.coordinator.partition_for(request.group_id)
        if cluster.coordinators.lacks_replicas(CONSUMER_OFFSETS, index):
            return _join_once_it_can_be_written(broker, request, call, index)
    return _join_group(broker, request, call)


async def _join_once_it_can_be_written(broker: BrokerServer, request: Any, call: Call, index: int) -> Any:
    """While too few replicas are in sync the assignment could not be written, and the members would join again at once,
    generation after generation."""
    assert broker.cluster is not None
    if not await broker.cluster.coordinators.enough_replicas(CONSUMER_OFFSETS, index):
        return refuse_join(ErrorCode.COORDINATOR_NOT_AVAILABLE, call.version, request.member_id)
    reply = _join_group(broker, request, call)
    return await reply if type(reply) is CoroutineType else reply


def _join_group(broker: BrokerServer, request: Any, call: Call) -> Any:
    shell = broker.groups
    shell.host.ready_for(request.group_id)
    token = shell.parked.new_token()
    decision = shell.coordinator.join_group(
        request,
        call.version,
        broker.now_ms(),
        token,
        call.client_id,
        "/" + call.connection.peer[0],
        lambda: str(broker.environment.new_uuid()),
        visible_topics(broker, call),
    )
    return shell.answer_or_park(decision, token)


def sync_group(broker: BrokerServer, request: Any, call: Call) -> Any:
    """Get the assignment, or wait until the leader has sent it."""
    shell = broker.groups
    shell.host.ready_for(request.group_id)
    token = shell.parked.new_token()
    return shell.answer_or_park(shell.coordinator.sync_group(request, call.version, broker.now_ms(), token), token)


def heartbeat(broker: BrokerServer, request: Any, call: Call) -> Any:
    """Record that a member is alive."""
    return _answer(broker, request, call, broker.groups.coordinator.heartbeat, (request.group_id,))


def leave_group(broker: BrokerServer, request: Any, call: Call) -> Any:
    """Remove members, very many of them in parts."""
    if len(request.members) > MEMBERS_AT_ONCE:
        return _leave_in_parts(broker, request, call)
    return _answer(broker, request, call, broker.groups.coordinator.leave_group, (request.group_id,))


async def _leave_in_parts(broker: BrokerServer, request: Any, call: Call) -> Any:
    pace = Pace(broker, call)
    reply = None
    for start in range(0, len(request.members), MEMBERS_AT_ONCE):
        part = copy(request)
        part.members = request.members[start : start + MEMBERS_AT_ONCE]
        answered = _answer(broker, part, call, broker.groups.coordinator.leave_group, (request.group_id,))
        if type(answered) is CoroutineType:
            answered = await answered
        if answered.error_code != ErrorCode.NONE:
            return answered
        if reply is None:
            reply = answered
        else:
            reply.members.extend(answered.members)
        await pace.rest()
    return reply


def offset_commit(broker: BrokerServer, request: Any, call: Call) -> Any:
    """Commit offsets, very many of them in parts."""

    def serve(part: Any) -> Any:
        return _answer(broker, part, call, broker.groups.coordinator.offset_commit, (request.group_id,))

    return _in_parts(broker, request, call, serve) if _is_large(request) else serve(request)


def txn_offset_commit(broker: BrokerServer, request: TxnOffsetCommitRequest, call: Call) -> Any:
    """Commit offsets that count when the transaction commits. The coordinator must know the partition before."""
    if not request.group_id:
        return txn_offset_commit_refused(request, ErrorCode.INVALID_GROUP_ID)

    def serve(part: TxnOffsetCommitRequest) -> Any:
        if broker.cluster is not None:
            return _txn_offset_commit_once_admitted(broker, part, call)
        commit = partial(_txn_offset_commit, broker, part, call)
        if call.version >= IMPLICIT_ADD_SINCE:
            return once_settled(broker, (request.transactional_id,), commit)
        return commit()

    return _in_parts(broker, request, call, serve) if _is_large(request) else serve(request)


def _txn_offset_commit(broker: BrokerServer, request: TxnOffsetCommitRequest, call: Call) -> Any:
    shell = broker.groups
    if not shell.host.ready_for(request.group_id):
        return txn_offset_commit_refused(request, ErrorCode.NOT_COORDINATOR)
    index = shell.coordinator.partition_for(request.group_id)
    log = broker.internal_topics.get(CONSUMER_OFFSETS).partition(index).log
    first = log.start_verification(request.producer_id, request.producer_epoch, -1) is not None
    implicit_add = call.version >= IMPLICIT_ADD_SINCE
    if first and not implicit_add and not broker.settings.transaction_partition_verification_enable:
        first = False
    if first or broker.transactions.asks_every_time:
        code = broker.transactions.admit(
            request.transactional_id,
            request.producer_id,
            request.producer_epoch,
            CONSUMER_OFFSETS,
            index,
            verify_only=not first or not implicit_add,
            knows_abortable=call.version >= ABORTABLE_SINCE,
        )
        if code != ErrorCode.NONE:
            return txn_offset_commit_refused(request, code)
        if first and implicit_add and broker.durability.coordinator_first:
            return _commit_after_the_coordinator(broker, request, call)
    return shell.host.answer(shell.coordinator.txn_offset_commit(request, call.version, broker.now_ms()))


async def _txn_offset_commit_once_admitted(broker: BrokerServer, request: TxnOffsetCommitRequest, call: Call) -> Any:
    """In a cluster another broker may coordinate the transaction: it is asked first, then all is checked again."""
    from semel.broker.replication.admission import Asked, Verification

    assert broker.cluster is not None
    shell = broker.groups
    if shell.host.ready_for(request.group_id):
        index = shell.coordinator.partition_for(request.group_id)
        producer = request.producer_id, request.producer_epoch
        verification = Verification(shell.host.loaded[index], producer, -1, supports_epoch_bump=False)
        verification.begin(broker.now_ms())
        implicit_add = call.version >= IMPLICIT_ADD_SINCE
        if must_ask(broker, verification.guard, implicit_add):
            target = TopicPartition(CONSUMER_OFFSETS, index)
            asked = Asked(request.transactional_id, *producer, verification.guard is None or not implicit_add)
            codes = await broker.cluster.admissions.ask(asked, {target: verification})
            code = for_writer(codes[target], call.version >= ABORTABLE_SINCE)
            if code is ErrorCode.NONE:
                try:
                    verification.check_verified()
                except Refused as refused:
                    code = refused.code
            if code is not ErrorCode.NONE:
                return txn_offset_commit_refused(request, after_failed_append(code))
    reply = shell.host.answer(shell.coordinator.txn_offset_commit(request, call.version, broker.now_ms()))
    return await reply if type(reply) is CoroutineType else reply


async def _commit_after_the_coordinator(broker: BrokerServer, request: TxnOffsetCommitRequest, call: Call) -> Any:
    """Commit once the coordinator's record is on disk. It must be there before the transaction's first offset."""
    await broker.transactions.host.on_disk(request.transactional_id)
    shell = broker.groups
    reply = shell.host.answer(shell.coordinator.txn_offset_commit(request, call.version, broker.now_ms()))
    return await reply if type(reply) is CoroutineType else reply


def txn_offset_commit_refused(request: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
    """The refusal of every partition."""
    row = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[row(partition_index=one.partition_index, error_code=code) for one in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def offset_fetch(broker: BrokerServer, request: Any, call: Call) -> Generator[None, None, Any]:
    """Fetch committed offsets. With fsync they are on disk before the reply: a consumer continues from them at once."""
    shell = broker.groups
    groups = [group.group_id for group in request.groups] if call.version >= 8 else [request.group_id]
    terms: dict[int, int] = {}
    for group_id in groups:
        shell.host.begin_reply(group_id, terms)
        yield
    reply = yield from shell.coordinator.fetch_offsets_in_steps(request, call.version)
    return shell.host.once_on_disk(reply, terms)


def offset_delete(broker: BrokerServer, request: Any, call: Call) -> Any:
    """Delete committed offsets."""

    def serve(part: Any) -> Any:
        return _answer(broker, part, call, broker.groups.coordinator.offset_delete, (request.group_id,))

    return _in_parts(broker, request, call, serve) if _is_large(request) else serve(request)


def describe_groups(broker: BrokerServer, request: Any, call: Call) -> Any:
    """Describe the members of groups and their assignments."""
    return _about_groups(broker, call, broker.groups.coordinator.describe_groups, request, "groups", "groups")


def list_groups(broker: BrokerServer, request: Any, call: Call) -> Generator[None, None, Any]:
    """List all groups."""
    yield from broker.groups.host.load_all()
    return (yield from broker.groups.coordinator.list_groups_in_steps(request))


def delete_groups(broker: BrokerServer, request: Any, call: Call) -> Any:
    """Delete groups that have no members."""
    return _about_groups(broker, call, broker.groups.coordinator.delete_groups, request, "groups_names", "results")


_NOT_SERVED = "group.coordinator.rebalance.protocols leaves the consumer protocol out"


def serves_consumer_protocol(broker: BrokerServer) -> bool:
    """Whether groups of the consumer protocol are served at all."""
    return "consumer" in broker.settings["group.coordinator.rebalance.protocols"]


def consumer_group_heartbeat(broker: BrokerServer, request: Any, call: Call) -> Any:
    """Serve the heartbeat of a member of the consumer protocol (KIP-848): the reply is its assignment."""
    if not serves_consumer_protocol(broker):
        raise Refused(ErrorCode.UNSUPPORTED_VERSION, _NOT_SERVED)
    if len(request.subscribed_topic_names or ()) > MOST_SUBSCRIBED:
        raise Refused(
            ErrorCode.INVALID_REQUEST,
            f"a member may subscribe to {MOST_SUBSCRIBED} topics by name: subscribe with a regular expression instead",
        )
    shell = broker.groups
    shell.host.ready_for(request.group_id)
    decision = shell.coordinator.consumer_group_heartbeat(
        request,
        call.version,
        broker.now_ms(),
        call.client_id,
        "/" + call.connection.peer[0],
        lambda: str(broker.environment.new_uuid()),
        visible_topics(broker, call),
    )
    return shell.host.answer(decision)


def consumer_group_describe(broker: BrokerServer, request: Any, call: Call) -> Any:
    """Describe groups of the consumer protocol."""
    if not serves_consumer_protocol(broker):
        code, group = ErrorCode.UNSUPPORTED_VERSION, ConsumerGroupDescribeResponse.DescribedGroup
        names = dict.fromkeys(request.group_ids)
        refused = [group(group_id=name, error_code=code, error_message=_NOT_SERVED) for name in names]
        return ConsumerGroupDescribeResponse(groups=refused)
    command = broker.groups.coordinator.consumer_group_describe
    return _about_groups(broker, call, command, request, "group_ids", "groups")
