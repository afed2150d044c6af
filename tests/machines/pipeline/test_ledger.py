"""The ledger of a pipeline: what the logs say is judged, and what they no longer say is not guessed."""

from __future__ import annotations

from semel.machines.pipeline.batch_marker import BatchMarker, MarkerDetails
from semel.machines.pipeline.ledger import End, History, Ledger, OffsetCommit, Written, make_ledger
from semel.machines.values import TopicPartition

SOURCE, OUTPUT = TopicPartition("payments", 0), TopicPartition("ledger", 0)


class Log:
    """Logs written by hand: each batch is a transaction of its own epoch."""

    def __init__(self) -> None:
        self.events: list[OffsetCommit | End] = []
        self.written: list[Written] = []
        self._epoch = 0

    def batch(self, number: int, begin: int | None, end: int, *, commit: bool | None = True, rows: int = 10,
              found: int | None = None, query: str = "q", marker_epoch: int = 1) -> None:  # fmt: skip
        producer, at = (7, self._epoch), len(self.events)
        metadata = BatchMarker(query, number, "aa").to_metadata(begins_at=begin, rows=rows)
        self.events.append(OffsetCommit(at, producer, SOURCE, end, metadata, 1000 + at))
        if commit is not None:
            self.events.append(End(at + 1, (7, self._epoch + marker_epoch), commit, 1000 + at))
        records = rows if found is None else found
        if records:
            self.written.append(Written(OUTPUT, producer, records, 0, records - 1, commit, 1000 + at))
        self._epoch += 1

    def judged(self, **more: object) -> Ledger:
        return make_ledger(History(tuple(self.events), tuple(self.written), **more))  # type: ignore[arg-type]


def test_batches_one_after_the_other_cover_the_source_once() -> None:
    log = Log()
    log.batch(0, None, 10)
    log.batch(1, 10, 20, commit=False)
    log.batch(1, 10, 20)
    log.batch(2, 20, 30)
    found = log.judged()
    assert found.is_exactly_once and not found.findings and not found.not_judged
    assert [(entry.batch_id, entry.outcome) for entry in found.entries] == [
        (0, "committed"), (1, "aborted"), (1, "committed"), (2, "committed"),
    ]  # fmt: skip
    assert found.covered == {SOURCE: (None, 30)}
    assert [entry.rows_found for entry in found.entries] == [10, 10, 10, 10]


def test_a_batch_that_was_committed_twice_is_found() -> None:
    log = Log()
    log.batch(0, None, 10)
    log.batch(1, 10, 20)
    log.batch(1, 10, 20)
    found = log.judged()
    assert not found.is_exactly_once
    assert found.findings == ("batch 1 of query q was committed twice: by producer 7 epoch 1 and by 7 epoch 2",)


def test_offsets_that_two_batches_cover_and_that_none_covers_are_found() -> None:
    overlap, hole = Log(), Log()
    overlap.batch(0, None, 10)
    overlap.batch(1, 8, 20)
    assert overlap.judged().findings == ("payments-0: offsets 8 to 10 are covered by batch 0 and by batch 1",)
    hole.batch(0, None, 10)
    hole.batch(1, 12, 20)
    assert hole.judged().findings == ("payments-0: offsets 10 to 12 are covered by none (batches 0, 1)",)


def test_a_batch_that_is_missing_and_offsets_that_went_back_are_found() -> None:
    log = Log()
    log.batch(0, None, 10)
    log.batch(2, None, 5)
    assert log.judged().findings == (
        "batch 2 of query q follows batch 0", "payments-0: batch 2 ends at 5, before batch 0 at 10",
    )  # fmt: skip


def test_rows_that_the_log_does_not_hold_or_holds_twice_are_found() -> None:
    log = Log()
    log.batch(0, None, 10, rows=10, found=9)
    log.batch(1, 10, 20, rows=10, found=20)
    findings = log.judged().findings
    assert findings == (
        "batch 0: its marker says 10 rows, and the log holds 9",
        "batch 1: its marker says 10 rows, and the log holds 20",
    )
    thinned = log.judged(thinned={"ledger": "it is compacted"})
    assert thinned.findings == findings[1:], "compaction removes, and never adds"
    assert thinned.not_judged == (
        "of 1 micro-batches the outputs hold fewer records than were written (ledger: it is compacted)",
    )


def test_what_lies_before_a_hole_in_the_log_is_shown_and_not_judged() -> None:
    log = Log()
    log.batch(0, None, 10)
    log.batch(5, 50, 60)
    log.batch(6, 60, 70)
    found = log.judged(whole_from=2)
    assert found.is_exactly_once and found.covered == {SOURCE: (50, 70)}
    assert len(found.entries) == 3 and "1 micro-batches lie before offset 2" in found.not_judged[0]


def test_a_transaction_without_a_marker_is_open_and_covers_nothing() -> None:
    log = Log()
    log.batch(0, None, 10)
    log.batch(1, 10, 20, commit=None)
    found = log.judged()
    assert [entry.outcome for entry in found.entries] == ["committed", "open"]
    assert found.covered == {SOURCE: (None, 10)}


def test_records_that_were_aborted_before_any_offset_was_added_are_in_the_ledger() -> None:
    log = Log()
    log.batch(0, None, 10)
    log.written.append(Written(OUTPUT, (7, 5), 4, 10, 13, False, 3000))
    last = log.judged().entries[-1]
    assert (last.batch_id, last.outcome, last.rows_found) == (None, "aborted", 4)


def test_under_the_old_protocol_transactions_share_an_epoch_and_rows_come_from_the_marker() -> None:
    log = Log()
    for number in range(2):
        log.batch(number, None if number == 0 else 10, 10 * number + 10, marker_epoch=0)
        log._epoch = 0
    found = log.judged()
    assert found.is_exactly_once
    assert [(entry.rows_said, entry.rows_found) for entry in found.entries] == [(10, None), (10, None)]


def test_nothing_committed_is_no_yes() -> None:
    assert not Log().judged().is_exactly_once


def test_a_query_from_another_checkpoint_that_covers_the_same_offsets_is_a_no() -> None:
    log = Log()
    log.batch(4, None, 10, query="old")
    log.batch(0, None, 10, query="new")  # all its rows come from before 10
    log.batch(1, 10, 20, query="new")
    (found,) = log.judged().findings
    assert found.startswith("payments-0: offsets up to 10 are covered by query old and again by batch 0 of query new")
    assert not log.judged().is_exactly_once


def test_where_another_query_began_is_not_guessed_until_its_offsets_tell() -> None:
    log = Log()
    log.batch(4, None, 10, query="old")
    log.batch(0, None, 15, query="new")
    found = log.judged()
    assert found.is_exactly_once, "it may have begun at 10"
    assert found.not_judged == (
        "payments-0: query new has another checkpoint than query old before it, and where it began is not in the logs: "
        "whether offsets up to 10 were written again",
    )
    log = Log()
    log.batch(4, None, 10, query="old")
    log.batch(0, None, 5, query="new", rows=0)  # a filter may leave no row
    log.batch(1, 5, 15, query="new")
    found = log.judged()
    assert not found.is_exactly_once and not found.not_judged
    assert "offsets up to 10 are covered by query old and again by batch 1 of query new" in found.findings[0]


def test_a_query_that_goes_on_where_the_last_one_ended_is_a_yes() -> None:
    log = Log()
    log.batch(4, None, 10, query="old")
    log.batch(0, 10, 20, query="new")
    assert log.judged().is_exactly_once and not log.judged().not_judged


def test_markers_of_earlier_versions_are_read() -> None:
    old = '{"semel": 1, "query": "q", "batch": 3, "hash": "aa"}'
    assert BatchMarker.from_metadata(old) == BatchMarker("q", 3, "aa")
    assert MarkerDetails.from_metadata(old) == MarkerDetails() == MarkerDetails.from_metadata("")
    assert BatchMarker("q", 3, "aa").to_metadata() == old
