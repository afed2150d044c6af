"""The marker decides whether a micro-batch is still to be done, and refuses what does not belong together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.machines.contract import TopicPartition
from semel.spark.marker import Marker, MarkerConflict, Verdict, hash_of, judge

DONE = Marker("query", 7, "aa")
SOURCE = TopicPartition("payments", 0)


def test_a_rerun_of_the_committed_batch_is_skipped() -> None:
    assert judge(DONE, Marker("query", 7, "aa"), "id") is Verdict.SKIP


def test_the_next_batch_is_run() -> None:
    assert judge(DONE, Marker("query", 8, "bb"), "id") is Verdict.RUN


def test_the_first_batch_of_a_new_id_is_run() -> None:
    assert judge(None, Marker("query", 0, "aa"), "id") is Verdict.RUN


def test_a_checkpoint_set_back_one_batch_gives_no_duplicate() -> None:
    assert judge(DONE, Marker("query", 6, "99"), "id", {SOURCE: 70}, {SOURCE: 60}) is Verdict.SKIP


def test_a_checkpoint_set_back_that_plans_newer_data_under_an_old_batch_id_is_refused() -> None:
    with pytest.raises(MarkerConflict, match="newer data of payments-0"):
        judge(DONE, Marker("query", 6, "99"), "id", {SOURCE: 70}, {SOURCE: 71})


def test_lost_progress_is_refused_because_nobody_knows_what_was_written() -> None:
    with pytest.raises(MarkerConflict, match="no progress"):
        judge(None, Marker("query", 3, "aa"), "id")


def test_a_new_checkpoint_under_an_old_id_is_refused_instead_of_skipping_its_data() -> None:
    with pytest.raises(MarkerConflict, match="belongs to query query"):
        judge(DONE, Marker("stranger", 0, "aa"), "id")


def test_the_same_batch_with_other_offsets_is_refused() -> None:
    with pytest.raises(MarkerConflict, match="other source offsets"):
        judge(DONE, Marker("query", 7, "bb"), "id")


def test_a_gap_between_the_commit_and_the_checkpoint_is_refused() -> None:
    with pytest.raises(MarkerConflict, match="never written"):
        judge(DONE, Marker("query", 9, "cc"), "id")


def test_every_refusal_says_what_to_do() -> None:
    with pytest.raises(MarkerConflict, match=r"Use a new transactional id .* delete the offsets of the group 'till'"):
        judge(None, Marker("query", 3, "aa"), "till")


@given(st.text(), st.integers(0, 2**40), st.text(alphabet="0123456789abcdef"))
def test_a_marker_survives_its_trip_through_metadata(query: str, batch: int, digest: str) -> None:
    marker = Marker(query, batch, digest)
    assert Marker.from_metadata(marker.to_metadata()) == marker


def test_foreign_metadata_is_no_marker() -> None:
    assert Marker.from_metadata("") is None
    assert Marker.from_metadata("checkpoint by someone else") is None


def test_the_fingerprint_does_not_depend_on_the_order_of_keys() -> None:
    assert hash_of(['{"a":{"0":1,"1":2}}']) == hash_of(['{"a":{"1":2,"0":1}}'])
    assert hash_of(['{"a":{"0":1}}']) != hash_of(['{"a":{"0":2}}'])
