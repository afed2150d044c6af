"""The claim guard's rules: one attempt per task, one turn at a time, and a batch commits only with full reports."""

from __future__ import annotations

import pytest

from semel.machines.pipeline.claims import ClaimBook, ReportsDisagree, WriteReport, check_reports

EPOCH = (4000, 7, 0)
NEXT_EPOCH = (4000, 8, 0)
PLACE = ("ledger", 0)


def open_book() -> ClaimBook:
    book = ClaimBook()
    book.open(EPOCH)
    return book


def test_of_the_attempts_of_a_task_only_the_first_may_write() -> None:
    book = open_book()
    assert book.refusal(EPOCH, 3, "first") == ""
    assert "it ran twice" in book.refusal(EPOCH, 3, "second")
    assert book.refusal(EPOCH, 3, "first") == ""
    assert book.refusal(EPOCH, 4, "second") == ""


@pytest.mark.parametrize("other", [(4000, 6, 0), NEXT_EPOCH, (3999, 7, 0), (4000, 7, 1)])
def test_a_claim_of_another_epoch_is_refused_and_leaves_no_trace(other: tuple[int, int, int]) -> None:
    book = open_book()
    assert "is over" in book.refusal(other, 0, "zombie")
    assert book.refusal(EPOCH, 0, "alive") == ""


def test_tasks_take_turns_at_a_partition_and_no_sequence_is_given_out_twice() -> None:
    book = open_book()
    assert book.take_turn(0, "a", PLACE, 10) == 0
    assert book.take_turn(1, "b", PLACE, 5) is None
    assert book.take_turn(1, "b", ("ledger", 1), 5) == 0
    book.end_turn(EPOCH, "a", PLACE)
    assert book.take_turn(1, "b", PLACE, 5) == 10
    book.end_turn(EPOCH, "b", PLACE)
    assert book.take_turn(0, "a", PLACE, 1) == 15
    assert book.given == {(0, "ledger", 0): 11, (1, "ledger", 1): 5, (1, "ledger", 0): 5}
    assert book.sequences == {PLACE: 16, ("ledger", 1): 5}


def test_only_who_has_the_turn_can_end_it() -> None:
    book = open_book()
    book.take_turn(0, "a", PLACE, 10)
    book.end_turn(EPOCH, "b", PLACE)
    book.end_turn(NEXT_EPOCH, "a", PLACE)
    assert book.take_turn(1, "b", PLACE, 5) is None


def test_nobody_waits_for_who_died_in_its_turn() -> None:
    book = open_book()
    book.take_turn(0, "a", PLACE, 10)
    book.lose_turn(NEXT_EPOCH, "a", PLACE)
    book.lose_turn(EPOCH, "b", PLACE)
    assert book.refusal(EPOCH, 1, "b") == ""
    book.lose_turn(EPOCH, "a", PLACE)
    assert "died in its turn at ledger-0" in book.refusal(EPOCH, 1, "b")
    book.open(NEXT_EPOCH)
    assert book.refusal(NEXT_EPOCH, 1, "b") == ""


def test_a_later_write_of_the_same_transaction_goes_on_with_its_sequences() -> None:
    book = ClaimBook()
    book.open((4000, 7, 1), {PLACE: 42})
    assert book.take_turn(0, "a", PLACE, 8) == 42
    assert book.sequences == {PLACE: 50}


def test_sequences_begin_again_after_the_largest() -> None:
    book = ClaimBook()
    book.open(EPOCH, {PLACE: 2**31 - 2})
    assert book.take_turn(0, "a", PLACE, 5) == 2**31 - 2
    assert book.sequences == {PLACE: 3}


def test_a_new_epoch_starts_with_nothing_claimed_and_no_mistake() -> None:
    book = open_book()
    book.refusal(EPOCH, 0, "first")
    book.take_turn(0, "first", PLACE, 10)
    book.complain(EPOCH, "a row is too large")
    book.open(NEXT_EPOCH)
    assert (book.given, book.mistake) == ({}, "")
    assert book.refusal(NEXT_EPOCH, 0, "second") == ""
    assert book.take_turn(0, "second", PLACE, 1) == 0


def test_nothing_is_granted_before_an_epoch_begins_or_after_it_ends() -> None:
    book = ClaimBook()
    assert "is over" in book.refusal(EPOCH, 0, "a")
    book.open(EPOCH)
    book.close()
    assert "is over" in book.refusal(EPOCH, 0, "a")


def test_the_first_complaint_of_the_epoch_is_kept_and_survives_its_end() -> None:
    book = open_book()
    book.complain((4000, 6, 0), "from the epoch before")
    book.complain(EPOCH, "a row is too large")
    book.complain(EPOCH, "and so is this one")
    book.close()
    assert book.mistake == "a row is too large"


GIVEN = {(0, "ledger", 0): 10, (1, "ledger", 0): 3, (1, "ledger", 1): 3}
FULL = [
    WriteReport(0, "ledger", 0, 10, 100, 112),
    WriteReport(1, "ledger", 0, 3, 105, 107),
    WriteReport(1, "ledger", 1, 3, 0, 2),
]


def test_reports_of_all_that_was_given_are_accepted() -> None:
    check_reports(GIVEN, FULL)
    check_reports({}, [])


@pytest.mark.parametrize(
    "reports",
    [
        FULL[:2],
        [*FULL, FULL[0]],
        [*FULL, WriteReport(0, "ledger", 2, 1, 0, 0)],
        [*FULL[:2], FULL[2]._replace(records=2)],
        [],
    ],
    ids=["one is missing", "one came twice", "one was never given", "one is short", "none"],
)
def test_reports_that_do_not_match_what_was_given_are_refused(reports: list[WriteReport]) -> None:
    with pytest.raises(ReportsDisagree, match="each task must report once what it was given"):
        check_reports(GIVEN, reports)


def test_records_that_the_reported_offsets_cannot_hold_are_refused() -> None:
    """The broker dropped some as duplicates: the batch would be committed without them."""
    with pytest.raises(ReportsDisagree, match="10 records cannot lie in offsets 100 to 108"):
        check_reports(GIVEN, [FULL[0]._replace(last_offset=108), *FULL[1:]])
