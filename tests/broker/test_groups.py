"""Groups through the whole broker: what the coordinator's host adds to the machine."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID, uuid4

import pytest

from semel.broker.embedded import Broker
from semel.errors import ErrorCode
from semel.wire.messages.admin import DeleteTopicsRequest
from semel.wire.messages.groups import DeleteGroupsRequest
from semel.wire.messages.metadata import MetadataRequest
from semel.wire.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from tests.broker.raw import Raw

PARTITIONS = 60


def commit(raw: Raw, topic: str, partitions: range) -> set[ErrorCode]:
    rows = [
        OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=partition, committed_offset=5)
        for partition in partitions
    ]
    request = OffsetCommitRequest(
        group_id="readers", topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=rows)]
    )
    answer = raw.ask(request, 9)
    return {ErrorCode(row.error_code) for row in answer.topics[0].partitions}


def committed(raw: Raw) -> int:
    """How many offsets the group has."""
    asked = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="readers", topics=None)
    answer = raw.ask(OffsetFetchRequest(groups=[asked]), 9).groups[0]
    assert answer.error_code == ErrorCode.NONE
    return sum(len(topic.partitions) for topic in answer.topics)


@pytest.mark.parametrize("end", ["of the group", "of the topic"])
def test_a_group_with_more_offsets_than_fit_into_one_batch_can_be_forgotten(tmp_path: Path, end: str) -> None:
    with Broker(tmp_path, settings={"message.max.bytes": 1200}) as broker, Raw(broker) as raw:
        raw.create("wide", PARTITIONS)
        for first in range(0, PARTITIONS, 10):
            assert commit(raw, "wide", range(first, first + 10)) == {ErrorCode.NONE}
        assert commit(raw, "wide", range(PARTITIONS)) == {ErrorCode.INVALID_COMMIT_OFFSET_SIZE}, "a commit is not split"
        assert committed(raw) == PARTITIONS
        if end == "of the group":
            deleted = raw.ask(DeleteGroupsRequest(groups_names=["readers"]), 2).results[0]
            assert deleted.error_code == ErrorCode.NONE
        else:
            state = DeleteTopicsRequest.DeleteTopicState(name="wide", topic_id=UUID(int=0))
            assert raw.ask(DeleteTopicsRequest(topics=[state]), 6).responses[0].error_code == ErrorCode.NONE
        assert committed(raw) == 0
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        assert committed(raw) == 0


def test_topics_whose_id_nobody_knows_come_after_those_that_are_known(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        known = [raw.create(name) for name in ("a", "b")]
        unknown = [uuid4(), uuid4()]
        asked = [unknown[0], known[1], unknown[1], known[0]]
        topics = [OffsetFetchRequest.OffsetFetchRequestTopics(topic_id=one, partition_indexes=[0]) for one in asked]
        group = OffsetFetchRequest.OffsetFetchRequestGroup(group_id="g", topics=topics)
        answered = raw.ask(OffsetFetchRequest(groups=[group]), 10).groups[0].topics
        assert [row.topic_id for row in answered] == [known[1], known[0], *unknown]
        codes = [row.partitions[0].error_code for row in answered]
        assert codes == [ErrorCode.NONE] * 2 + [ErrorCode.UNKNOWN_TOPIC_ID] * 2
        place = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        topics = [OffsetCommitRequest.OffsetCommitRequestTopic(topic_id=one, partitions=[place]) for one in asked]
        committed = raw.ask(OffsetCommitRequest(group_id="g", topics=topics), 10).topics
        assert [row.topic_id for row in committed] == [*unknown, known[1], known[0]], "a commit has them first"
        rows = [MetadataRequest.MetadataRequestTopic(topic_id=one, name=None) for one in asked]
        described = raw.ask(MetadataRequest(topics=rows)).topics
        assert [row.topic_id for row in described] == [*unknown, known[1], known[0]], "and so has Metadata"
