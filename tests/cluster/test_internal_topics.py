"""The internal topics of a cluster: as many replicas as are asked for, and nothing is answered with fewer (C1 C6)."""

from __future__ import annotations

import pytest

import semel
from semel.errors import ErrorCode
from semel.wire.messages.metadata import FindCoordinatorRequest, FindCoordinatorResponse, MetadataRequest
from semel.wire.messages.offsets import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from tests.broker.raw import Raw
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)

TOPIC, GROUP = "__consumer_offsets", "g"


def coordinator(raw: Raw) -> FindCoordinatorResponse.Coordinator:
    answer: FindCoordinatorResponse = raw.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=[GROUP]), 4)
    return answer.coordinators[0]


def test_without_enough_brokers_there_is_no_coordinator_and_the_reason_names_the_setting() -> None:
    """C6"""
    settings = {"offsets.topic.replication.factor": 2}
    with semel.Cluster(brokers=1, settings=settings) as cluster, Raw(cluster.bootstrap_servers) as raw:
        found = coordinator(raw)
        assert found.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert "offsets.topic.replication.factor=2" in (found.error_message or "")


def commit(raw: Raw, offset: int) -> ErrorCode:
    place = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=offset)
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[place])
    asked = OffsetCommitRequest(group_id=GROUP, generation_id_or_member_epoch=-1, topics=[topic])
    answer: OffsetCommitResponse = raw.ask(asked, 8)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def committed(raw: Raw) -> int:
    topic = OffsetFetchRequest.OffsetFetchRequestTopic(name="t", partition_indexes=[0])
    answer: OffsetFetchResponse = raw.ask(OffsetFetchRequest(group_id=GROUP, topics=[topic]), 7)
    assert answer.error_code == 0, ErrorCode(answer.error_code)
    return answer.topics[0].partitions[0].committed_offset


def test_offsets_are_not_committed_with_fewer_replicas_than_needed() -> None:
    """C1 R3: the coordinator refuses before it has written anything, and goes on once there are enough."""
    settings = {"min.insync.replicas": 2, "offsets.topic.num.partitions": 1, "default.replication.factor": 2}
    with semel.Cluster(brokers=2, settings=settings) as cluster:
        with Raw(cluster.bootstrap_servers.split(",")[0]) as raw:
            raw.create("t")
            found = until(lambda: found if not (found := coordinator(raw)).error_code else None, what="a coordinator")
        leader, other = found.node_id, 3 - found.node_id
        with Raw(f"{found.host}:{found.port}") as raw:
            until(lambda: commit(raw, 5) is ErrorCode.NONE, within_s=60, what="a commit")
            cluster.kill(other)

            def alone() -> bool:
                rows = [MetadataRequest.MetadataRequestTopic(name=TOPIC)]
                (topic,) = raw.ask(MetadataRequest(topics=rows), 9).topics
                return bool(topic.partitions[0].isr_nodes == [leader])

            until(alone, within_s=60, what="one replica to be left")
            assert commit(raw, 6) is ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert committed(raw) == 5, "what was refused has left nothing"
            cluster.restart(other)
            until(lambda: commit(raw, 7) is ErrorCode.NONE, within_s=60, what="a commit")
            assert committed(raw) == 7
