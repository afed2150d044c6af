"""The claim guard's rules: one writer per partition and epoch, and a batch commits only with a full set of reports."""

from __future__ import annotations

import pytest

from semel.machines.pipeline.claims import ClaimBook, ReportsDisagree, WriteReport, check_reports

EPOCH = (4000, 7, 0)
NEXT_EPOCH = (4000, 8, 0)


def open_book() -> ClaimBook:
    book = ClaimBook()
    book.open(EPOCH)
    return book


def test_the_first_claim_is_granted_and_the_second_refused() -> None:
    book = open_book()
    assert book.refusal(EPOCH, "ledger", 0) == ""
    assert "already claimed" in book.refusal(EPOCH, "ledger", 0)
    assert book.refusal(EPOCH, "ledger", 1) == ""
    assert book.claimed == {("ledger", 0), ("ledger", 1)}


@pytest.mark.parametrize("other", [(4000, 6, 0), NEXT_EPOCH, (3999, 7, 0), (4000, 7, 1)])
def test_a_claim_of_another_epoch_is_refused_and_leaves_no_trace(other: tuple[int, int, int]) -> None:
    book = open_book()
    assert "is over" in book.refusal(other, "ledger", 0)
    assert book.claimed == frozenset()
    assert book.refusal(EPOCH, "ledger", 0) == ""


def test_a_new_epoch_starts_with_nothing_claimed_and_no_mistake() -> None:
    book = open_book()
    book.refusal(EPOCH, "ledger", 0)
    book.complain(EPOCH, "a row is too large")
    book.open(NEXT_EPOCH)
    assert (book.claimed, book.mistake) == (frozenset(), "")
    assert book.refusal(NEXT_EPOCH, "ledger", 0) == ""


def test_nothing_is_granted_before_an_epoch_begins_or_after_it_ends() -> None:
    book = ClaimBook()
    assert "is over" in book.refusal(EPOCH, "ledger", 0)
    book.open(EPOCH)
    book.close()
    assert "is over" in book.refusal(EPOCH, "ledger", 0)


def test_the_first_complaint_of_the_epoch_is_kept_and_survives_its_end() -> None:
    book = open_book()
    book.complain((4000, 6, 0), "from the epoch before")
    book.complain(EPOCH, "a row is too large")
    book.complain(EPOCH, "and so is this one")
    book.close()
    assert book.mistake == "a row is too large"


CLAIMED = frozenset({("ledger", 0), ("ledger", 1)})
FULL = [WriteReport("ledger", 0, 10, 100, 109), WriteReport("ledger", 1, 3, 0, 2)]


def test_a_report_for_each_claim_is_accepted() -> None:
    check_reports(CLAIMED, FULL)
    check_reports(frozenset(), [])


@pytest.mark.parametrize(
    "reports",
    [FULL[:1], [*FULL, FULL[0]], [*FULL, WriteReport("ledger", 2, 1, 0, 0)], []],
    ids=["one is missing", "one came twice", "one was never claimed", "none"],
)
def test_reports_that_do_not_match_the_claims_are_refused(reports: list[WriteReport]) -> None:
    with pytest.raises(ReportsDisagree, match="each output partition must have one writer"):
        check_reports(CLAIMED, reports)


def test_records_that_the_reported_offsets_cannot_hold_are_refused() -> None:
    """The broker dropped some as duplicates: the batch would be committed without them."""
    with pytest.raises(ReportsDisagree, match="10 records cannot lie in offsets 100 to 108"):
        check_reports(CLAIMED, [WriteReport("ledger", 0, 10, 100, 108), FULL[1]])
