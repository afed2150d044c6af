"""`semel log dump`: every kind of file, told in words, and what is wrong with it."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from semel.cli.log import log as log_command
from semel.config.codecs import CODECS
from semel.log.coordinator_words import in_words
from semel.log.opening import open_partition_log
from semel.records.batch import build
from semel.wire import encode_versioned
from semel.wire.messages.coordinator_records import (
    CONSUMER_OFFSETS_RECORDS,
    TRANSACTION_STATE_RECORDS,
    OffsetCommitKey,
    OffsetCommitValue,
    TransactionLogKey,
    TransactionLogValue,
)
from semel.wire.schema import about
from tests.broker.bad_batches import bad_batches, of_unusual_framing
from tests.log.disk import NOW, InlineFiles, batch, end, open_log, send, settings
from tests.wire.generated import messages

LOG = "00000000000000000000.log"
calm = hypothesis_settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])


def dump(*arguments: object) -> Result:
    return CliRunner().invoke(log_command, ["dump", *map(str, arguments)])


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    log = open_partition_log(
        tmp_path / "t-0",
        "t",
        0,
        settings(index_interval_bytes=100),
        NOW,
        topic_id=uuid.UUID(int=7),
        clean=True,
        files=InlineFiles(),
    )
    for number in range(5):
        log.append(batch(1, number, b"value %d" % number, timestamp_ms=NOW + number), NOW)
        send(log, 7, number, b"t")
        end(log, 7, commit=number % 2 == 0)
    log.close(NOW)
    return tmp_path / "t-0"


def test_every_kind_of_file_is_shown_and_nothing_is_wrong(directory: Path) -> None:
    result = dump(directory)
    assert result.exit_code == 0, result.output
    for words in ("record batches", "offset index", "time index", "aborted transactions", "producer state"):
        assert words in result.output
    assert "leader epochs" in result.output and "partition metadata" in result.output
    assert "COMMIT by coordinator epoch 0" in result.output and "ABORT" in result.output
    assert "WRONG" not in result.output


def test_json_says_the_same_to_programs(directory: Path) -> None:
    (told,) = json.loads(dump(directory / LOG, "--json", "--records").output)
    assert told["kind"] == "record batches" and told["problems"] == []
    assert [row["value"] for row in told["rows"] if "value" in row][:2] == ["value 0", "t"]


def test_a_torn_tail_and_damage_are_told_apart(directory: Path) -> None:
    path = directory / LOG
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    torn = dump(path)
    assert torn.exit_code == 1 and "a write that was cut short" in torn.output
    path.write_bytes(whole[:8] + b"\0\0\0\0" + whole[12:])
    damaged = dump(path)
    assert damaged.exit_code == 1 and "a valid batch follows" in damaged.output
    path.write_bytes(whole[:65] + b"\xff" + whole[66:])
    flipped = dump(path)
    assert flipped.exit_code == 1 and "the batch at byte 0 (offset 0): the batch's CRC-32C" in flipped.output


def test_the_same_record_twice_is_seen(tmp_path: Path) -> None:
    path = tmp_path / LOG
    twice = [
        build([(b"k", b"v")], producer_id=1, producer_epoch=0, base_sequence=5, base_offset=offset, timestamp_ms=NOW)
        for offset in (0, 1)
    ]
    path.write_bytes(b"".join(twice))
    result = dump(path)
    assert result.exit_code == 1 and "the same record twice" in result.output


@pytest.mark.parametrize("suffix", [".index", ".timeindex", ".txnindex", ".snapshot"])
def test_a_file_cut_short_or_changed_is_seen(directory: Path, suffix: str) -> None:
    path = next(directory.glob(f"*{suffix}"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert dump(path).exit_code == 1
    changed = bytearray(whole)
    changed[9] ^= 3
    path.write_bytes(changed)
    assert dump(path).exit_code == 1


def test_a_checkpoint_that_lies_about_its_length_is_seen(directory: Path) -> None:
    path = directory / "leader-epoch-checkpoint"
    path.write_text("0\n2\n0 0\n")
    result = dump(path)
    assert result.exit_code == 1 and "claims 2 entries and has 1" in result.output


def test_records_of_coordinators_are_told_in_words(tmp_path: Path) -> None:
    transactions = tmp_path / "__transaction_state-3"
    transactions.mkdir()
    value = TransactionLogValue(
        producer_id=9,
        producer_epoch=2,
        transaction_timeout_ms=60000,
        transaction_status=1,
        transaction_partitions=[TransactionLogValue.PartitionsSchema(topic="ledger", partition_ids=[0, 2])],
    )
    key = encode_versioned(TransactionLogKey(transactional_id="payments"), 0)
    (transactions / LOG).write_bytes(build([(key, encode_versioned(value, 1)), (key, None)], timestamp_ms=NOW))
    said = dump(transactions / LOG, "--records").output
    assert "transactional id 'payments' is Ongoing, producer 9 epoch 2" in said
    assert "in ledger-0, ledger-2" in said and "'payments' is forgotten" in said

    offsets = tmp_path / "__consumer_offsets-7"
    offsets.mkdir()
    key = encode_versioned(OffsetCommitKey(group="readers", topic="ledger", partition=2), 1)
    committed = encode_versioned(OffsetCommitValue(offset=57), 3)
    (offsets / LOG).write_bytes(build([(key, committed), (key, None), (b"\0\x63", b"")], timestamp_ms=NOW))
    said = dump(offsets / LOG, "--records").output
    assert "group 'readers' on ledger-2 is at offset 57" in said
    assert "has no offset any more" in said and "not known here" in said


COORDINATOR_RECORDS = [
    (topic, kind, key_class, value_class, version)
    for topic, classes in (
        ("__consumer_offsets", CONSUMER_OFFSETS_RECORDS),
        ("__transaction_state", TRANSACTION_STATE_RECORDS),
    )
    for kind, (key_class, value_class) in classes.items()
    for version in range(about(value_class).min_version, about(value_class).max_version + 1)
]


@pytest.mark.parametrize(("topic", "kind", "key_class", "value_class", "version"), COORDINATOR_RECORDS)
@calm
@given(data=st.data())
def test_every_record_a_coordinator_may_store_is_told_in_words(
    topic: str, kind: int, key_class: type, value_class: type, version: int, data: st.DataObject
) -> None:
    key = encode_versioned(data.draw(messages(key_class, kind)), kind)
    value = encode_versioned(data.draw(messages(value_class, version)), version)
    for words in (in_words(topic, key, value), in_words(topic, key, None)):
        assert words != "record" and "not readable" not in words, words


@calm
@given(st.sampled_from(["__consumer_offsets", "__transaction_state"]), st.integers(-1, 20), st.binary(), st.binary())
def test_noise_where_a_coordinators_record_should_be_is_told_and_no_more(
    topic: str, kind: int, key: bytes, value: bytes
) -> None:
    for noise in (key, kind.to_bytes(2, "big", signed=True) + key, None):
        for content in (value, b"\0\0" + value, b"", None):
            assert isinstance(in_words(topic, noise, content), str)


def test_a_group_of_the_consumer_protocol_is_dumped_as_a_broker_stored_it(tmp_path: Path) -> None:
    """The records of KIP-848 raised TypeError."""
    directory = tmp_path / "__consumer_offsets-7"
    directory.mkdir()
    records = []
    for kind, (key_class, value_class) in CONSUMER_OFFSETS_RECORDS.items():
        key = encode_versioned(key_class(), kind)
        records += [(key, encode_versioned(value_class(), about(value_class).max_version)), (key, None)]
    (directory / LOG).write_bytes(build(records, timestamp_ms=NOW))
    result = dump(directory / LOG, "--records")
    assert result.exit_code == 0, result.output
    assert "ConsumerGroupCurrentMemberAssignment(" in result.output and "epoch=0" in result.output


#: Flaws that no reader gets past, whatever is right about the header. A log may well have gaps, after compaction.
UNREADABLE = [
    "garbage",
    "nothing, compressed",
    "cut short",
    "records cut short",
    "more counted than there are",
    "fewer counted than there are",
    "bytes after the last record",
    "a field past its record",
    "a negative length",
    "headers without end",
    "a record twice",
    "a record far ahead",
]


@pytest.mark.parametrize("codec", range(5), ids=CODECS)
@pytest.mark.parametrize("flaw", UNREADABLE)
def test_a_batch_that_no_reader_gets_past_is_wrong_whatever_its_crc_says(
    tmp_path: Path, codec: int, flaw: str
) -> None:
    (tmp_path / LOG).write_bytes(bad_batches(codec)[flaw])
    result = dump(tmp_path / LOG, "--records")
    assert result.exit_code == 1, result.output
    assert "the batch at byte 0 (offset 0): no reader gets past its records" in result.output


@pytest.mark.parametrize("name", [name for name in of_unusual_framing() if "bytes after" not in name])
def test_what_some_writers_compress_in_ways_of_their_own_is_unpacked(tmp_path: Path, name: str) -> None:
    (tmp_path / LOG).write_bytes(of_unusual_framing()[name])
    result = dump(tmp_path / LOG, "--records", "--json")
    refused = "lz4" in name
    assert result.exit_code == refused, result.output
    if not refused:
        assert len(json.loads(result.output)[0]["rows"]) == 3001


def test_dumping_changes_nothing(directory: Path) -> None:
    before = {path: path.read_bytes() for path in directory.iterdir()}
    dump(directory, "--records")
    assert {path: path.read_bytes() for path in directory.iterdir()} == before
    assert open_log(directory.parent).end_offset == 15


@pytest.mark.parametrize("victim", [".index", ".log"])
def test_dumping_changes_nothing_and_goes_on_beside_a_damaged_file(directory: Path, victim: str) -> None:
    path = directory / LOG.replace(".log", victim)
    harmed = bytearray(path.read_bytes())
    harmed[8:12] = b"\xf7\xf7\xf7\xf7"
    harmed[:4] = b"\xf7\xf7\xf7\xf7"
    path.write_bytes(harmed)
    before = {each.name: each.read_bytes() for each in directory.iterdir()}
    for suffix in (".timeindex", ".txnindex", ".index", ".log"):
        result = dump(directory / LOG.replace(".log", suffix))
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        assert result.exit_code == 1 or suffix != victim
    assert {each.name: each.read_bytes() for each in directory.iterdir()} == before
