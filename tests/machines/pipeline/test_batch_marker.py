"""The marker decides whether a micro-batch is still to be done, and refuses what does not belong together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.machines.pipeline.batch_marker import (
    BatchMarker,
    BatchVerdict,
    MarkerConflict,
    fingerprint_of,
    is_to_be_adopted,
    judge_batch,
    refuse_group_of_another,
)
from semel.machines.values import TopicPartition

DONE = BatchMarker("query", 7, "aa")
SOURCE = TopicPartition("payments", 0)


def test_a_rerun_of_the_committed_batch_is_skipped() -> None:
    assert judge_batch(DONE, BatchMarker("query", 7, "aa"), "id") is BatchVerdict.SKIP


def test_the_next_batch_is_run() -> None:
    assert judge_batch(DONE, BatchMarker("query", 8, "bb"), "id") is BatchVerdict.RUN


def test_the_first_batch_of_a_new_id_is_run() -> None:
    assert judge_batch(None, BatchMarker("query", 0, "aa"), "id") is BatchVerdict.RUN


def test_a_checkpoint_set_back_one_batch_gives_no_duplicate() -> None:
    assert judge_batch(DONE, BatchMarker("query", 6, "99"), "id", {SOURCE: 70}, {SOURCE: 60}) is BatchVerdict.SKIP


def test_a_checkpoint_set_back_that_plans_newer_data_under_an_old_batch_id_is_refused() -> None:
    with pytest.raises(MarkerConflict, match="newer data of payments-0"):
        judge_batch(DONE, BatchMarker("query", 6, "99"), "id", {SOURCE: 70}, {SOURCE: 71})


def test_lost_progress_is_refused_because_nobody_knows_what_was_written() -> None:
    with pytest.raises(MarkerConflict, match="no progress"):
        judge_batch(None, BatchMarker("query", 3, "aa"), "id")


def test_a_new_checkpoint_under_an_old_id_is_refused_instead_of_skipping_its_data() -> None:
    with pytest.raises(MarkerConflict, match="belongs to query query"):
        judge_batch(DONE, BatchMarker("stranger", 0, "aa"), "id")


def test_the_same_batch_with_other_offsets_is_refused() -> None:
    with pytest.raises(MarkerConflict, match="other source offsets"):
        judge_batch(DONE, BatchMarker("query", 7, "bb"), "id")


def test_a_gap_between_the_commit_and_the_checkpoint_is_refused() -> None:
    with pytest.raises(MarkerConflict, match="never written"):
        judge_batch(DONE, BatchMarker("query", 9, "cc"), "id")


def test_a_checkpoint_without_progress_is_adopted_and_one_with_progress_is_not() -> None:
    assert is_to_be_adopted(None, "query", 3, is_begun=False, accepts_repeat=False)
    assert is_to_be_adopted(None, "query", 3, is_begun=True, accepts_repeat=True)
    assert not is_to_be_adopted(None, None, 0, is_begun=False, accepts_repeat=True)
    assert not is_to_be_adopted(None, "query", 0, is_begun=True, accepts_repeat=False)
    assert not is_to_be_adopted(BatchMarker("query", 2, "aa"), "query", 3, is_begun=True, accepts_repeat=False)
    assert not is_to_be_adopted(BatchMarker("another", 2, "aa"), "query", 3, is_begun=True, accepts_repeat=True)


def test_a_batch_that_was_begun_by_another_sink_is_repeated_only_if_asked_for() -> None:
    with pytest.raises(MarkerConflict, match=r"batch 3 .* begun and not finished.* at 42.*adopt='repeat'"):
        is_to_be_adopted(None, "query", 3, is_begun=True, accepts_repeat=False, begins_at=lambda: "42")


def test_progress_that_is_gone_is_refused_with_a_way_that_works() -> None:
    """A new transactional id alone is none: it knows no progress either, and is refused in the same words."""
    with pytest.raises(MarkerConflict) as refused:
        judge_batch(None, BatchMarker("query", 3, "aa"), "till", begins_at=lambda: '{"payments":{"0":30}}')
    assert 'take it over: start(..., adopt=True)' in str(refused.value)
    assert 'an empty one, and set the source\'s startingOffsets to {"payments":{"0":30}}' in str(refused.value)
    assert "Use a new transactional id" not in str(refused.value)


def test_a_new_query_under_an_old_id_is_told_to_take_its_own_or_to_forget_the_old_one() -> None:
    with pytest.raises(MarkerConflict, match=r"a transactional_id of its own\. .* semel pipeline forget till"):
        judge_batch(DONE, BatchMarker("stranger", 0, "aa"), "till")


def test_a_foreign_checkpoint_past_its_first_batch_is_not_told_to_take_a_new_id_alone() -> None:
    with pytest.raises(MarkerConflict, match=r"with the transactional_id it was made with.*an empty checkpoint and"):
        judge_batch(DONE, BatchMarker("stranger", 3, "aa"), "till")


@pytest.mark.parametrize(
    "batch", [BatchMarker("query", 9, "cc"), BatchMarker("query", 7, "bb"), BatchMarker("query", 6, "99")]
)
def test_other_refusals_say_where_to_go_on(batch: BatchMarker) -> None:
    way = r'an empty checkpoint and a new transactional_id, .* startingOffsets to \{"payments":\{"0":70\}\}'
    with pytest.raises(MarkerConflict, match=way):
        judge_batch(DONE, batch, "till", {SOURCE: 70}, {SOURCE: 71})


def test_a_checkpoint_set_back_is_refused_where_its_offsets_cannot_be_compared() -> None:
    with pytest.raises(MarkerConflict, match="its source is not on this cluster"):
        judge_batch(DONE, BatchMarker("query", 6, "99"), "id", {SOURCE: 6}, None)
    assert judge_batch(DONE, BatchMarker("query", 7, "aa"), "id", {SOURCE: 7}, None) is BatchVerdict.SKIP
    assert judge_batch(DONE, BatchMarker("query", 8, "bb"), "id", {SOURCE: 7}, None) is BatchVerdict.RUN


@given(st.text(), st.integers(0, 2**40), st.text(alphabet="0123456789abcdef"))
def test_a_marker_survives_its_trip_through_metadata(query: str, batch: int, digest: str) -> None:
    marker = BatchMarker(query, batch, digest)
    assert BatchMarker.from_metadata(marker.to_metadata()) == marker


def test_foreign_metadata_is_no_marker() -> None:
    assert BatchMarker.from_metadata("") is None
    assert BatchMarker.from_metadata("checkpoint by someone else") is None


def test_the_fingerprint_does_not_depend_on_the_order_of_keys() -> None:
    assert fingerprint_of(['{"a":{"0":1,"1":2}}']) == fingerprint_of(['{"a":{"1":2,"0":1}}'])
    assert fingerprint_of(['{"a":{"0":1}}']) != fingerprint_of(['{"a":{"0":2}}'])


def test_a_group_with_offsets_of_another_program_is_left_alone() -> None:
    refuse_group_of_another(DONE, {SOURCE: 70}, "id", 0)  # some of the pipeline's own are left
    refuse_group_of_another(None, {}, "id", 0)
    with pytest.raises(MarkerConflict, match=r"group 'id' has offsets of another program \(payments-0 at 70\)"):
        refuse_group_of_another(None, {SOURCE: 70}, "id", 0)
    with pytest.raises(MarkerConflict, match=r"semel pipeline forget id, then start\(..., adopt=True\), because"):
        refuse_group_of_another(None, {SOURCE: 70}, "id", 3)
