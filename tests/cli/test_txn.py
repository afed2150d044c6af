"""`semel txn` against a broker that is really there."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from semel.broker.embedded import Broker
from semel.cli.txn import txn
from semel.client.blocking.cluster import BlockingCluster
from semel.client.cluster.cluster import Controller, Coordinator, Leader
from semel.errors import ErrorCode
from semel.machines.values import ProducerIdentity
from semel.records.batch import Record
from semel.records.building import build
from semel.wire.messages.admin import CreateTopicsRequest
from semel.wire.messages.produce import ProduceRequest
from semel.wire.messages.transactions import EndTxnRequest, InitProducerIdRequest, WriteTxnMarkersRequest
from tests.broker.raw import Raw, batch
from tests.support.waiting import until


class Person:
    """Types commands, and does behind the scenes what producers do."""

    def __init__(self, broker: Broker, cluster: BlockingCluster) -> None:
        self.broker = broker
        self.cluster = cluster

    def types(self, *words: str, answer: str = "") -> Result:
        arguments = [*words, "--bootstrap", self.broker.bootstrap_servers]
        return CliRunner().invoke(txn, arguments, input=answer)

    def reads(self, *words: str) -> Any:
        result = self.types(*words, "--json")
        assert result.exit_code in (0, 1), result.output
        return json.loads(result.stdout)

    def init(self, transactional_id: str = "payments", timeout_ms: int = 60_000) -> ProducerIdentity:
        request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=timeout_ms)
        answer = self.cluster.request_retrying(request, to=Coordinator("transaction", transactional_id))
        assert answer.error_code == 0
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)

    def produce(
        self,
        producer: ProducerIdentity,
        transactional_id: str = "payments",
        sequence: int = 0,
        timestamp_ms: int | None = None,
    ) -> None:
        records = build(
            [Record(0, 0, None, b"paid", ())],
            timestamp_ms=self.broker.server.now_ms() if timestamp_ms is None else timestamp_ms,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        row = ProduceRequest.PartitionProduceData(index=0, records=records)
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[ProduceRequest.TopicProduceData(name="ledger", partition_data=[row])],
        )
        answer = self.cluster.request_retrying(request, to=Leader("ledger", 0), newest=12)
        assert answer.responses[0].partition_responses[0].error_code == 0

    def hang(self) -> ProducerIdentity:
        """A transaction in the partition that no coordinator knows, as brokers before verification could leave one."""
        stranger = ProducerIdentity(4242, 0)
        records = build(
            [Record(0, 0, None, b"lost", ())],
            timestamp_ms=self.broker.server.now_ms(),
            producer_id=stranger.producer_id,
            producer_epoch=stranger.producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        self.broker.call(self._append_unasked(records))
        return stranger

    async def _append_unasked(self, records: bytes) -> None:
        server = self.broker.server
        server.topics.partition("ledger", 0).log.append_internal(records, server.now_ms())


@pytest.fixture
def person(semel_broker: Broker) -> Iterator[Person]:
    with BlockingCluster({"bootstrap.servers": semel_broker.bootstrap_servers}) as cluster:
        topic = CreateTopicsRequest.CreatableTopic(name="ledger", num_partitions=2, replication_factor=1)
        cluster.request(Controller(), CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
        yield Person(semel_broker, cluster)


def test_transactions_are_listed_and_described(person: Person) -> None:
    person.produce(person.init())
    person.init("orders")
    rows = person.reads("list")
    assert [(row["transactional_id"], row["state"]) for row in rows] == [("orders", "Empty"), ("payments", "Ongoing")]
    assert [row["transactional_id"] for row in person.reads("list", "--state", "ongoing")] == ["payments"]
    assert [row["transactional_id"] for row in person.reads("list", "--pattern", "or.*")] == ["orders"]
    assert person.reads("list", "--longer-than-ms", "100000000", "--state", "Ongoing") == []
    described = person.reads("describe", "payments")[0]
    assert (described["state"], described["partitions"], described["timeout_ms"]) == ("Ongoing", ["ledger-0"], 60_000)
    in_words = person.types("describe", "payments").output
    assert "payments: Ongoing" in in_words and "in ledger-0" in in_words
    table = person.types("list").output
    assert table.splitlines()[0].split() == ["TRANSACTIONAL", "ID", "PRODUCER", "ID", "STATE"]


def test_an_unknown_id_and_a_broken_pattern_are_one_clear_line(person: Person) -> None:
    for words in (["describe", "nobody"], ["list", "--pattern", "("], ["doctor", "no-such-topic"]):
        result = person.types(*words)
        assert result.exit_code == 1
        assert result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1


def test_the_doctor_finds_nothing_where_nothing_is_open(person: Person) -> None:
    result = person.types("doctor", "ledger")
    assert (result.exit_code, result.output) == (
        0,
        "Checked 2 partitions: no transaction is open, nothing holds readers back.\n",
    )
    assert person.reads("doctor") == []


def test_the_doctor_explains_an_open_transaction_and_ends_it_when_told_to(person: Person) -> None:
    producer = person.init()
    person.produce(producer)
    result = person.types("doctor", "ledger")
    assert result.exit_code == 0, "an open transaction is no trouble"
    assert "ledger-0: in progress" in result.output
    assert "'payments'" in result.output
    assert "Wait" in result.output

    declined = person.types("doctor", "ledger", "--fix", answer="n\n")
    assert "End the transaction in ledger-0?" in declined.output
    assert person.reads("doctor", "ledger-0")[0]["verdict"] == "in progress"

    fixed = person.types("doctor", "ledger", "--fix", answer="y\n")
    assert "aborted the transaction of 'payments' and fenced its producer" in fixed.output
    assert person.reads("doctor") == []
    end = EndTxnRequest(
        transactional_id="payments",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=True,
    )
    answer = person.cluster.request_retrying(end, to=Coordinator("transaction", "payments"))
    assert answer.error_code == ErrorCode.PRODUCER_FENCED


def test_the_doctor_does_not_call_it_in_order_when_a_producer_went_silent(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    person.produce(person.init(timeout_ms=900_000))
    later_ms = int(time.time() * 1000) + 11 * 60_000
    monkeypatch.setattr("semel.cli.txn._now_ms", lambda: later_ms)
    result = person.types("doctor", "ledger")
    assert result.exit_code == 0, "it ends by itself, later"
    assert "ledger-0: silent" in result.output and "as it should be" not in result.output
    assert "nothing was written in the transaction for 11 min" in result.output.replace("10 min 59 s", "11 min")
    fixed = person.types("doctor", "ledger", "--fix", answer="y\n")
    assert "aborted the transaction of 'payments'" in fixed.output


def test_a_live_producer_of_old_records_is_not_called_silent(person: Person) -> None:
    """The broker says when it last heard of a producer, however old the records are that it wrote."""
    person.produce(person.init(timeout_ms=900_000), timestamp_ms=1_500_000_000_000)
    finding = person.reads("doctor", "ledger")[0]
    assert finding["verdict"] == "in progress"
    assert abs(finding["partition_view"]["last_timestamp_ms"] - time.time() * 1000) < 60_000


def test_a_producer_that_writes_while_it_is_watched_is_not_called_silent(
    person: Person, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Apache Kafka, where the last timestamp is the record's: the sequence number shows who is alive."""
    producer = person.init(timeout_ms=900_000)
    person.produce(producer)
    later_ms = int(time.time() * 1000) + 5 * 60_000
    monkeypatch.setattr("semel.cli.txn._now_ms", lambda: later_ms)
    assert person.reads("doctor", "ledger")[0]["verdict"] == "silent"
    monkeypatch.setattr("semel.cli.txn_requests._watch", lambda: person.produce(producer, sequence=1))
    assert person.reads("doctor", "ledger")[0]["verdict"] == "in progress"


def test_the_doctor_writes_the_marker_that_a_hanging_transaction_waits_for(person: Person) -> None:
    person.hang()
    sick = person.types("doctor")
    assert sick.exit_code == 1
    assert "ledger-0: hanging" in sick.output
    finding = person.reads("doctor", "ledger-0")[0]
    assert (finding["last_stable_offset"], finding["high_watermark"]) == (0, 1)
    assert (finding["coordinator_view"], finding["partition_view"]["producer_id"]) == (None, 4242)
    cured = person.types("doctor", "--fix", "--yes")
    assert cured.exit_code == 0
    assert "wrote the missing abort marker into ledger-0" in cured.output
    assert person.reads("doctor") == []


def test_the_doctor_writes_a_decided_outcome_that_the_partition_does_not_take_from_the_coordinator(
    person: Person,
) -> None:
    producer = person.init()
    forged = WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        transaction_result=False,
        coordinator_epoch=70,
        topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="ledger", partition_indexes=[0])],
    )
    person.cluster.request_retrying(WriteTxnMarkersRequest(markers=[forged]), to=Leader("ledger", 0))
    person.produce(producer)
    end = EndTxnRequest(
        transactional_id="payments",
        producer_id=producer.producer_id,
        producer_epoch=producer.producer_epoch,
        committed=True,
    )
    assert person.cluster.request_retrying(end, to=Coordinator("transaction", "payments")).error_code == 0
    finding = person.reads("doctor", "ledger-0")[0]
    assert (finding["verdict"], finding["last_stable_offset"]) == ("completing", 1)
    assert "refuses it" in finding["meaning"]
    fixed = person.types("doctor", "ledger", "--fix", answer="y\n")
    assert "wrote the commit that was decided into ledger-0" in fixed.output, fixed.output
    assert person.reads("doctor") == []
    until(lambda: person.reads("describe", "payments")[0]["state"] == "CompleteCommit", what="the commit")


@pytest.mark.semel(**{"transaction.max.timeout.ms": 500})
def test_a_transaction_is_aborted_also_where_only_short_ones_are_allowed(person: Person) -> None:
    person.produce(person.init(timeout_ms=400))
    assert person.types("abort", "payments", "--yes").exit_code == 0


def test_a_partition_that_cannot_be_read_does_not_keep_the_doctor_from_the_others(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("ledger", 2)
        for _ in range(2):
            raw.produce("ledger", batch(), partition=1)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    path = tmp_path / "ledger-1" / "00000000000000000000.log"
    whole = path.read_bytes()
    path.write_bytes(whole[:70] + b"\xff" + whole[71:])
    with Broker(tmp_path) as broker, BlockingCluster({"bootstrap.servers": broker.bootstrap_servers}) as cluster:
        person = Person(broker, cluster)
        person.produce(person.init())
        result = person.types("doctor", "ledger")
        assert "ledger-0: in progress" in result.stdout
        assert result.stderr.startswith("ledger-1 cannot be read: ") and "is damaged at byte" in result.stderr
        assert result.exit_code == 1


def test_yes_ends_only_what_will_not_end_by_itself(person: Person) -> None:
    person.produce(person.init())
    assert person.types("doctor", "--fix", "--yes").exit_code == 0
    assert person.reads("doctor", "ledger-0")[0]["verdict"] == "in progress"


def test_abort_by_name_asks_first_and_fences(person: Person) -> None:
    person.produce(person.init())
    refused = person.types("abort", "payments", answer="n\n")
    assert refused.exit_code == 1
    assert person.reads("describe", "payments")[0]["state"] == "Ongoing"
    done = person.types("abort", "payments", answer="y\n")
    assert done.exit_code == 0, done.output
    assert "'payments' is Ongoing" in done.output
    assert person.reads("describe", "payments")[0]["state"] == "Empty"
    assert person.reads("doctor") == []


def test_a_hanging_transaction_is_aborted_by_partition_and_producer_id(person: Person) -> None:
    person.hang()
    nobody = person.types("abort", "--partition", "ledger-0", "--producer-id", "7", "--yes")
    assert "Producer id 7 has no transaction open in ledger-0." in nobody.stderr
    done = person.types("abort", "--partition", "ledger-0", "--producer-id", "4242", "--yes")
    assert done.exit_code == 0, done.output
    assert person.reads("doctor") == []


def test_a_transaction_that_its_coordinator_knows_is_not_aborted_as_a_hanging_one(person: Person) -> None:
    producer = person.init()
    person.produce(producer)
    words = ("abort", "--partition", "ledger-0", "--producer-id", str(producer.producer_id), "--yes")
    result = person.types(*words)
    assert result.exit_code == 1
    assert "Abort it by that name." in result.stderr


@pytest.mark.parametrize(
    "words",
    [["abort"], ["abort", "payments", "--producer-id", "1"], ["abort", "--partition", "ledger-0"]],
)
def test_abort_wants_one_clear_name(person: Person, words: list[str]) -> None:
    assert person.types(*words).exit_code == 2
