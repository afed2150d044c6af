"""Requests as other people's clients write them, where they differ from what Kafka's own client would send."""

from __future__ import annotations

import pytest

from semel.errors import ErrorCode
from semel.wire.messages.admin import AlterPartitionReassignmentsRequest, ElectLeadersRequest
from semel.wire.messages.fetch import ListOffsetsRequest, OffsetForLeaderEpochRequest
from tests.broker.raw import Raw, batch


@pytest.mark.parametrize("version", [1, 10, 11])
def test_offsets_are_listed_for_a_client_that_calls_itself_replica_0(raw: Raw, topic: str, version: int) -> None:
    raw.create(topic)
    raw.produce(topic, batch(b"a", b"b"))
    asked = ListOffsetsRequest.ListOffsetsTopic(
        name=topic, partitions=[ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=-1)]
    )
    answer = raw.ask(ListOffsetsRequest(replica_id=0, topics=[asked]), version).topics[0].partitions[0]
    assert (answer.error_code, answer.offset) == (ErrorCode.NONE, 2)


def test_the_end_of_an_epoch_is_told_to_a_client_that_calls_itself_a_replica(raw: Raw, topic: str) -> None:
    raw.create(topic)
    raw.produce(topic, batch(b"a", b"b"))
    row = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=0)
    asked = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[row])
    answer = raw.ask(OffsetForLeaderEpochRequest(replica_id=7, topics=[asked])).topics[0].partitions[0]
    assert (answer.error_code, answer.end_offset) == (ErrorCode.NONE, 2)


def test_a_leader_that_leads_already_is_not_elected(raw: Raw, topic: str) -> None:
    raw.create(topic)
    rows = [ElectLeadersRequest.TopicPartitions(topic=name, partitions=[0]) for name in (topic, "nowhere")]
    found = raw.ask(ElectLeadersRequest(topic_partitions=rows)).replica_election_results
    codes = [row.partition_result[0].error_code for row in found]
    assert codes == [ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert raw.ask(ElectLeadersRequest(topic_partitions=None)).replica_election_results == []
    answer = raw.ask(ElectLeadersRequest(election_type=2, topic_partitions=rows))
    codes = [row.partition_result[0].error_code for row in answer.replica_election_results]
    assert {answer.error_code, *codes} == {ErrorCode.INVALID_REQUEST}


@pytest.mark.parametrize("version", [0, 1])
def test_a_partition_can_be_moved_only_to_where_it_is(raw: Raw, topic: str, version: int) -> None:
    raw.create(topic, partitions=4)

    def moved(name: str, *replicas: list[int] | None) -> list[int]:
        rows = [
            AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=index, replicas=one)
            for index, one in enumerate(replicas)
        ]
        asked = AlterPartitionReassignmentsRequest.ReassignableTopic(name=name, partitions=rows)
        answer = raw.ask(AlterPartitionReassignmentsRequest(topics=[asked]), version)
        return [row.error_code for row in answer.responses[0].partitions]

    assert moved(topic, [1], [2], [1, 2], None) == [
        ErrorCode.NONE,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
    ]
    assert moved("nowhere", [1]) == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
