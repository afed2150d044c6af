"""What is acknowledged can be read: every record is looked at, inside its compression too. Nobody else waits for it."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import cramjam
import pytest
from confluent_kafka import Consumer

from semel.broker import record_checks
from semel.broker.embedded import Broker
from semel.broker.handlers import produce as produce_handler
from semel.config.codecs import CODECS as NAMES
from semel.errors import ErrorCode
from semel.log import admission
from semel.log.admission import Admission
from semel.log.partition_log import PartitionLog
from semel.records.batch import Batch, build
from semel.records.compression import compress
from semel.wire.messages.admin import DeleteTopicsRequest
from semel.wire.messages.configs import IncrementalAlterConfigsRequest
from semel.wire.messages.features import ApiVersionsRequest
from semel.wire.messages.fetch import ListOffsetsRequest
from semel.wire.messages.produce import ProduceRequest
from tests.broker.bad_batches import (
    GZIP,
    LZ4,
    ZSTD,
    bad_batches,
    batch_of,
    named,
    of_unusual_framing,
    payload,
    record,
    sealed,
)
from tests.broker.raw import Raw, batch, now_ms, produce_request, stored_batches
from tests.support.apache_kafka import ApacheKafka
from tests.support.waiting import until

COMPRESSED = range(1, 5)
#: Kafka's reader of compressed batches skips over what it does not need, and so accepts these; its consumers then
#: stop at them. In uncompressed ones it does not look at the offsets of records.
KAFKA_ACCEPTS = {"a length that lies", "a negative length"}
KAFKA_ACCEPTS_UNCOMPRESSED = {"a record twice", "records from 1 on", "a gap between records", "a record far ahead"}
#: Wrong in a way that a broker puts right.
PUT_RIGHT = {"a latest time that lies"}
BAD = [(codec, flaw) for codec in range(5) for flaw in bad_batches(codec) if flaw not in PUT_RIGHT]


def end_offset(raw: Raw, topic: str, partition: int = 0) -> int:
    row = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=-1)
    asked = ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=[row])
    found: int = raw.ask(ListOffsetsRequest(replica_id=-1, topics=[asked])).topics[0].partitions[0].offset
    return found


def many_partitions(topic: str, batches: list[bytes], **options: Any) -> ProduceRequest:
    request = produce_request(topic, batches[0], **options)
    request.topic_data[0].partition_data = [
        ProduceRequest.PartitionProduceData(index=index, records=data) for index, data in enumerate(batches)
    ]
    return request


def heavy(*, values: int = 300, codec: int = GZIP, **options: Any) -> bytes:
    """A batch that is in order and takes too long to be looked into at once."""
    data = batch(*(b"%d " % number * 500 for number in range(values)), codec=codec, **options)
    assert values * 500 > admission.LIGHT_DECOMPRESSED_BYTES
    return data


def bomb(unfolds_to: int = 8 << 20, codec: int = ZSTD, count: int = 1) -> bytes:
    """One record that is in order and far larger than it looks."""
    return batch_of(b"".join(record(n, value=bytes(unfolds_to)) for n in range(count)), codec, count)


@pytest.fixture
def looked_into(broker: Broker) -> Callable[[], int]:
    """How many batches were looked into elsewhere since the test began."""
    checks = broker.server.record_checks
    before = checks.batches
    return lambda: checks.batches - before


class Gate:
    """Keeps what is looked into elsewhere from being done until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered = threading.Semaphore(0)
        self.opened = threading.Event()
        prepared = Admission.prepare

        def waiting(given: Admission, *arguments: Any) -> Batch:
            self.entered.release()
            assert self.opened.wait(30)
            return prepared(given, *arguments)

        monkeypatch.setattr(Admission, "prepare", waiting)

    def wait(self) -> None:
        assert self.entered.acquire(timeout=30)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate(monkeypatch)
    yield gate
    gate.opened.set()


# What is refused


@pytest.mark.parametrize(("codec", "flaw"), BAD, ids=[f"{NAMES[codec]}-{flaw}" for codec, flaw in BAD])
def test_a_batch_that_lies_inside_is_refused_and_moves_nothing(raw: Raw, codec: int, flaw: str) -> None:
    topic = f"lies-{codec}-{BAD.index((codec, flaw))}"
    raw.create(topic)
    answer = raw.produce(topic, bad_batches(codec)[flaw])
    expected = ErrorCode.INVALID_TIMESTAMP if flaw == "a time far ahead" else ErrorCode.INVALID_RECORD
    assert (answer.error_code, answer.base_offset) == (expected, -1)
    assert answer.error_message
    assert end_offset(raw, topic) == 0
    assert raw.produce(topic, batch(b"good", codec=codec)).base_offset == 0


def test_a_consumer_reads_all_that_was_acknowledged_between_batches_that_were_not(broker: Broker, raw: Raw) -> None:
    raw.create("between")
    expected = []
    for name, data in named(COMPRESSED).items():
        good = name.encode()
        assert raw.produce("between", batch(good, codec=COMPRESSED[len(expected) % 4])).error_code == 0
        expected.append(good)
        if raw.produce("between", data).error_code == 0:
            expected += [b"v"] * 3
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "between", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe(["between"])
    found: list[bytes | None] = []
    try:
        until(lambda: found.extend(m.value() for m in consumer.consume(500, 0.2)) or len(found) >= len(expected))
    finally:
        consumer.close()
    assert found == expected


@pytest.mark.java
def test_whatever_kafka_refuses_is_refused_here_with_its_code_or_a_better_one(
    apache_kafka: ApacheKafka, raw: Raw
) -> None:
    with Raw(apache_kafka.bootstrap_servers) as kafka:
        for there in (kafka, raw):
            there.create("judged")
            there.create("judged-compacted", cleanup_policy="compact")
        keyless = {
            f"{NAMES[codec]}: no key": batch_of(record(0) + record(1, key=None) + record(2), codec)
            for codec in range(5)
        }
        keyless |= {
            f"{NAMES[codec]}: no key and a time far ahead": batch_of(
                record(0) + record(1, key=None) + record(2, timestamp_delta=10**11), codec
            )
            for codec in range(5)
        }
        for topic, batches in (("judged", named() | of_unusual_framing()), ("judged-compacted", keyless)):
            for name, data in batches.items():
                theirs, ours = kafka.produce(topic, data), raw.produce(topic, data)
                flaw = name.partition(": ")[2]
                # Kafka has no code for what it did not foresee, and a client cannot mend it by sending it again.
                known = theirs.error_code if theirs.error_code != ErrorCode.UNKNOWN_SERVER_ERROR else None
                accepted = flaw in KAFKA_ACCEPTS or (name.startswith("none") and flaw in KAFKA_ACCEPTS_UNCOMPRESSED)
                if accepted or name.endswith("bytes after it"):
                    known = None
                assert ours.error_code == (ErrorCode.INVALID_RECORD if known is None else known), name
                theirs_named = [row.batch_index for row in theirs.record_errors]
                assert [row.batch_index for row in ours.record_errors] == theirs_named, name


@pytest.mark.parametrize("codec", COMPRESSED, ids=NAMES[1:])
def test_the_latest_time_inside_is_the_one_that_is_stored(raw: Raw, topic: str, codec: int) -> None:
    raw.create(topic)
    at_ms = now_ms()
    plain = record(0) + record(1, timestamp_delta=-5) + record(2, timestamp_delta=-9)
    assert raw.produce(topic, batch_of(plain, codec, at_ms=at_ms, max_ms=at_ms + 10**9)).error_code == 0
    (stored,) = stored_batches(raw.fetch(topic))
    assert stored.max_timestamp == at_ms


@pytest.mark.parametrize("codec", range(5), ids=NAMES)
@pytest.mark.parametrize("count", [3, 20_000], ids=["light", "heavy"])
def test_records_without_keys_are_named_up_to_a_bound(raw: Raw, topic: str, codec: int, count: int) -> None:
    raw.create(topic, cleanup_policy="compact")
    answer = raw.produce(topic, batch_of(payload(count, key=None, value=b"twelve bytes"), codec, count))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [row.batch_index for row in answer.record_errors] == list(range(min(count, 1000)))


# Small ones at once, large ones elsewhere


@pytest.mark.parametrize("codec", range(5), ids=NAMES)
def test_what_clients_usually_send_is_looked_into_at_once(
    raw: Raw, topic: str, codec: int, looked_into: Callable[[], int]
) -> None:
    raw.create(topic)
    assert raw.produce(topic, batch(*(b"x%d" % n * 20 for n in range(150)), codec=codec)).error_code == 0
    assert looked_into() == 0


@pytest.mark.parametrize("codec", COMPRESSED, ids=NAMES[1:])
def test_a_batch_has_only_so_many_records_however_small_they_get(
    raw: Raw, topic: str, codec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "COMPRESSED_RECORDS_LIMIT", 5000)
    raw.create(topic)
    assert raw.produce(topic, batch_of(payload(5000), codec, 5000)).error_code == 0
    assert raw.produce(topic, batch_of(payload(5001), codec, 5001)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert raw.produce(topic, batch_of(payload(5001), 0, 5001)).error_code == 0


@pytest.mark.parametrize("codec", range(5), ids=NAMES)
def test_a_large_batch_is_looked_into_elsewhere_and_stored_as_it_was_sent(
    raw: Raw, topic: str, codec: int, looked_into: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "LIGHT_BYTES", 100_000)
    raw.create(topic)
    sent = heavy(codec=codec)
    assert raw.produce(topic, sent).base_offset == 0
    assert looked_into() == 1
    assert bytes(stored_batches(raw.fetch(topic))[0].data)[16:] == sent[16:]
    assert raw.produce(topic, bad_batches(codec)["garbage"]).error_code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize(
    ("name", "packed", "codec"),
    [
        ("gzip", b"".join(gzip.compress(record(n)) for n in range(100)), GZIP),
        ("lz4", compress(LZ4, b"")[:7] + b"".join(
            (len(record(n)) | 1 << 31).to_bytes(4, "little") + record(n) for n in range(100)
        ) + bytes(4), LZ4),
    ],
    ids=["gzip", "lz4"],
)  # fmt: skip
def test_a_batch_of_many_small_pieces_is_no_small_work(
    raw: Raw, topic: str, name: str, packed: bytes, codec: int, looked_into: Callable[[], int]
) -> None:
    raw.create(topic)
    assert raw.produce(topic, sealed(packed, codec, 100)).error_code == 0
    assert looked_into() == 1


@pytest.mark.parametrize("target", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("values", [1, 300], ids=["light", "heavy"])
def test_a_topic_with_a_codec_of_its_own_gets_the_same_records(
    raw: Raw, topic: str, target: str, values: int, looked_into: Callable[[], int]
) -> None:
    for codec in range(5):
        name = f"{topic}-{codec}"[-200:]
        raw.create(name, compression_type=target, max_message_bytes="2000000")
        sent = batch(*(b"%d " % n * 500 for n in range(values)), codec=codec, producer_id=5, producer_epoch=0,
                     base_sequence=7, timestamp_ms=now_ms())  # fmt: skip
        assert raw.produce(name, sent).error_code == 0
        (stored,) = stored_batches(raw.fetch(name, partition_max_bytes=2_000_000))
        assert NAMES[stored.codec] == target.replace("uncompressed", "none")
        given = Batch.parse(sent)
        for field in ("base_sequence", "producer_id", "base_timestamp", "max_timestamp", "record_count"):
            assert getattr(stored, field) == getattr(given, field)
        assert raw.values(name, partition_max_bytes=2_000_000) == [b"%d " % n * 500 for n in range(values)]
    if values == 1:
        assert looked_into() <= 1, "the size of lz4 is a coarse guess, that of the others is not"
    else:
        assert looked_into() >= 5 - (target == "uncompressed"), "all but what comes uncompressed and stays so"


# Order, and what was checked is what is written


def test_an_idempotent_producers_batches_are_written_in_order_of_arrival_whether_light_or_heavy(
    raw: Raw, topic: str, looked_into: Callable[[], int]
) -> None:
    raw.create(topic)
    identity = {"producer_id": 8101, "producer_epoch": 0}
    batches, sequence = [], 0
    for number in range(10):
        values = 300 if number % 2 == 0 else 1
        one = heavy(**identity, base_sequence=sequence) if values > 1 else batch(base_sequence=sequence, **identity)
        batches.append(one)
        sequence += values
    sent = raw.send_together(*((produce_request(topic, data), 12) for data in batches))
    answers = [raw.receive(one).responses[0].partition_responses[0] for one in sent]
    assert [answer.error_code for answer in answers] == [0] * 10
    assert [answer.base_offset for answer in answers] == [Batch.parse(data).base_sequence for data in batches]
    assert looked_into() == 5


def test_what_arrives_meanwhile_does_not_touch_what_is_being_looked_into(raw: Raw, topic: str, gate: Gate) -> None:
    raw.create(topic)
    first, others = heavy(), [batch(b"%d" % n * 4000) for n in range(20)]
    sent = raw.send_together((produce_request(topic, first), 12), *((produce_request(topic, o), 12) for o in others))
    gate.wait()
    later = raw.send_together(*((produce_request(topic, other), 12) for other in others))
    gate.opened.set()
    assert [raw.receive(one).responses[0].partition_responses[0].error_code for one in sent + later] == [0] * 41
    stored = stored_batches(raw.fetch(topic, partition_max_bytes=1 << 22))
    assert [bytes(found.data)[16:] for found in stored] == [data[16:] for data in [first, *others, *others]]


def test_others_are_served_while_a_batch_is_looked_into(broker: Broker, raw: Raw, topic: str, gate: Gate) -> None:
    raw.create(topic, partitions=2)
    sent = raw.send(many_partitions(topic, [heavy(), batch(b"behind it")]), 12)
    gate.wait()
    with Raw(broker) as other:
        assert other.produce(topic, batch(b"overtakes")).base_offset == 0
        assert end_offset(other, topic, partition=1) == 0
    gate.opened.set()
    rows = raw.receive(sent).responses[0].partition_responses
    assert [(row.index, row.error_code, row.base_offset) for row in rows] == [(0, 0, 1), (1, 0, 0)]


def test_a_topic_that_changes_meanwhile_wants_its_batch_again(broker: Broker, raw: Raw, topic: str, gate: Gate) -> None:
    raw.create(topic)
    sent = raw.send(produce_request(topic, heavy()), 12)
    gate.wait()
    with Raw(broker) as other:
        change = IncrementalAlterConfigsRequest.AlterableConfig(name="cleanup.policy", value="compact")
        resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
            resource_type=2, resource_name=topic, configs=[change]
        )
        assert other.ask(IncrementalAlterConfigsRequest(resources=[resource])).responses[0].error_code == 0
    gate.opened.set()
    # Its records have no keys: what was found in order before is not in order any more.
    assert raw.receive(sent).responses[0].partition_responses[0].error_code == ErrorCode.REQUEST_TIMED_OUT
    assert raw.produce(topic, heavy()).error_code == ErrorCode.INVALID_RECORD


@pytest.mark.parametrize("again", [False, True])
def test_a_topic_that_is_deleted_meanwhile_takes_nothing(
    broker: Broker, raw: Raw, topic: str, gate: Gate, again: bool
) -> None:
    raw.create(topic)
    sent = raw.send(produce_request(topic, heavy()), 12)
    gate.wait()
    with Raw(broker) as other:
        gone = DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name=topic)])
        assert other.ask(gone).responses[0].error_code == 0
        if again:
            other.create(topic)
    gate.opened.set()
    answer = raw.receive(sent).responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if again:
        assert end_offset(raw, topic) == 0


def test_what_was_sent_without_wanting_an_answer_is_written_though_its_sender_hangs_up(
    broker: Broker, raw: Raw, topic: str, gate: Gate
) -> None:
    raw.create(topic)
    with Raw(broker) as quiet:
        large, small = (produce_request(topic, data, acks=0) for data in (heavy(values=300), batch(b"behind it")))
        quiet.send_together((large, 12), (small, 12))
        gate.wait()
    gate.opened.set()
    until(lambda: end_offset(raw, topic) == 301, what="both batches to be written")


# Bounds


def test_one_request_has_no_more_than_its_share_unfolded_and_the_rest_may_come_again(
    raw: Raw, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "DECOMPRESSED_MIN_LIMIT", 4 << 20)
    monkeypatch.setattr(admission, "DECOMPRESSED_RATIO_LIMIT", 1)
    monkeypatch.setattr(record_checks, "DECOMPRESSED_MAX_BYTES", 10 << 20)
    raw.create(topic, partitions=8, cleanup_policy="compact")
    fine = bomb(3 << 20)
    rows = raw.ask(many_partitions(topic, [fine] * 8), 12).responses[0].partition_responses
    assert [row.error_code for row in rows] == [0] * 3 + [ErrorCode.REQUEST_TIMED_OUT] * 5
    again = raw.ask(many_partitions(topic, [batch(key=b"k")] * 3 + [fine] * 3), 12).responses[0].partition_responses
    assert [row.error_code for row in again] == [0] * 6
    too_large = raw.ask(many_partitions(topic, [bomb(5 << 20)] * 2 + [fine]), 12).responses[0].partition_responses
    assert [row.error_code for row in too_large] == [ErrorCode.MESSAGE_TOO_LARGE] * 2 + [ErrorCode.REQUEST_TIMED_OUT]
    assert end_offset(raw, topic) == 2


@pytest.mark.parametrize("codec", COMPRESSED, ids=NAMES[1:])
def test_a_batch_that_unfolds_too_far_is_refused(
    raw: Raw, topic: str, codec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission, "DECOMPRESSED_MIN_LIMIT", 4 << 20)
    monkeypatch.setattr(admission, "DECOMPRESSED_RATIO_LIMIT", 1)
    raw.create(topic)
    assert raw.produce(topic, bomb(3 << 20, codec)).error_code == 0
    assert raw.produce(topic, bomb(5 << 20, codec)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert raw.produce(topic, bomb(1 << 20, codec, count=5)).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert end_offset(raw, topic) == 1


@pytest.mark.parametrize("version", [12, 13])
def test_a_partition_that_is_named_twice_is_not_written_and_says_so(raw: Raw, topic: str, version: int) -> None:
    """Apache Kafka 4.3.1 writes the last of them and answers once: the others are lost without a word."""
    topic_id = raw.create(topic, partitions=2)
    request = many_partitions(topic, [batch(b"0"), batch(b"1")])
    request.topic_data += many_partitions(topic, [batch(b"2")]).topic_data
    for data in request.topic_data:
        data.topic_id = topic_id
    answers = raw.ask(request, version).responses
    codes = [[(row.index, row.error_code) for row in answer.partition_responses] for answer in answers]
    assert codes == [[(0, ErrorCode.INVALID_REQUEST), (1, ErrorCode.NONE)], [(0, ErrorCode.INVALID_REQUEST)]]
    assert (end_offset(raw, topic), end_offset(raw, topic, partition=1)) == (0, 1)


def test_200_bombs_for_one_partition_cost_nothing(raw: Raw, topic: str, looked_into: Callable[[], int]) -> None:
    """They stood still for 80 s."""
    raw.create(topic, cleanup_policy="compact")
    data = bomb(100 << 20)
    assert len(data) < 5000
    request = produce_request(topic, data)
    request.topic_data[0].partition_data *= 200
    rows = raw.ask(request, 12).responses[0].partition_responses
    assert {row.error_code for row in rows} == {ErrorCode.INVALID_REQUEST} and len(rows) == 200
    assert looked_into() == 0


def test_others_are_served_beside_as_many_bombs_as_a_request_may_bring(broker: Broker, raw: Raw, topic: str) -> None:
    raw.create(topic, partitions=50, cleanup_policy="compact")
    done = threading.Event()
    codes: list[int] = []

    def ask() -> None:
        raw.socket.settimeout(60)
        rows = raw.ask(many_partitions(topic, [bomb(30 << 20)] * 50), 12).responses[0].partition_responses
        codes.extend(row.error_code for row in rows)
        done.set()

    thread = threading.Thread(target=ask)
    served = 0
    with Raw(broker) as other:
        thread.start()
        while not done.is_set():
            other.ask(ApiVersionsRequest(), 0)
            served += 1
    thread.join()
    assert codes.count(0) == 4 and set(codes) == {0, ErrorCode.REQUEST_TIMED_OUT}
    assert served >= 10, "while four bombs were unfolded, nobody else was served"


def test_many_partitions_are_written_in_many_turns_of_the_loop(
    broker: Broker, raw: Raw, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw.create(topic, partitions=400)
    turn, per_turn = 0, Counter[int]()
    append = PartitionLog.append

    def counted(*arguments: Any, **options: Any) -> Any:
        per_turn[turn] += 1
        return append(*arguments, **options)

    async def count_turns() -> None:
        nonlocal turn
        while sum(per_turn.values()) < 400:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(PartitionLog, "append", counted)
    counting = asyncio.run_coroutine_threadsafe(count_turns(), broker.server.loop)
    rows = raw.ask(many_partitions(topic, [batch()] * 400), 12).responses[0].partition_responses
    counting.result(30)
    assert [row.error_code for row in rows] == [0] * 400
    most = produce_handler.BYTES_AT_ONCE // produce_handler.PARTITION_COSTS_BYTES
    assert max(per_turn.values()) <= most < 100


def test_others_are_served_between_partitions_that_are_refused_because_the_share_is_used_up(
    broker: Broker, raw: Raw, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_checks, "DECOMPRESSED_MAX_BYTES", 1 << 20)
    raw.create(topic, partitions=40)
    turn, per_turn = 0, Counter[int]()
    is_light = Admission.is_light

    def counted(given: Admission, data: Any) -> bool:
        per_turn[turn] += 1
        return is_light(given, data)

    async def count_turns() -> None:
        nonlocal turn
        while sum(per_turn.values()) < 40:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(Admission, "is_light", counted)
    counting = asyncio.run_coroutine_threadsafe(count_turns(), broker.server.loop)
    rows = raw.ask(many_partitions(topic, [bomb(2 << 20)] * 40), 12).responses[0].partition_responses
    counting.result(30)
    assert {row.error_code for row in rows} == {ErrorCode.REQUEST_TIMED_OUT}
    assert max(per_turn.values()) <= 2


@pytest.mark.parametrize("codec", range(5), ids=NAMES)
def test_an_internal_topic_is_repaired_in_small_steps(broker: Broker, raw: Raw, codec: int) -> None:
    raw.topic_id("__consumer_offsets")
    with Raw(broker, client_id=produce_handler.ADMIN_CLIENT) as tool:
        answer = tool.produce("__consumer_offsets", heavy(codec=codec, key=b"k"))
    assert answer.error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert "smaller batches" in (answer.error_message or "")


def test_an_lz4_frame_that_java_clients_could_not_read_is_refused(raw: Raw, topic: str) -> None:
    raw.create(topic)
    plain = payload(2000, value=b"some text that repeats")
    answer = raw.produce(topic, sealed(bytes(cramjam.lz4.compress(plain)), LZ4, 2000))
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert "depend on each other" in (answer.error_message or "")


def test_a_stop_does_not_wait_for_what_is_being_looked_into(gate: Gate) -> None:
    with Broker() as stopped, Raw(stopped) as raw:
        raw.create("t")
        raw.send(produce_request("t", heavy()), 12)
        gate.wait()
        stopping = threading.Thread(target=stopped.stop)
        stopping.start()
        stopping.join(30)
        still_waits = stopping.is_alive()
        gate.opened.set()
        stopping.join()
    assert not still_waits


def test_a_batch_built_of_many_records_is_walked_whole(raw: Raw, topic: str) -> None:
    """The last record of very many is looked at like the first."""
    raw.create(topic)
    count = 50_000
    plain = payload(count - 1) + record(count)
    for codec in range(5):
        assert raw.produce(topic, batch_of(plain, codec, count)).error_code == ErrorCode.INVALID_RECORD
    good = build([(b"k", b"v")] * count, timestamp_ms=now_ms(), codec=GZIP)
    assert raw.produce(topic, good).base_offset == 0
