"""The guard of Fetch: Read on each topic, or ClusterAction for a replica.

What is read is decided when the fetch session is known: a session names partitions that its later requests do not name,
and what its client may read can change meanwhile. So the handler asks `without_denied` for every fetch.
"""

from __future__ import annotations

import uuid
from collections.abc import Generator
from typing import TYPE_CHECKING

from semel.broker.access.guards import Answer, Verdict
from semel.broker.access.guards.rows import topic_name
from semel.errors import ErrorCode
from semel.machines.security.access import Operation, ResourceType
from semel.wire.messages.fetch import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from semel.broker.access.control import AccessControl
    from semel.broker.dispatch import Call
    from semel.broker.fetch_sessions import Fetched, TopicName


def fetch(access: AccessControl, request: FetchRequest, call: Call) -> Verdict | Generator[None, None, Verdict]:
    """Only a broker may fetch as a replica: a replica's fetch moves the high watermark (CVE-2018-1288)."""
    replica_id = request.replica_id if call.version < 15 else request.replica_state.replica_id
    if replica_id < 0 or access.allows_on_cluster(call, Operation.CLUSTER_ACTION):
        return None
    return _refuse(request)


def _refuse(request: FetchRequest) -> Generator[None, None, Verdict]:
    code = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    row, topic_row = FetchResponse.PartitionData, FetchResponse.FetchableTopicResponse
    answers = []
    for topic in request.topics:
        rows = [
            row(partition_index=asked.partition, error_code=code, high_watermark=-1, records=b"")
            for asked in topic.partitions
        ]
        answers.append(topic_row(topic=topic.topic, topic_id=topic.topic_id, partitions=rows))
        yield
    return Answer(FetchResponse(responses=answers))


def without_denied(access: AccessControl, call: Call, fetched: Fetched) -> Fetched:
    """The same partitions, with those that this client may not read marked. The session's own are not marked."""
    denied: set[TopicName] = set()
    last: TopicName | None = None
    for one in fetched.values():
        topic = one.topic
        if topic is not last:
            last = topic
            name = topic_name(access, topic) if isinstance(topic, uuid.UUID) else topic
            # An id without a topic is answered as unknown.
            if name is not None and not access.allows(call, Operation.READ, ResourceType.TOPIC, name):
                denied.add(topic)
    if not denied:
        return fetched
    return {key: one.denied() if one.topic in denied else one for key, one in fetched.items()}
