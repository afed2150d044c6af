"""The guard of Produce: Write on the transactional id, then Write on each topic."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from semel.broker.access.guards import Answer, Verdict
from semel.broker.access.guards.rows import made_of, topic_name
from semel.broker.handlers.produce import TOPIC_IDS_SINCE, is_transactional
from semel.errors import ErrorCode
from semel.machines.security.access import Operation, ResourceType
from semel.wire.messages.produce import ProduceRequest, ProduceResponse

if TYPE_CHECKING:
    from semel.broker.access.control import AccessControl
    from semel.broker.dispatch import Call

_Topic = ProduceRequest.TopicProduceData


def produce(access: AccessControl, request: ProduceRequest, call: Call) -> Verdict | Generator[None, None, Verdict]:
    """Take out what may not be written. With acks=0 the connection is closed once the rest is written."""
    if call.is_long:
        return _in_steps(access, request, call)
    topics = request.topic_data
    for data in topics:
        for part in data.partition_data:
            if is_transactional(part.records):
                if _may_use_id(access, request, call, logged=False):
                    break
                return _in_steps(access, request, call)
        if not _may_write(access, call, data, logged=False):
            return _in_steps(access, request, call)
    return None


def _may_use_id(access: AccessControl, request: ProduceRequest, call: Call, *, logged: bool = True) -> bool:
    transactional_id = request.transactional_id
    return transactional_id is not None and access.allows(
        call, Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id, logged=logged
    )


def _may_write(access: AccessControl, call: Call, data: _Topic, *, logged: bool = True) -> bool:
    name = topic_name(access, data.topic_id) if call.version >= TOPIC_IDS_SINCE else data.name
    # The handler says of an unknown id that it is unknown.
    return name is None or access.allows(call, Operation.WRITE, ResourceType.TOPIC, name, logged=logged)


def _in_steps(access: AccessControl, request: ProduceRequest, call: Call) -> Generator[None, None, Verdict]:
    """Look at all of it: the transactional id comes first, as in Kafka."""
    denied: list[_Topic] = []
    allowed: list[_Topic] = []
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    if (yield from _has_transactional(request)) and not _may_use_id(access, request, call):
        code, denied = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, request.topic_data
    else:
        for data in request.topic_data:
            (allowed if _may_write(access, call, data) else denied).append(data)
            yield
    if not denied:
        return None
    answers = yield from _refusals(denied, code)

    def merge(reply: ProduceResponse | None) -> ProduceResponse | None:
        if request.acks == 0:
            call.connection.refuse(f"a produce with acks=0 was denied: {code.name}")
            return None
        response = ProduceResponse() if reply is None else reply
        response.responses += answers
        return response

    if not allowed:
        return Answer(merge(None))
    request.topic_data = allowed
    return merge


def _has_transactional(request: ProduceRequest) -> Generator[None, None, bool]:
    for data in request.topic_data:
        for part in data.partition_data:
            if is_transactional(part.records):
                return True
            yield
        yield
    return False


def _refusals(topics: list[_Topic], code: ErrorCode) -> Generator[None, None, list[Any]]:
    row, why = ProduceResponse.PartitionProduceResponse, code.meaning
    answers = []
    for data in topics:
        rows = yield from made_of(
            data.partition_data,
            lambda part: row(index=part.index, error_code=code, base_offset=-1, error_message=why),
        )
        answers.append(
            ProduceResponse.TopicProduceResponse(name=data.name, topic_id=data.topic_id, partition_responses=rows)
        )
        yield
    return answers
