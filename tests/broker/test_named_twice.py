"""What is named twice in one request: as Apache Kafka 4.3.1 answers it, seen with the same requests."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from semel.broker.embedded import Broker
from semel.broker.stored.metadata_store import LocalMetadataStore
from semel.errors import ErrorCode
from semel.wire.messages.admin import (
    AlterReplicaLogDirsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeLogDirsRequest,
)
from semel.wire.messages.configs import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
)
from semel.wire.messages.fetch import ListOffsetsRequest
from semel.wire.messages.metadata import MetadataRequest
from semel.wire.messages.transactions import DescribeProducersRequest
from tests.broker.raw import Raw, batch

REFUSED = ErrorCode.INVALID_REQUEST
NONE = ErrorCode.NONE
NO_ID = uuid.UUID(int=0)


def test_a_partition_asked_for_twice_has_no_offset_and_one_answer(raw: Raw, topic: str) -> None:
    raw.create(topic, 2)
    row, asked = ListOffsetsRequest.ListOffsetsPartition, ListOffsetsRequest.ListOffsetsTopic
    twice = asked(name=topic, partitions=[row(partition_index=0, timestamp=5), row(partition_index=1, timestamp=-1)])
    again = asked(name=topic, partitions=[row(partition_index=0, timestamp=-1)])
    (answered,) = raw.ask(ListOffsetsRequest(topics=[twice, again]), 9).topics
    assert {one.partition_index: one.error_code for one in answered.partitions} == {0: REFUSED, 1: NONE}
    assert len(answered.partitions) == 2


def test_a_topic_named_twice_is_not_deleted(raw: Raw, topic: str) -> None:
    topic_id = raw.create(topic)
    row = DeleteTopicsRequest.DeleteTopicState
    by_name, by_id = row(name=topic, topic_id=NO_ID), row(name=None, topic_id=topic_id)
    for asked in ([by_name, by_name], [by_id, by_id], [by_name, by_id]):
        answered = raw.ask(DeleteTopicsRequest(topics=asked, timeout_ms=1000)).responses
        assert {one.error_code for one in answered} == {REFUSED}
        assert len(answered) <= len(set(map(repr, asked)))
    (answered,) = raw.ask(DeleteTopicsRequest(topic_names=[topic, topic], timeout_ms=1000), 5).responses
    assert answered.error_code == REFUSED
    assert raw.topic_id(topic) == topic_id
    (answered,) = raw.ask(DeleteTopicsRequest(topics=[by_name], timeout_ms=1000)).responses
    assert answered.error_code == NONE


def test_a_topic_named_twice_does_not_grow(raw: Raw, topic: str) -> None:
    raw.create(topic)
    row = CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=2, assignments=None)
    (answered,) = raw.ask(CreatePartitionsRequest(topics=[row, row], timeout_ms=1000)).results
    assert answered.error_code == REFUSED


def test_settings_of_a_resource_named_twice_stay_as_they_are(raw: Raw, topic: str) -> None:
    raw.create(topic)
    kept = IncrementalAlterConfigsRequest
    change = kept.AlterableConfig(name="retention.ms", value="1000", config_operation=0)
    row = kept.AlterConfigsResource(resource_type=2, resource_name=topic, configs=[change])
    assert [one.error_code for one in raw.ask(kept(resources=[row, row])).responses] == [REFUSED, REFUSED]
    old = AlterConfigsRequest
    setting = old.AlterableConfig(name="retention.ms", value="1000")
    once = old.AlterConfigsResource(resource_type=2, resource_name=topic, configs=[setting])
    assert [one.error_code for one in raw.ask(old(resources=[once, once])).responses] == [REFUSED, REFUSED]
    twice = old.AlterConfigsResource(resource_type=2, resource_name=topic, configs=[setting, setting])
    assert [one.error_code for one in raw.ask(old(resources=[twice])).responses] == [REFUSED]
    assert retention_ms(raw, topic) == ["604800000"]
    assert [one.error_code for one in raw.ask(old(resources=[once])).responses] == [NONE]
    assert retention_ms(raw, topic) == ["1000"]


def retention_ms(raw: Raw, topic: str) -> list[str]:
    row = DescribeConfigsRequest.DescribeConfigsResource
    asked = row(resource_type=2, resource_name=topic, configuration_keys=["retention.ms"])
    found = raw.ask(DescribeConfigsRequest(resources=[asked])).results
    return [config.value for one in found for config in one.configs]


def test_settings_asked_for_twice_are_described_once_unless_others_are_wanted(raw: Raw, topic: str) -> None:
    raw.create(topic)
    row = DescribeConfigsRequest.DescribeConfigsResource
    asked = [row(resource_type=2, resource_name=topic, configuration_keys=None)] * 500
    asked.append(row(resource_type=2, resource_name=topic, configuration_keys=["retention.ms"]))
    found = raw.ask(DescribeConfigsRequest(resources=asked)).results
    assert [len(one.configs) > 1 for one in found] == [True, False]


def test_of_two_deletions_from_one_log_the_last_counts(raw: Raw, topic: str) -> None:
    raw.create(topic)
    raw.produce(topic, batch(b"a", b"b", b"c"))
    row = DeleteRecordsRequest.DeleteRecordsPartition
    rows = [row(partition_index=0, offset=3), row(partition_index=0, offset=1)]
    asked = DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=rows)
    (answered,) = raw.ask(DeleteRecordsRequest(topics=[asked], timeout_ms=1000)).topics
    assert [(one.low_watermark, one.error_code) for one in answered.partitions] == [(1, NONE)]


def test_what_lies_where_is_told_once(raw: Raw, topic: str) -> None:
    raw.create(topic, 2)
    row = DescribeLogDirsRequest.DescribableLogDirTopic
    asked = [row(topic=topic, partitions=[0, 0, 1]), row(topic=topic, partitions=[1])]
    (answered,) = raw.ask(DescribeLogDirsRequest(topics=asked)).results[0].topics
    assert sorted(one.partition_index for one in answered.partitions) == [0, 1]
    producers = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=[0, 0, 1])
    (answered,) = raw.ask(DescribeProducersRequest(topics=[producers, producers])).topics
    assert [one.partition_index for one in answered.partitions] == [0, 1]
    moved = AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name=topic, partitions=[0, 0])
    move = AlterReplicaLogDirsRequest.AlterReplicaLogDir(path="/elsewhere", topics=[moved])
    (answered,) = raw.ask(AlterReplicaLogDirsRequest(dirs=[move])).results
    assert [one.partition_index for one in answered.partitions] == [0]


# One write to the store for one request


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The entries of the metadata store that were written, in their order."""
    written: list[str] = []
    update = LocalMetadataStore.update

    def counted(store: LocalMetadataStore, name: str, value: Any, expected_version: int) -> int:
        written.append(name)
        return update(store, name, value, expected_version)

    monkeypatch.setattr(LocalMetadataStore, "update", counted)
    return written


def test_however_many_topics_a_request_changes_the_store_is_written_once(writes: list[str], tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(50)]
    with Broker(tmp_path, settings={"auto.create.topics.enable": "true"}) as broker, Raw(broker) as raw:
        auto = [MetadataRequest.MetadataRequestTopic(name=f"auto-{name}") for name in names]
        raw.ask(MetadataRequest(topics=auto, allow_auto_topic_creation=True), 12)
        assert writes == ["topics"], "Metadata"
        new = CreateTopicsRequest.CreatableTopic
        topics = [new(name=name, num_partitions=1, replication_factor=1) for name in names]
        raw.ask(CreateTopicsRequest(topics=topics, timeout_ms=1000))
        assert writes == ["topics"] * 2, "CreateTopics"
        more = CreatePartitionsRequest.CreatePartitionsTopic
        grown = [more(name=name, count=3, assignments=None) for name in names]
        raw.ask(CreatePartitionsRequest(topics=grown, timeout_ms=1000))
        assert writes == ["topics"] * 3, "CreatePartitions"
        kept = IncrementalAlterConfigsRequest
        setting = kept.AlterableConfig(name="retention.ms", value="1000", config_operation=0)
        session = kept.AlterableConfig(name="consumer.session.timeout.ms", value="50000", config_operation=0)
        rows = [kept.AlterConfigsResource(resource_type=2, resource_name=name, configs=[setting]) for name in names]
        rows += [kept.AlterConfigsResource(resource_type=32, resource_name=name, configs=[session]) for name in names]
        assert {one.error_code for one in raw.ask(kept(resources=rows)).responses} == {NONE}
        assert writes == ["topics"] * 4 + ["group-settings"], "IncrementalAlterConfigs"
        gone = [DeleteTopicsRequest.DeleteTopicState(name=name, topic_id=NO_ID) for name in names[1:]]
        assert {one.error_code for one in raw.ask(DeleteTopicsRequest(topics=gone)).responses} == {NONE}
        assert writes == ["topics"] * 4 + ["group-settings", "topics"], "DeleteTopics"
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        found = raw.ask(MetadataRequest(topics=None), 12).topics
        assert sorted(one.name for one in found) == sorted([*(f"auto-{name}" for name in names), "t0"])
        assert [len(one.partitions) for one in found if one.name == "t0"] == [3]
        assert retention_ms(raw, "t0") == ["1000"]


def test_a_store_that_cannot_be_written_refuses_every_topic_and_nothing_has_happened(
    monkeypatch: pytest.MonkeyPatch, raw: Raw, topic: str
) -> None:
    raw.create(topic)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(LocalMetadataStore, "update", full)
        new = CreateTopicsRequest.CreatableTopic
        topics = [new(name=f"{topic}-{number}", num_partitions=1, replication_factor=1) for number in range(3)]
        created = raw.ask(CreateTopicsRequest(topics=topics, timeout_ms=1000)).topics
        assert [one.error_code for one in created] == [ErrorCode.KAFKA_STORAGE_ERROR] * 3
        gone = DeleteTopicsRequest.DeleteTopicState(name=topic, topic_id=NO_ID)
        (answered,) = raw.ask(DeleteTopicsRequest(topics=[gone])).responses
        assert answered.error_code == ErrorCode.KAFKA_STORAGE_ERROR
        grown = CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=3, assignments=None)
        (answered,) = raw.ask(CreatePartitionsRequest(topics=[grown], timeout_ms=1000)).results
        assert answered.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    row = MetadataRequest.MetadataRequestTopic
    asked = [row(name=name) for name in (topic, *(f"{topic}-{number}" for number in range(3)))]
    found = raw.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=False), 12).topics
    assert [(one.name, len(one.partitions)) for one in found if one.error_code == NONE] == [(topic, 1)]
    raw.create(f"{topic}-0")
