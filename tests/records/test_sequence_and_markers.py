"""Sequence numbers wrap without ever going negative; markers say commit or abort and nothing else."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import ErrorCode, Refused
from semel.records.batch import Batch, build, check
from semel.records.markers import TransactionMarker, control_batch, read_marker
from semel.records.sequence import MAX_SEQUENCE, in_sequence, last_sequence, next_sequence

sequences = st.integers(0, MAX_SEQUENCE)


def test_after_the_largest_sequence_comes_zero() -> None:
    assert next_sequence(MAX_SEQUENCE, 1) == 0
    assert in_sequence(MAX_SEQUENCE, 0)
    assert not in_sequence(MAX_SEQUENCE, MAX_SEQUENCE + 1)
    assert last_sequence(MAX_SEQUENCE - 1, 5) == 2
    assert in_sequence(-1, 0), "the first batch of a producer starts at 0"


@given(sequences, st.integers(1, MAX_SEQUENCE))
def test_a_batch_that_follows_another_is_in_sequence(base: int, count: int) -> None:
    following = next_sequence(base, count)
    assert 0 <= following <= MAX_SEQUENCE
    assert in_sequence(last_sequence(base, count), following)


@pytest.mark.parametrize("commit", [True, False])
def test_a_marker_tells_how_its_transaction_ended(commit: bool) -> None:
    batch = Batch.parse(control_batch(77, 3, commit, 12, 1000, base_offset=5, leader_epoch=2))
    check(batch, framing=True, stored=True)
    assert read_marker(batch) == TransactionMarker(commit, 12)
    assert batch.attributes == 0x30
    assert (batch.producer_id, batch.producer_epoch, batch.base_sequence) == (77, 3, -1)
    assert (batch.base_offset, batch.leader_epoch, batch.record_count, batch.max_timestamp) == (5, 2, 1, 1000)


@pytest.mark.parametrize(
    ("key", "value"),
    [(b"\0\0\0\x02", bytes(6)), (b"\0\0", bytes(6)), (b"\0\0\0\x01", b""), (None, bytes(6)), (b"\0\0\0\x01", None)],
)
def test_what_ends_no_transaction_is_refused_as_a_marker(key: bytes | None, value: bytes | None) -> None:
    data = build([(key, value)], timestamp_ms=0, producer_id=1, producer_epoch=0, transactional=True, control=True)
    with pytest.raises(Refused) as refused:
        read_marker(Batch.parse(data))
    assert refused.value.code == ErrorCode.INVALID_RECORD


def test_an_ordinary_batch_is_no_marker() -> None:
    with pytest.raises(Refused):
        read_marker(Batch.parse(build([(b"\0\0\0\x01", bytes(6))], timestamp_ms=0)))
