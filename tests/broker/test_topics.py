"""Topics: creating, deleting, growing, settings, and what stays on disk."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from semel.broker.embedded import Broker
from semel.broker.handlers.versions import FEATURES
from semel.errors import ErrorCode
from semel.log.files import Files
from semel.wire.messages.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteRecordsRequest,
    DeleteTopicsRequest,
    DescribeLogDirsRequest,
    ListPartitionReassignmentsRequest,
)
from semel.wire.messages.configs import (
    AlterConfigsRequest,
    DescribeConfigsRequest,
    IncrementalAlterConfigsRequest,
    ListConfigResourcesRequest,
)
from semel.wire.messages.features import ApiVersionsRequest, UpdateFeaturesRequest
from semel.wire.messages.fetch import ListOffsetsRequest, OffsetForLeaderEpochRequest
from semel.wire.messages.metadata import (
    DescribeClusterRequest,
    DescribeTopicPartitionsRequest,
    FindCoordinatorRequest,
    MetadataRequest,
)
from semel.wire.messages.quorum import DescribeQuorumRequest
from semel.wire.messages.transactions import InitProducerIdRequest
from tests.broker.raw import Raw, batch, now_ms
from tests.support.waiting import until

SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3


def create(raw: Raw, name: str, *, validate_only: bool = False, **options: Any) -> Any:
    topic = CreateTopicsRequest.CreatableTopic(name=name, **{"num_partitions": 1, "replication_factor": 1, **options})
    return raw.ask(CreateTopicsRequest(topics=[topic], validate_only=validate_only)).topics[0]


def delete(raw: Raw, **by: Any) -> Any:
    request = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(**by)])
    return raw.ask(request, 6).responses[0]


def topics_of(raw: Raw) -> set[str]:
    return {row.name for row in raw.ask(MetadataRequest(topics=None)).topics}


@pytest.mark.parametrize(
    ("name", "options", "code"),
    [
        ("", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("..", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("a/b", {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("x" * 250, {}, ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("__cluster_metadata", {}, ErrorCode.INVALID_REQUEST),
        ("none", {"num_partitions": 0}, ErrorCode.INVALID_PARTITIONS),
        ("none", {"num_partitions": -3}, ErrorCode.INVALID_PARTITIONS),
        ("none", {"replication_factor": 3}, ErrorCode.INVALID_REPLICATION_FACTOR),
        ("none", {"replication_factor": 0}, ErrorCode.INVALID_REPLICATION_FACTOR),
        (
            "none",
            {"configs": [CreateTopicsRequest.CreatableTopicConfig(name="no.such", value="1")]},
            ErrorCode.INVALID_CONFIG,
        ),
        (
            "none",
            {"configs": [CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value="soon")]},
            ErrorCode.INVALID_CONFIG,
        ),
    ],
)
def test_what_kafka_refuses_is_refused(raw: Raw, name: str, options: dict[str, Any], code: ErrorCode) -> None:
    assert create(raw, name, **options).error_code == code
    assert name not in topics_of(raw)


def test_a_topic_exists_once_and_its_twin_with_dots_not_at_all(raw: Raw) -> None:
    assert create(raw, "twin.one").error_code == ErrorCode.NONE
    assert create(raw, "twin.one").error_code == ErrorCode.TOPIC_ALREADY_EXISTS
    assert create(raw, "twin_one").error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


@pytest.mark.parametrize(
    "options",
    [
        {"replication_factor": 3},
        {"num_partitions": 0},
        {"configs": [CreateTopicsRequest.CreatableTopicConfig(name="no.such", value="1")]},
        {"configs": [CreateTopicsRequest.CreatableTopicConfig(name="retention.ms", value=None)]},
        {"assignments": [CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=[9])]},
    ],
)
def test_a_topic_that_exists_is_said_to_exist_whatever_else_is_wrong(
    raw: Raw, topic: str, options: dict[str, Any]
) -> None:
    """As in Kafka. Programs that create what may be there already go on with TOPIC_ALREADY_EXISTS alone."""
    raw.create(topic)
    refused = create(raw, topic, **options)
    assert (refused.error_code, refused.configs) == (ErrorCode.TOPIC_ALREADY_EXISTS, [])


@pytest.mark.parametrize(
    ("name", "setting", "code"),
    [
        ("a/b", "no.such", ErrorCode.INVALID_TOPIC_EXCEPTION),
        ("none", "no.such", ErrorCode.INVALID_CONFIG),
        ("none", "retention.ms", ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_of_several_mistakes_kafkas_first_is_named(raw: Raw, name: str, setting: str, code: ErrorCode) -> None:
    configs = [CreateTopicsRequest.CreatableTopicConfig(name=setting, value="1")]
    assert create(raw, name, configs=configs, replication_factor=3).error_code == code


def test_validating_creates_nothing(raw: Raw, topic: str) -> None:
    result = create(raw, topic, validate_only=True, num_partitions=3)
    assert (result.error_code, result.num_partitions) == (ErrorCode.NONE, 3)
    assert topic not in topics_of(raw)


def test_the_same_name_twice_in_one_request_is_refused(raw: Raw, topic: str) -> None:
    row = CreateTopicsRequest.CreatableTopic(name=topic, num_partitions=1, replication_factor=1)
    answer = raw.ask(CreateTopicsRequest(topics=[row, row])).topics
    assert [one.error_code for one in answer] == [ErrorCode.INVALID_REQUEST]
    assert topic not in topics_of(raw)


def test_an_assignment_may_only_name_this_broker(raw: Raw, topic: str) -> None:
    row = CreateTopicsRequest.CreatableReplicaAssignment
    counts = {"num_partitions": -1, "replication_factor": -1}
    good = [row(partition_index=0, broker_ids=[1]), row(partition_index=1, broker_ids=[1])]
    assert create(raw, topic, assignments=good, **counts).num_partitions == 2
    bad = [row(partition_index=0, broker_ids=[9])]
    assert create(raw, topic + "x", assignments=bad, **counts).error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_topics_are_deleted_by_name_and_by_id(raw: Raw, topic: str) -> None:
    raw.create(topic)
    second = raw.create(topic + "-2")
    assert delete(raw, name=topic).error_code == ErrorCode.NONE
    assert delete(raw, topic_id=second).name == topic + "-2"
    assert not {topic, topic + "-2"} & topics_of(raw)
    assert delete(raw, name=topic).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert delete(raw, topic_id=second).error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_topic_made_anew_has_a_new_id_and_no_old_records(broker: Broker, raw: Raw, topic: str) -> None:
    first = raw.create(topic)
    raw.produce(topic, batch(b"old"))
    delete_records(raw, topic, 1)
    delete(raw, name=topic)
    assert not (broker.data_dir / f"{topic}-0").exists()
    assert raw.create(topic) != first
    raw.produce(topic, batch(b"new"))
    assert raw.values(topic) == [b"new"]


def test_a_directory_left_by_another_topic_is_set_aside_not_adopted(broker: Broker, raw: Raw, topic: str) -> None:
    raw.create(topic)
    raw.produce(topic, batch(b"stray"))
    left = broker.data_dir / f"{topic}-0"
    copied = left.with_name("copied")
    left.rename(copied)
    delete(raw, name=topic)
    copied.rename(left)
    raw.create(topic)
    assert raw.values(topic) == []
    assert list(broker.data_dir.glob(f"{topic}-0.*-stray"))


@pytest.mark.semel(**{"delete.topic.enable": False})
def test_deletion_can_be_switched_off(semel_broker: Broker, topic: str) -> None:
    with Raw(semel_broker) as raw:
        raw.create(topic)
        assert delete(raw, name=topic).error_code == ErrorCode.TOPIC_DELETION_DISABLED


def test_topics_only_grow(raw: Raw, topic: str) -> None:
    raw.create(topic, partitions=2)

    def grow(count: int, *, validate_only: bool = False) -> ErrorCode:
        row = CreatePartitionsRequest.CreatePartitionsTopic(name=topic, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[row], timeout_ms=1000, validate_only=validate_only)
        return ErrorCode(raw.ask(request).results[0].error_code)

    assert grow(1) is ErrorCode.INVALID_PARTITIONS
    assert grow(2) is ErrorCode.INVALID_PARTITIONS
    assert grow(4, validate_only=True) is ErrorCode.NONE
    assert raw.produce(topic, batch(), partition=3).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert grow(4) is ErrorCode.NONE
    assert raw.produce(topic, batch(), partition=3).error_code == ErrorCode.NONE


# Deleting records, and offsets


def delete_records(raw: Raw, topic: str, offset: int) -> Any:
    row = DeleteRecordsRequest.DeleteRecordsPartition(partition_index=0, offset=offset)
    asked = DeleteRecordsRequest.DeleteRecordsTopic(name=topic, partitions=[row])
    return raw.ask(DeleteRecordsRequest(topics=[asked], timeout_ms=1000)).topics[0].partitions[0]


def list_offset(raw: Raw, topic: str, timestamp: int, *, isolation_level: int = 0, version: int = 11) -> Any:
    row = ListOffsetsRequest.ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    asked = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[row])
    request = ListOffsetsRequest(replica_id=-1, isolation_level=isolation_level, topics=[asked])
    return raw.ask(request, version).topics[0].partitions[0]


def test_records_are_deleted_from_the_front_and_stay_deleted(tmp_path: Path, topic: str) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create(topic)
        for number in range(5):
            raw.produce(topic, batch(b"%d" % number))
        assert delete_records(raw, topic, 9).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
        assert delete_records(raw, topic, 3).low_watermark == 3
        assert list_offset(raw, topic, -2).offset == 3
        assert raw.fetch(topic, 2).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        assert list_offset(raw, topic, -2).offset == 3
        assert delete_records(raw, topic, -1).low_watermark == 5


def test_records_of_a_compacted_topic_are_not_deleted_by_request(raw: Raw, topic: str) -> None:
    raw.create(topic, cleanup_policy="compact")
    assert delete_records(raw, topic, -1).error_code == ErrorCode.POLICY_VIOLATION


def test_offsets_by_end_by_time_and_by_largest_time(raw: Raw, topic: str) -> None:
    raw.create(topic)
    base = now_ms() - 10_000
    for number in (0, 2, 1):
        raw.produce(topic, batch(b"x", timestamp_ms=base + number * 1000))
    assert list_offset(raw, topic, -1).offset == 3
    assert list_offset(raw, topic, -2).offset == 0
    by_time = list_offset(raw, topic, base + 500)
    assert (by_time.offset, by_time.timestamp) == (1, base + 2000)
    assert list_offset(raw, topic, now_ms() + 10_000).offset == -1
    largest = list_offset(raw, topic, -3)
    assert (largest.offset, largest.timestamp) == (1, base + 2000)


def test_the_questions_of_tiered_storage_get_the_answers_of_one_tier(raw: Raw, topic: str) -> None:
    raw.create(topic)
    raw.produce(topic, batch())
    assert list_offset(raw, topic, -4).offset == 0
    assert list_offset(raw, topic, -5).offset == -1
    assert list_offset(raw, topic, -3, version=6).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert list_offset(raw, topic, -9).error_code == ErrorCode.UNSUPPORTED_VERSION
    assert list_offset(raw, "nowhere", -9).error_code == ErrorCode.UNSUPPORTED_VERSION


def test_an_epoch_ends_where_the_log_does(raw: Raw, topic: str) -> None:
    raw.create(topic)
    raw.produce(topic, batch(b"a", b"b"))

    def end_of(epoch: int) -> Any:
        row = OffsetForLeaderEpochRequest.OffsetForLeaderPartition(partition=0, leader_epoch=epoch)
        asked = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(topic=topic, partitions=[row])
        return raw.ask(OffsetForLeaderEpochRequest(replica_id=-1, topics=[asked])).topics[0].partitions[0]

    assert (end_of(0).leader_epoch, end_of(0).end_offset) == (0, 2)
    assert (end_of(9).leader_epoch, end_of(9).end_offset) == (-1, -1)


# Settings


def setting(raw: Raw, topic: str, name: str) -> Any:
    row = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name=topic, configuration_keys=[name]
    )
    return raw.ask(DescribeConfigsRequest(resources=[row], include_synonyms=True)).results[0].configs[0]


def change(raw: Raw, topic: str, name: str, operation: int, value: str | None, *, validate_only: bool = False) -> Any:
    row = IncrementalAlterConfigsRequest.AlterableConfig(name=name, config_operation=operation, value=value)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(resource_type=2, resource_name=topic, configs=[row])
    request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    return raw.ask(request).responses[0]


def test_a_changed_setting_holds_for_the_next_batch(raw: Raw, topic: str) -> None:
    raw.create(topic)
    big = batch(b"x" * 2000)
    assert raw.produce(topic, big).error_code == ErrorCode.NONE
    assert change(raw, topic, "max.message.bytes", SET, "1000").error_code == ErrorCode.NONE
    assert raw.produce(topic, big).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert setting(raw, topic, "max.message.bytes").config_source == 1
    assert change(raw, topic, "max.message.bytes", DELETE, None).error_code == ErrorCode.NONE
    assert raw.produce(topic, big).error_code == ErrorCode.NONE
    assert setting(raw, topic, "max.message.bytes").config_source == 5


def test_lists_are_appended_to_and_taken_from(raw: Raw, topic: str) -> None:
    raw.create(topic)
    change(raw, topic, "cleanup.policy", APPEND, "compact")
    assert setting(raw, topic, "cleanup.policy").value == "delete,compact"
    change(raw, topic, "cleanup.policy", SUBTRACT, "delete")
    assert setting(raw, topic, "cleanup.policy").value == "compact"
    assert change(raw, topic, "retention.ms", APPEND, "1").error_code == ErrorCode.INVALID_CONFIG


def test_wrong_settings_and_mere_questions_change_nothing(raw: Raw, topic: str) -> None:
    raw.create(topic)
    assert change(raw, topic, "retention.mss", SET, "1").error_code == ErrorCode.INVALID_CONFIG
    assert change(raw, topic, "retention.ms", SET, "x").error_code == ErrorCode.INVALID_CONFIG
    assert change(raw, topic, "retention.ms", SET, "5", validate_only=True).error_code == ErrorCode.NONE
    assert setting(raw, topic, "retention.ms").value == "604800000"
    assert change(raw, "nowhere", "retention.ms", SET, "5").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_settings_that_contradict_each_other_are_refused(raw: Raw, topic: str) -> None:
    raw.create(topic)
    assert change(raw, topic, "max.compaction.lag.ms", SET, "5").error_code == ErrorCode.NONE
    refused = change(raw, topic, "min.compaction.lag.ms", SET, "6")
    assert refused.error_code == ErrorCode.INVALID_CONFIG
    assert refused.error_message == "min.compaction.lag.ms=6 is more than max.compaction.lag.ms=5"
    assert change(raw, topic, "min.compaction.lag.ms", SET, "5").error_code == ErrorCode.NONE


def test_replicas_to_throttle_are_numbers_or_all_of_them(raw: Raw, topic: str) -> None:
    raw.create(topic)
    for value in ("*", "0:1", "0:1, 1:2", ""):
        assert change(raw, topic, "leader.replication.throttled.replicas", SET, value).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    ("name", "described", "changed"),
    [("", 17, 42), ("a b", 17, 17), ("x" * 250, 17, 17), ("nowhere", 3, 3)],
    ids=["empty", "not-legal", "long", "missing"],
)
def test_a_topic_that_cannot_be_has_no_settings(raw: Raw, name: str, described: int, changed: int) -> None:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=2, resource_name=name, configuration_keys=None
    )
    assert raw.ask(DescribeConfigsRequest(resources=[resource])).results[0].error_code == described
    assert change(raw, name, "retention.ms", SET, "5").error_code == changed


def test_the_older_request_replaces_all_settings(raw: Raw, topic: str) -> None:
    raw.create(topic, retention_ms="5", segment_bytes="1000000")
    row = AlterConfigsRequest.AlterableConfig(name="retention.ms", value="7")
    resource = AlterConfigsRequest.AlterConfigsResource(resource_type=2, resource_name=topic, configs=[row])
    assert raw.ask(AlterConfigsRequest(resources=[resource])).responses[0].error_code == ErrorCode.NONE
    assert setting(raw, topic, "retention.ms").value == "7"
    assert setting(raw, topic, "segment.bytes").value == "1073741824"


@pytest.mark.semel(**{"log.retention.ms": 99})
def test_a_topic_falls_back_to_the_brokers_setting(semel_broker: Broker, topic: str) -> None:
    with Raw(semel_broker) as raw:
        raw.create(topic)
        row = setting(raw, topic, "retention.ms")
        assert (row.value, row.config_source) == ("99", 4)
        assert [(one.name, one.value) for one in row.synonyms] == [
            ("log.retention.ms", "99"),
            ("log.retention.ms", "604800000"),
        ]


def test_all_settings_are_described_where_none_is_named(raw: Raw, topic: str) -> None:
    raw.create(topic)
    row = DescribeConfigsRequest.DescribeConfigsResource
    for kind, name in ((2, topic), (4, "1"), (32, "group")):
        asked = [row(resource_type=kind, resource_name=name, configuration_keys=keys) for keys in (None, [])]
        every, none = (raw.ask(DescribeConfigsRequest(resources=[one])).results[0].configs for one in asked)
        assert len(every) > 1
        assert none == every


def test_the_brokers_settings_can_be_read(raw: Raw) -> None:
    row = DescribeConfigsRequest.DescribeConfigsResource(resource_type=4, resource_name="1", configuration_keys=None)
    found = {one.name: one for one in raw.ask(DescribeConfigsRequest(resources=[row])).results[0].configs}
    assert found["num.partitions"].value == "1"
    assert found["num.partitions"].read_only


def test_resources_with_settings_can_be_listed(raw: Raw, topic: str) -> None:
    raw.create(topic)
    found = raw.ask(ListConfigResourcesRequest(resource_types=[2])).config_resources
    assert topic in {row.resource_name for row in found}
    for kind in (0, 99, -1):
        answer = raw.ask(ListConfigResourcesRequest(resource_types=[2, kind]))
        assert (answer.error_code, answer.config_resources) == (ErrorCode.UNSUPPORTED_VERSION, [])


# Metadata


@pytest.mark.parametrize("version", range(14))
def test_a_missing_topic_is_answered_as_unknown_and_is_there_when_asked_for_again(
    raw: Raw, topic: str, version: int
) -> None:
    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)])
    first = raw.ask(asked, version).topics[0]
    assert (first.error_code, first.name, first.partitions) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, topic, [])
    assert first.topic_id == uuid.UUID(int=0)
    again = raw.ask(asked, version).topics[0]
    assert (again.error_code, len(again.partitions)) == (ErrorCode.NONE, 1)


@pytest.mark.parametrize("version", [3, 4, 13])
def test_a_client_that_wants_nothing_created_says_so_from_version_4_on(raw: Raw, topic: str, version: int) -> None:
    row = MetadataRequest.MetadataRequestTopic(name=topic)
    asked = MetadataRequest(topics=[row], allow_auto_topic_creation=False)
    for _ in range(2):
        code = raw.ask(asked, version).topics[0].error_code
    assert (code == ErrorCode.NONE) == (version < 4)


@pytest.mark.parametrize("may_create", [True, False])
@pytest.mark.parametrize("name", ["", ".", "..", "no/slashes", "two words", "x" * 250])
def test_a_name_that_is_not_legal_is_refused_whether_or_not_it_would_be_created(
    raw: Raw, name: str, may_create: bool
) -> None:
    row = MetadataRequest.MetadataRequestTopic(name=name)
    answer = raw.ask(MetadataRequest(topics=[row], allow_auto_topic_creation=may_create)).topics[0]
    assert (answer.error_code, answer.name) == (ErrorCode.INVALID_TOPIC_EXCEPTION, name)


def test_a_name_that_collides_with_another_topic_stays_unknown(raw: Raw, topic: str) -> None:
    raw.create(f"{topic}.1")
    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=f"{topic}_1")])
    codes = [raw.ask(asked).topics[0].error_code for _ in range(2)]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2


def test_a_topic_named_twice_is_answered_once_and_those_that_exist_come_first(raw: Raw, topic: str) -> None:
    raw.create(f"{topic}-there")
    rows = [MetadataRequest.MetadataRequestTopic(name=f"{topic}-{end}") for end in ("new", "there", "new", "there")]
    found = raw.ask(MetadataRequest(topics=rows)).topics
    assert [row.name for row in found] == [f"{topic}-there", f"{topic}-new"]


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_an_internal_topic_is_created_as_the_internal_topic_it_is(semel_broker: Broker, name: str) -> None:
    with Raw(semel_broker) as raw:
        row = MetadataRequest.MetadataRequestTopic(name=name)
        unwanted = raw.ask(MetadataRequest(topics=[row], allow_auto_topic_creation=False)).topics[0]
        first, again = (raw.ask(MetadataRequest(topics=[row])).topics[0] for _ in range(2))
        for missing in (unwanted, first):
            assert (missing.error_code, missing.is_internal) == (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, True)
        assert (again.error_code, again.is_internal, len(again.partitions)) == (ErrorCode.NONE, True, 50)


@pytest.mark.semel(**{"auto.create.topics.enable": False})
def test_automatic_creation_can_be_switched_off(semel_broker: Broker, topic: str) -> None:
    with Raw(semel_broker) as raw:
        for name in (topic, "__consumer_offsets"):
            asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)])
            codes = [raw.ask(asked).topics[0].error_code for _ in range(2)]
            assert codes == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2
        bad = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="no/slashes")])
        assert raw.ask(bad).topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_a_topic_can_be_asked_for_by_id(raw: Raw, topic: str) -> None:
    topic_id = raw.create(topic)
    row = MetadataRequest.MetadataRequestTopic
    missing, found = raw.ask(
        MetadataRequest(topics=[row(topic_id=topic_id, name=None), row(topic_id=uuid.uuid4(), name="other")])
    ).topics
    assert found.name == topic
    assert (missing.error_code, missing.name) == (ErrorCode.UNKNOWN_TOPIC_ID, None)


@pytest.mark.parametrize("version", range(14))
def test_every_version_of_metadata_is_served(raw: Raw, topic: str, version: int) -> None:
    raw.create(topic)
    answer = raw.ask(MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)]), version)
    assert answer.brokers[0].node_id == 1
    assert answer.topics[0].partitions[0].leader_id == 1


def test_partitions_are_described_page_by_page(semel_broker: Broker) -> None:
    with Raw(semel_broker) as raw:
        raw.create("a", partitions=3)
        raw.create("b", partitions=3)
        seen: list[tuple[str, int]] = []
        cursor = None
        for _ in range(10):
            answer = raw.ask(DescribeTopicPartitionsRequest(response_partition_limit=2, cursor=cursor))
            seen += [(topic.name, row.partition_index) for topic in answer.topics for row in topic.partitions]
            if answer.next_cursor is None:
                break
            cursor = DescribeTopicPartitionsRequest.Cursor(
                topic_name=answer.next_cursor.topic_name, partition_index=answer.next_cursor.partition_index
            )
        assert seen == [(name, index) for name in "ab" for index in range(3)]


def test_a_cursor_that_no_answer_gave_is_refused_beside_each_name(semel_broker: Broker) -> None:
    # As Kafka does. Before, the connection was closed: the response has no error of its own.
    cursor = DescribeTopicPartitionsRequest.Cursor(topic_name="b", partition_index=-1)
    with Raw(semel_broker) as raw:
        raw.create("a")
        named = [DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in ("a", "none")]
        answer = raw.ask(DescribeTopicPartitionsRequest(topics=named, cursor=cursor))
        assert [(row.name, row.error_code) for row in answer.topics] == [
            ("a", ErrorCode.INVALID_REQUEST), ("none", ErrorCode.INVALID_REQUEST)
        ]  # fmt: skip
        assert not raw.ask(DescribeTopicPartitionsRequest(cursor=cursor)).topics


def test_the_cluster_is_one_broker(broker: Broker, raw: Raw) -> None:
    answer = raw.ask(DescribeClusterRequest())
    assert [row.broker_id for row in answer.brokers] == [1]
    assert answer.cluster_id == broker.server.data.cluster_id
    assert raw.ask(DescribeClusterRequest(endpoint_type=2)).error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE


def test_the_data_directory_is_described(broker: Broker, raw: Raw, topic: str) -> None:
    raw.create(topic)
    raw.produce(topic, batch(b"x" * 500))
    result = raw.ask(DescribeLogDirsRequest(topics=None)).results[0]
    assert result.log_dir == str(broker.data_dir.resolve())
    sizes = {row.name: row.partitions[0].partition_size for row in result.topics}
    assert sizes[topic] > 500
    assert result.total_bytes > 0


def test_nothing_is_ever_being_reassigned(raw: Raw) -> None:
    assert raw.ask(ListPartitionReassignmentsRequest(topics=None)).topics == []


@pytest.mark.parametrize("version", range(7))
def test_every_group_and_transactional_id_is_coordinated_here(broker: Broker, raw: Raw, version: int) -> None:
    request = FindCoordinatorRequest(key="k", key_type=1 if version >= 1 else 0, coordinator_keys=["k", "l"])
    answer = raw.ask(request, version)
    rows = answer.coordinators if version >= 4 else [answer]
    assert {(row.node_id, f"{row.host}:{row.port}") for row in rows} == {(1, broker.bootstrap_servers)}


# Versions and features


def test_versions_and_finalized_features_are_advertised(raw: Raw) -> None:
    answer = raw.ask(ApiVersionsRequest(client_software_name="test", client_software_version="1"), 4)
    served = {row.api_key: (row.min_version, row.max_version) for row in answer.api_keys}
    assert served[0] == (0, 13)
    assert served[1] == (4, 18)
    assert served[22] == (0, 5)
    assert 64 not in served
    finalized = {row.name: row.max_version_level for row in answer.finalized_features}
    assert finalized["transaction.version"] == 2


@pytest.mark.parametrize(("version", "supported"), [(3, {"metadata.version"}), (4, set(FEATURES))])
def test_features_from_level_0_on_are_shown_only_to_clients_that_bear_it(
    raw: Raw, version: int, supported: set[str]
) -> None:
    answer = raw.ask(ApiVersionsRequest(client_software_name="test", client_software_version="1"), version)
    assert {row.name for row in answer.supported_features} == supported
    assert {row.name for row in answer.finalized_features} == set(FEATURES)


def test_an_unknown_version_of_api_versions_is_answered_in_version_0(raw: Raw) -> None:
    from semel.wire.frames import parse_response, request_frame

    frame = bytearray(b"".join(request_frame(18, 4, 99, "raw", ApiVersionsRequest())))
    frame[6:8] = (77).to_bytes(2, "big")
    raw.socket.sendall(frame)
    correlation_id, answer = parse_response(18, 0, raw.receive_frame())
    assert (correlation_id, answer.error_code) == (99, ErrorCode.UNSUPPORTED_VERSION)
    assert len(answer.api_keys) > 30


def test_features_cannot_be_downgraded(raw: Raw) -> None:
    def update(level: int) -> ErrorCode:
        row = UpdateFeaturesRequest.FeatureUpdateKey(
            feature="transaction.version", max_version_level=level, upgrade_type=2
        )
        return ErrorCode(raw.ask(UpdateFeaturesRequest(feature_updates=[row])).error_code)

    assert update(2) is ErrorCode.NONE
    assert update(1) is ErrorCode.INVALID_UPDATE_VERSION


# Restarts


def test_topics_ids_settings_and_records_are_there_after_a_restart(tmp_path: Path, topic: str) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        topic_id = raw.create(topic, partitions=3, retention_ms="-1")
        raw.produce(topic, batch(b"kept"), partition=2)
        cluster_id = broker.server.data.cluster_id
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        assert raw.topic_id(topic) == topic_id
        assert setting(raw, topic, "retention.ms").value == "-1"
        assert raw.values(topic, partition=2) == [b"kept"]
        assert broker.server.data.cluster_id == cluster_id


class FullDisk(Files):
    """Takes nothing more once it is full."""

    full = False

    def replace(self, path: Any, data: Any, *, durable: bool = True) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        super().replace(path, data, durable=durable)


def test_what_the_disk_refuses_has_not_happened(tmp_path: Path, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FullDisk()
    monkeypatch.setattr("semel.broker.server.Files", lambda _threads: disk)
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create(topic)
        disk.full = True
        assert create(raw, topic + "-new").error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert delete(raw, name=topic).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert change(raw, topic, "retention.ms", SET, "5").error_code == ErrorCode.KAFKA_STORAGE_ERROR
        first_id = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
        assert raw.ask(first_id).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert topics_of(raw) == {topic}
        assert setting(raw, topic, "retention.ms").value == "604800000"
        disk.full = False
        assert raw.ask(first_id).error_code == ErrorCode.NONE
        assert delete(raw, name=topic).error_code == ErrorCode.NONE


def test_what_one_metadata_request_creates_is_bounded_over_all_its_topics(tmp_path: Path) -> None:
    with Broker(tmp_path, settings={"num.partitions": 5_001}) as broker, Raw(broker) as raw:
        rows = [MetadataRequest.MetadataRequestTopic(name=name) for name in ("one", "two")]
        answer = raw.ask(MetadataRequest(topics=rows, allow_auto_topic_creation=True))
        assert {topic.error_code for topic in answer.topics} == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert not broker.server.topics.topics


@pytest.mark.parametrize("length", [213, 214, 249])
def test_a_topic_with_a_long_name_is_deleted_with_its_data(tmp_path: Path, length: int) -> None:
    name = "t" * length
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create(name, partitions=12)
        for partition in (0, 11):
            raw.produce(name, batch(), partition=partition)
        assert delete(raw, name=name).error_code == ErrorCode.NONE
        until(lambda: not list(tmp_path.glob("t*")), what="the data to be gone")
        raw.create(name, partitions=12)
        assert raw.produce(name, batch(), partition=11).base_offset == 0


def test_what_an_earlier_topic_with_a_long_name_left_is_set_aside(tmp_path: Path) -> None:
    name = "t" * 249
    (tmp_path / f"{name}-0").mkdir()
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create(name)
        assert raw.produce(name, batch()).base_offset == 0
    (stray,) = tmp_path.glob("*-stray")
    assert len(stray.name) == 255


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "inf"),
        ("retention.ms", "9" * 400),
        ("retention.ms", "9" * 5000),
        ("retention.ms", str(2**63)),
        ("segment.bytes", str(2**31)),
        ("retention.ms", "\u0661\u0662"),
        ("retention.ms", "1_000"),
        ("retention.ms", ""),
        ("leader.replication.throttled.replicas", "x"),
        ("leader.replication.throttled.replicas", "*,0:1"),
        ("follower.replication.throttled.replicas", "0:1:2"),
    ],
    ids=range(12),
)
def test_a_value_that_a_setting_cannot_hold_is_refused(raw: Raw, topic: str, name: str, value: str) -> None:
    config = CreateTopicsRequest.CreatableTopicConfig(name=name, value=value)
    refused = create(raw, topic, configs=[config])
    assert refused.error_code == ErrorCode.INVALID_CONFIG
    assert name in refused.error_message
    assert len(refused.error_message) < 300
    raw.create(topic)
    row = IncrementalAlterConfigsRequest.AlterableConfig(name=name, value=value, config_operation=SET)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(resource_type=2, resource_name=topic, configs=[row])
    answer = raw.ask(IncrementalAlterConfigsRequest(resources=[resource])).responses[0]
    assert answer.error_code == ErrorCode.INVALID_CONFIG


def test_the_quorum_is_this_node_and_it_is_caught_up(raw: Raw, broker: Broker) -> None:
    partition = DescribeQuorumRequest.PartitionData(partition_index=0)
    asked = [
        DescribeQuorumRequest.TopicData(topic_name=name, partitions=[partition])
        for name in ("__cluster_metadata", "something-else")
    ]
    answer = raw.ask(DescribeQuorumRequest(topics=asked))
    told, unknown = (topic.partitions[0] for topic in answer.topics)
    assert (answer.error_code, told.error_code, told.leader_id) == (0, 0, 1)
    assert [voter.replica_id for voter in told.current_voters] == [1]
    assert told.current_voters[0].log_end_offset == told.high_watermark
    assert not told.observers
    host, port = broker.bootstrap_servers.rsplit(":", 1)
    assert [(node.node_id, node.listeners[0].host, node.listeners[0].port) for node in answer.nodes] == [
        (1, host, int(port))
    ]
    assert unknown.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    raw.create("one-more")
    assert raw.ask(DescribeQuorumRequest(topics=asked)).topics[0].partitions[0].high_watermark > told.high_watermark


@pytest.mark.parametrize("used", ["before", "not yet"])
def test_a_topic_of_the_same_name_as_one_before_the_restart_is_a_new_one(tmp_path: Path, used: str) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t")
        for _ in range(5):
            raw.produce("t", batch())
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        if used == "before":
            raw.produce("t", batch())
        assert delete(raw, name="t").error_code == ErrorCode.NONE
        raw.create("t")
        assert raw.produce("t", batch(b"new")).base_offset == 0
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        assert raw.values("t") == [b"new"]
        assert delete(raw, name="t").error_code == ErrorCode.NONE
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t")
        assert raw.produce("t", batch()).base_offset == 0
