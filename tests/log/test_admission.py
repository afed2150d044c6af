"""What a topic's settings say about times and sizes holds for every record, whatever its batch claims."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.errors import Refused
from semel.records.batch import build, split
from semel.records.layout import checksum
from tests.log.disk import NOW, batch, open_log, read_all


def of_times(*timestamps: int, codec: int = 0, claimed: int | None = None) -> bytes:
    """A batch of records with these times; `claimed`: what its header says is the largest."""
    data = bytearray(build([(b"k", b"v", (), at) for at in timestamps], codec=codec, timestamp_ms=NOW))
    if claimed is not None:
        data[35:43] = claimed.to_bytes(8, "big", signed=True)
        data[17:21] = checksum(data).to_bytes(4, "big")
    return bytes(data)


@pytest.mark.parametrize("codec", [0, 1])
def test_every_record_has_to_be_young_enough_not_only_the_first_and_the_latest(tmp_path: Path, codec: int) -> None:
    log = open_log(tmp_path, message_timestamp_before_max_ms=1000)
    log.append(of_times(NOW, NOW - 1000, codec=codec), NOW)
    with pytest.raises(Refused, match="INVALID_TIMESTAMP") as refused:
        log.append(of_times(NOW, NOW - 1001, NOW, codec=codec), NOW)
    assert [place for place, _ in refused.value.record_errors] == [1]  # type: ignore[attr-defined]


def test_a_record_without_a_time_is_neither_too_old_nor_too_new(tmp_path: Path) -> None:
    log = open_log(tmp_path, message_timestamp_before_max_ms=1000, message_timestamp_after_max_ms=1000)
    log.append(of_times(-1), NOW)
    assert [record.timestamp for record in read_all(log)] == [-1]


@pytest.mark.parametrize("claimed", [0, NOW - 5, NOW + 1000])
def test_a_batch_that_claims_another_latest_time_than_its_records_have_is_put_right(
    tmp_path: Path, claimed: int
) -> None:
    """As Kafka does. Retention and searches by time believe the header."""
    log = open_log(tmp_path)
    log.append(of_times(NOW - 9, NOW, NOW - 3, claimed=claimed), NOW)
    (found,) = split(log.reader.read(0, 1 << 20).data)
    assert found.max_timestamp == NOW and checksum(found.data) == found.crc
    assert log.times.offset_for_timestamp(NOW) == (NOW, 1, 0)


def test_a_record_too_far_in_the_future_is_found_behind_a_header_that_hides_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for at in (NOW + 3_600_001, 2**63 - 1):
        with pytest.raises(Refused, match="INVALID_TIMESTAMP"):
            log.append(of_times(NOW, at, claimed=NOW), NOW)
    assert log.end_offset == 0


@pytest.mark.parametrize(
    ("code", "changes"),
    [("MESSAGE_TOO_LARGE", {"max_message_bytes": 5000}), ("RECORD_LIST_TOO_LARGE", {"segment_bytes": 5000})],
)
def test_what_a_topic_unfolds_must_fit_it_too(tmp_path: Path, code: str, changes: dict[str, object]) -> None:
    log = open_log(tmp_path, compression_type="uncompressed", **changes)
    small = batch(1, 0, b"x" * 10_000, codec=1)
    assert len(small) < 1000
    with pytest.raises(Refused, match=code):
        log.append(small, NOW)
    assert (log.end_offset, log.size_bytes, len(log.producers)) == (0, 0, 0)


def test_a_time_that_no_header_can_hold_is_refused(tmp_path: Path) -> None:
    log = open_log(tmp_path, message_timestamp_after_max_ms=2**63 - 1)
    data = bytearray(of_times(NOW, NOW + 100))
    data[27:35] = (2**63 - 50).to_bytes(8, "big")
    data[17:21] = checksum(data).to_bytes(4, "big")
    with pytest.raises(Refused, match="INVALID_TIMESTAMP"):
        log.append(bytes(data), NOW)
