"""Groups and their offsets: every request goes to the group coordinator's machine, through its host."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from semel.broker.partitions import CONSUMER_OFFSETS
from semel.errors import ErrorCode, Refused
from semel.wire.messages.consumer_groups import ConsumerGroupDescribeResponse
from semel.wire.messages.transactions import TxnOffsetCommitRequest, TxnOffsetCommitResponse

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.server import BrokerServer

#: From this version on the sender of a TxnOffsetCommit knows TRANSACTION_ABORTABLE.
ABORTABLE_SINCE = 4
#: From this version on a TxnOffsetCommit adds its partition to the transaction by itself (KIP-890).
IMPLICIT_ADD_SINCE = 5


def _served(broker: BrokerServer, request: Any, call: Call, command: Callable[..., Any], groups: Iterable[str]) -> Any:
    for group_id in groups:
        broker.groups.ready_for(group_id)
    return broker.groups.answer(command(request, call.version, broker.now_ms()), *groups)


def join_group(broker: BrokerServer, request: Any, call: Call) -> Any:
    """Join, or wait for the others to."""
    host = broker.groups
    host.ready_for(request.group_id)
    token = host.new_token()
    decision = host.machine.join_group(
        request,
        call.version,
        broker.now_ms(),
        token,
        call.client_id,
        "/" + call.connection.peer[0],
        lambda: str(uuid.uuid4()),
    )
    return host.answer_or_park(decision, token)


def sync_group(broker: BrokerServer, request: Any, call: Call) -> Any:
    """Get the assignment, or wait for the leader's."""
    host = broker.groups
    host.ready_for(request.group_id)
    token = host.new_token()
    return host.answer_or_park(host.machine.sync_group(request, call.version, broker.now_ms(), token), token)


def heartbeat(broker: BrokerServer, request: Any, call: Call) -> Any:
    """A member is alive."""
    return _served(broker, request, call, broker.groups.machine.heartbeat, (request.group_id,))


def leave_group(broker: BrokerServer, request: Any, call: Call) -> Any:
    """Members go."""
    return _served(broker, request, call, broker.groups.machine.leave_group, (request.group_id,))


def offset_commit(broker: BrokerServer, request: Any, call: Call) -> Any:
    """Offsets, at once."""
    return _served(broker, request, call, broker.groups.machine.offset_commit, (request.group_id,))


def txn_offset_commit(broker: BrokerServer, request: TxnOffsetCommitRequest, call: Call) -> Any:
    """Offsets that count when the transaction commits. Before any is written the coordinator must know of them."""
    if not request.group_id:
        return _txn_offset_commit_refused(request, ErrorCode.INVALID_GROUP_ID)
    if call.version >= IMPLICIT_ADD_SINCE:
        serve = partial(_txn_offset_commit, broker, request, call)
        return broker.transactions.once_settled((request.transactional_id,), serve)
    return _txn_offset_commit(broker, request, call)


def _txn_offset_commit(broker: BrokerServer, request: TxnOffsetCommitRequest, call: Call) -> Any:
    host = broker.groups
    if not host.ready_for(request.group_id):
        return _txn_offset_commit_refused(request, ErrorCode.NOT_COORDINATOR)
    index = host.machine.partition_for(request.group_id)
    log = broker.internal_topic(CONSUMER_OFFSETS).partition(index).log
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
            return _txn_offset_commit_refused(request, code)
        if first and broker.flusher is not None and implicit_add:
            return _commit_after_the_coordinator(broker, request, call)
    return host.answer(host.machine.txn_offset_commit(request, call.version, broker.now_ms()))


async def _commit_after_the_coordinator(broker: BrokerServer, request: TxnOffsetCommitRequest, call: Call) -> Any:
    """With fsync, the coordinator's record is on disk before the first offset of the transaction is written."""
    await broker.transactions.on_disk(request.transactional_id)
    host = broker.groups
    reply = host.answer(host.machine.txn_offset_commit(request, call.version, broker.now_ms()))
    return await reply if type(reply) is CoroutineType else reply


def _txn_offset_commit_refused(request: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
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


def offset_fetch(broker: BrokerServer, request: Any, call: Call) -> Any:
    """Committed offsets; with fsync, once they are on disk: a consumer may go on from them at once."""
    groups = [group.group_id for group in request.groups] if call.version >= 8 else [request.group_id]
    return _served(broker, request, call, broker.groups.machine.offset_fetch, groups)


def offset_delete(broker: BrokerServer, request: Any, call: Call) -> Any:
    """Forget committed offsets."""
    return _served(broker, request, call, broker.groups.machine.offset_delete, (request.group_id,))


def describe_groups(broker: BrokerServer, request: Any, call: Call) -> Any:
    """Members and assignments."""
    return _served(broker, request, call, broker.groups.machine.describe_groups, request.groups)


def list_groups(broker: BrokerServer, request: Any, call: Call) -> Any:
    """Every group."""
    broker.groups.load_all()
    return _served(broker, request, call, broker.groups.machine.list_groups, ())


def delete_groups(broker: BrokerServer, request: Any, call: Call) -> Any:
    """Forget groups without members."""
    return _served(broker, request, call, broker.groups.machine.delete_groups, request.groups_names)


_NOT_SERVED = "group.coordinator.rebalance.protocols leaves the consumer protocol out"


def _serves_consumer_protocol(broker: BrokerServer) -> bool:
    return "consumer" in broker.settings["group.coordinator.rebalance.protocols"]


def consumer_group_heartbeat(broker: BrokerServer, request: Any, call: Call) -> Any:
    """A member under the consumer protocol (KIP-848) reports, and hears what it owns."""
    if not _serves_consumer_protocol(broker):
        raise Refused(ErrorCode.UNSUPPORTED_VERSION, _NOT_SERVED)
    host = broker.groups
    host.ready_for(request.group_id)
    decision = host.machine.consumer_group_heartbeat(
        request, call.version, broker.now_ms(), call.client_id, "/" + call.connection.peer[0], lambda: str(uuid.uuid4())
    )
    return host.answer(decision)


def consumer_group_describe(broker: BrokerServer, request: Any, call: Call) -> Any:
    """Groups under the consumer protocol."""
    if not _serves_consumer_protocol(broker):
        code, group = ErrorCode.UNSUPPORTED_VERSION, ConsumerGroupDescribeResponse.DescribedGroup
        refused = [group(group_id=name, error_code=code, error_message=_NOT_SERVED) for name in request.group_ids]
        return ConsumerGroupDescribeResponse(groups=refused)
    return _served(broker, request, call, broker.groups.machine.consumer_group_describe, request.group_ids)
