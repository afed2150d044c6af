"""What an attacker with some rights tries, to get at what it has no right to. No rule may be gone round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from semel.broker.embedded import Broker
from semel.errors import ErrorCode
from semel.machines.security.access import AccessRules, Operation, ResourceType
from semel.wire.messages.admin import DeleteTopicsRequest
from semel.wire.messages.fetch import FetchRequest
from semel.wire.messages.metadata import MetadataRequest
from semel.wire.messages.produce import ProduceRequest
from semel.wire.messages.transactions import AddPartitionsToTxnRequest, InitProducerIdRequest
from tests.broker.access.rules import ANONYMOUS, WITH_AUTHORIZER, rule
from tests.broker.raw import Raw, batch, fetch_request, produce_request

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
ALL = [
    rule(kind, name, Operation.ALL, who=ANONYMOUS)
    for kind, name in (
        (ResourceType.TOPIC, "*"), (ResourceType.TRANSACTIONAL_ID, "*"), (ResourceType.CLUSTER, "kafka-cluster"),
    )
]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings=WITH_AUTHORIZER) as running:
        yield running


@pytest.fixture
def rules(broker: Broker) -> Iterator[AccessRules]:
    """No rules; topics `mine` and `theirs` with a record in each."""
    assert broker.server.access is not None
    found: AccessRules = broker.server.access.rules
    found.add(ALL)
    with Raw(broker) as raw:
        for name in ("mine", "theirs"):
            if name not in broker.server.topics.topics:
                raw.create(name)
                raw.produce(name, batch(b"secret"))
    found.remove(list(found))
    yield found
    found.remove(list(found))


def end_of(broker: Broker, topic: str) -> int:
    return broker.server.topics.get(topic).partitions[0].log.end_offset


def grant(rules: AccessRules, *rights: tuple[ResourceType, str, Operation]) -> None:
    rules.add([rule(kind, name, operation, who=ANONYMOUS) for kind, name, operation in rights])


TOPIC, ID, CLUSTER = ResourceType.TOPIC, ResourceType.TRANSACTIONAL_ID, ResourceType.CLUSTER


@pytest.mark.parametrize("version", range(4, 19))
def test_cve_2018_1288_nobody_fetches_as_a_replica_by_saying_so(
    broker: Broker, rules: AccessRules, raw: Raw, version: int
) -> None:
    """In Apache Kafka a client could send a made-up fetch of a replica, which interfered with replication."""
    grant(rules, (TOPIC, "theirs", Operation.READ))
    row = FetchRequest.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
    topic_id = broker.server.topics.get("theirs").topic_id
    for replica_id in (0, 1, 2**31 - 1):
        asked = FetchRequest(
            replica_id=replica_id,
            replica_state=FetchRequest.ReplicaState(replica_id=replica_id, replica_epoch=0),
            max_bytes=1000,
            topics=[FetchRequest.FetchTopic(topic="theirs", topic_id=topic_id, partitions=[row])],
        )
        found = raw.ask(asked, version).responses[0].partitions[0]
        assert (found.error_code, bytes(found.records or b"")) == (DENIED, b"")
        # With the right of a broker it is still no replica: there are none.
        grant(rules, (CLUSTER, "kafka-cluster", Operation.CLUSTER_ACTION))
        answer = raw.ask(asked, version)
        codes = [one.error_code for topic in answer.responses for one in topic.partitions]
        assert answer.error_code or all(codes)
        rules.remove([rule(CLUSTER, "kafka-cluster", Operation.CLUSTER_ACTION, who=ANONYMOUS)])


def test_a_denied_write_without_an_answer_closes_the_connection_and_writes_only_what_is_allowed(
    broker: Broker, rules: AccessRules
) -> None:
    grant(rules, (TOPIC, "mine", Operation.WRITE))
    mine, theirs = end_of(broker, "mine"), end_of(broker, "theirs")
    both = produce_request("mine", batch(b"v"), acks=0)
    both.topic_data += produce_request("theirs", batch(b"v")).topic_data
    for version in (3, 12):
        with Raw(broker) as raw:
            raw.send(both, version)
            assert raw.is_closed()
    assert (end_of(broker, "mine"), end_of(broker, "theirs")) == (mine + 2, theirs)


def test_a_topic_that_is_named_twice_is_denied_twice(broker: Broker, rules: AccessRules, raw: Raw) -> None:
    grant(rules, (TOPIC, "mine", Operation.WRITE))
    theirs = end_of(broker, "theirs")
    asked = produce_request("theirs", batch(b"v"))
    asked.topic_data = [*asked.topic_data, *produce_request("mine", batch(b"v")).topic_data, *asked.topic_data]
    answer = raw.ask(asked, 12)
    codes = {(row.name, part.error_code) for row in answer.responses for part in row.partition_responses}
    assert codes == {("theirs", DENIED), ("mine", 0)}
    assert end_of(broker, "theirs") == theirs


def test_an_id_is_no_way_round_a_name(broker: Broker, rules: AccessRules, raw: Raw) -> None:
    grant(rules, (TOPIC, "mine", Operation.ALL))
    topic_id = broker.server.topics.get("theirs").topic_id
    theirs = end_of(broker, "theirs")
    written = produce_request("mine", batch(b"v"))
    written.topic_data[0].topic_id = topic_id
    assert raw.ask(written, 13).responses[0].partition_responses[0].error_code == DENIED
    row = FetchRequest.FetchPartition(partition=0, partition_max_bytes=1000)
    read = FetchRequest(topics=[FetchRequest.FetchTopic(topic="mine", topic_id=topic_id, partitions=[row])])
    assert raw.ask(read, 18).responses[0].partitions[0].error_code == DENIED
    doomed = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(topic_id=topic_id)], timeout_ms=100)
    found = raw.ask(doomed, 6).responses[0]
    assert (found.error_code, found.name) == (DENIED, None)
    seen = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=None, topic_id=topic_id)])
    row = raw.ask(seen, 12).topics[0]
    assert (row.error_code, row.name, row.partitions) == (DENIED, None, [])
    assert end_of(broker, "theirs") == theirs
    assert "theirs" in broker.server.topics.topics


def test_whether_a_topic_exists_is_not_told(rules: AccessRules, raw: Raw) -> None:
    """The answers about a hidden topic and about one that is not there differ in the name alone."""
    row = MetadataRequest.MetadataRequestTopic

    def answers(name: str) -> list[str]:
        deleted = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name=name)], timeout_ms=100)
        asked: list[tuple[Any, int]] = [
            (MetadataRequest(topics=[row(name=name)], allow_auto_topic_creation=True), 12),
            (produce_request(name, batch(b"v")), 12),
            (fetch_request({(name, 0): 0}, max_wait_ms=0), 12),
            (deleted, 6),
        ]
        return [str(raw.ask(message, version)).replace(name, "") for message, version in asked]

    assert answers("theirs") == answers("nowhere")


def test_a_topic_that_is_deleted_behind_the_guard_is_not_created_again_without_the_right(
    broker: Broker, rules: AccessRules, raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    grant(rules, (TOPIC, "gone", Operation.DESCRIBE))
    # To the guard it is a topic that is there.
    monkeypatch.setattr("semel.broker.access.guards.metadata.may_create", lambda *_: False)
    asked = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name="gone")], allow_auto_topic_creation=True
    )
    assert raw.ask(asked, 12).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "gone" not in broker.server.topics.topics
    grant(rules, (TOPIC, "gone", Operation.CREATE))
    assert raw.ask(asked, 12).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert "gone" in broker.server.topics.topics


def test_a_right_that_is_taken_away_ends_in_a_fetch_session(rules: AccessRules, raw: Raw) -> None:
    """Later fetches of a session do not name its partitions."""
    grant(rules, (TOPIC, "theirs", Operation.READ))
    first = raw.ask(fetch_request({("theirs", 0): 0}, session_epoch=0, max_wait_ms=0), 12)
    assert first.responses[0].partitions[0].records
    rules.remove(list(rules))
    for epoch in (1, 2):
        again = raw.ask(fetch_request({}, session_id=first.session_id, session_epoch=epoch, max_wait_ms=0), 12)
        found = again.responses[0].partitions[0]
        assert (found.error_code, bytes(found.records or b"")) == (DENIED, b"")


@pytest.mark.parametrize("version", [11, 12])
def test_nobody_writes_into_another_ones_transaction(
    broker: Broker, rules: AccessRules, raw: Raw, version: int
) -> None:
    """With a transactional id of one's own and the producer id of another, or behind a batch of one's own."""
    rules.add(ALL)
    their_id = f"their-id-{version}"
    begun = raw.ask(InitProducerIdRequest(transactional_id=their_id, transaction_timeout_ms=60_000), 4)
    added = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=their_id,
        v3_and_below_producer_id=begun.producer_id,
        v3_and_below_producer_epoch=begun.producer_epoch,
        v3_and_below_topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name="mine", partitions=[0])],
    )
    assert raw.ask(added, 3).results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code == 0
    raw.ask(InitProducerIdRequest(transactional_id="my-id", transaction_timeout_ms=60_000), 4)
    rules.remove(ALL)
    grant(rules, (TOPIC, "mine", Operation.WRITE), (ID, "my-id", Operation.WRITE))
    theirs = batch(
        b"v", producer_id=begun.producer_id, producer_epoch=begun.producer_epoch, base_sequence=0, transactional=True
    )
    before = end_of(broker, "mine")
    no_id = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert raw.produce("mine", theirs, transactional_id=their_id, version=version).error_code == no_id
    assert raw.produce("mine", theirs, version=version).error_code == no_id
    assert raw.produce("mine", theirs, transactional_id="my-id", version=version).error_code not in (0, no_id)
    assert raw.produce("mine", batch(b"v") + theirs, version=version).error_code not in (0, no_id)
    two = produce_request("mine", batch(b"v"), transactional_id="my-id")
    two.topic_data[0].partition_data.append(ProduceRequest.PartitionProduceData(index=0, records=theirs))
    answer = raw.ask(two, version)
    assert answer.responses[0].partition_responses[-1].error_code != 0
    assert end_of(broker, "mine") <= before + 1, "at most the batch that is the attacker's own"
