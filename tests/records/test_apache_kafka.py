"""Apache Kafka's dump tool reads our batches, and we read what Java's and librdkafka's producers had Kafka store."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from confluent_kafka import Producer

from semel.config.codecs import CODECS as NAMES
from semel.records.batch import Batch, Record, build, check, place, read_records, retain, split, without_records
from semel.records.columns import from_arrow, to_arrow
from semel.records.markers import control_batch, read_marker
from tests.support import java_tools
from tests.support.apache_kafka import ApacheKafka

pytestmark = pytest.mark.java
NOW = 1_700_000_000_000
#: Enough for several blocks of the codecs that work in blocks.
VALUES = [b"value %d, said thrice: %d %d" % (i, i, i * i) for i in range(4000)]


class Log:
    """A segment being written: each batch gets the next offset."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.end_offset = 0

    def append(self, batch: bytes) -> Batch:
        placed = bytearray(batch)
        place(placed, self.end_offset, 3)
        self.data += placed
        parsed = Batch.parse(placed)
        self.end_offset = parsed.next_offset
        return parsed

    def dumped(self, directory: Path) -> tuple[list[dict[str, str]], list[str]]:
        """What Apache Kafka's tool says: the facts of each batch, and the lines of the records."""
        path = directory / "00000000000000000000.log"
        path.write_bytes(self.data)
        said = java_tools.run("dump-log", "--deep-iteration", "--print-data-log", "--files", path).stdout
        lines = said.splitlines()
        batches = [dict(re.findall(r"(\w+): (\S+)", line)) for line in lines if line.startswith("baseOffset")]
        return batches, [line for line in lines if line.startswith("| offset")]


@pytest.mark.usefixtures("kafka_jars")
def test_apache_kafka_reads_every_record_of_our_batches(tmp_path: Path) -> None:
    log = Log()
    for codec in range(5):
        records = [Record(0, NOW + i, b"k%d" % i, value, (("h", b"x"), ("n", None))) for i, value in enumerate(VALUES)]
        log.append(
            build(
                records,
                timestamp_ms=NOW,
                codec=codec,
                producer_id=5,
                producer_epoch=1,
                base_sequence=log.end_offset,
                transactional=True,
            )
        )
    log.append(control_batch(5, 1, True, 9, NOW))
    log.append(control_batch(5, 1, False, 9, NOW))
    batches, records_said = log.dumped(tmp_path)
    assert [batch["isvalid"] for batch in batches] == ["true"] * 7
    assert [batch["compresscodec"] for batch in batches] == [*NAMES, "none", "none"]
    assert [batch["lastSequence"] for batch in batches[:5]] == [str(4000 * n - 1) for n in range(1, 6)]
    assert {batch["isTransactional"] for batch in batches} == {"true"}
    assert {batch["partitionLeaderEpoch"] for batch in batches} == {"3"}
    assert len(records_said) == 5 * 4000 + 2
    for index, line in enumerate(records_said[:-2]):
        value = VALUES[index % 4000].decode()
        assert line == (
            f"| offset: {index} CreateTime: {NOW + index % 4000} keySize: {len(str(index % 4000)) + 1} "
            f"valueSize: {len(value)} sequence: {index} headerKeys: [h,n] key: k{index % 4000} payload: {value}"
        )
    assert records_said[-2].endswith("endTxnMarker: COMMIT coordinatorEpoch: 9")
    assert records_said[-1].endswith("endTxnMarker: ABORT coordinatorEpoch: 9")


@pytest.mark.usefixtures("kafka_jars")
def test_apache_kafka_reads_compacted_emptied_and_columnar_batches(tmp_path: Path) -> None:
    log = Log()
    source = Batch.parse(
        build(
            [(b"k%d" % i, value) for i, value in enumerate(VALUES)],
            timestamp_ms=NOW,
            codec=3,
            producer_id=6,
            producer_epoch=0,
            base_sequence=0,
        )
    )
    log.append(retain(source, lambda record: record.offset % 1000 == 7, NOW + 99) or b"")
    log.append(without_records(source))
    for codec in range(5):
        table = to_arrow(bytes(source.data), topic="t", partition=0)
        for data in from_arrow(table, timestamp_ms=NOW, codec=codec):
            log.append(data)
    batches, records_said = log.dumped(tmp_path)
    assert {batch["isvalid"] for batch in batches} == {"true"}
    assert [(batch["count"], batch["lastSequence"]) for batch in batches[:2]] == [("4", "3999"), ("0", "3999")]
    assert batches[0]["deleteHorizonMs"] == f"OptionalLong[{NOW + 99}]"
    assert [line.split(" ", 3)[2] for line in records_said[:4]] == ["7", "1007", "2007", "3007"]
    assert all(f"CreateTime: {NOW} " in line for line in records_said)
    assert len(records_said) == 4 + 5 * 4000


def stored_by(kafka: ApacheKafka, topic: str) -> list[Batch]:
    return split((kafka.data / f"{topic}-0" / "00000000000000000000.log").read_bytes())


def assert_reads(batches: list[Batch], codec: int) -> None:
    for batch in batches:
        check(batch, framing=True, stored=True)
        if not batch.is_control:
            assert batch.codec == codec
    values = [record.value for batch in batches if not batch.is_control for record in read_records(batch)]
    assert values == VALUES
    assert to_arrow(batches, topic="t", partition=0).column("value").to_pylist() == VALUES


@pytest.mark.parametrize("codec", range(5))
def test_we_read_what_librdkafka_writes(apache_kafka: ApacheKafka, codec: int) -> None:
    topic = f"records-librdkafka-{NAMES[codec]}"
    producer = Producer(
        {
            "bootstrap.servers": apache_kafka.bootstrap_servers,
            "compression.type": NAMES[codec],
            "transactional.id": topic,
            "batch.size": 500_000,
            "linger.ms": 200,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for value in VALUES:
        producer.produce(topic, value=value, key=b"k", headers=[("h", b"x"), ("n", None)])
    producer.commit_transaction(30)
    batches = stored_by(apache_kafka, topic)
    assert_reads(batches, codec)
    assert {record.headers for record in read_records(batches[0])} == {(("h", b"x"), ("n", None))}
    assert batches[0].is_transactional and batches[0].base_sequence == 0
    if batches[-1].is_control:  # the marker is written soon after the commit is answered
        assert read_marker(batches[-1]).commit


@pytest.mark.parametrize("codec", range(5))
def test_we_read_what_javas_producer_writes(apache_kafka: ApacheKafka, codec: int) -> None:
    topic = f"records-java-{NAMES[codec]}"
    java_tools.run(
        "console-producer",
        *("--bootstrap-server", apache_kafka.bootstrap_servers, "--topic", topic),
        *("--compression-codec", NAMES[codec], "--max-partition-memory-bytes", 500_000),
        stdin=b"".join(value + b"\n" for value in VALUES),
    )
    batches = stored_by(apache_kafka, topic)
    assert_reads(batches, codec)
    assert batches[0].has_producer_id, "Java's producer is idempotent unless told otherwise"
