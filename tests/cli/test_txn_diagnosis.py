"""What the doctor says about a transaction that holds readers back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semel.cli.txn_diagnosis import (
    GRACE_MS,
    CoordinatorView,
    Finding,
    PartitionView,
    Verdict,
    advice,
    duration,
    explain,
    judge,
    meaning,
    moment,
)
from semel.machines.values import TopicPartition

NOW_MS = 1_800_000_000_000
LEDGER = TopicPartition("ledger", 0)
OPENED = PartitionView(
    producer_id=1000,
    producer_epoch=3,
    first_offset=42,
    last_sequence=17,
    last_timestamp_ms=NOW_MS - 20_000,
    coordinator_epoch=0,
)
ONGOING = CoordinatorView("payments", "Ongoing", 1000, 3, 60_000, NOW_MS - 25_000, frozenset((LEDGER,)))


def judged(coordinated: CoordinatorView | None, opened: PartitionView = OPENED) -> Finding:
    return judge(LEDGER, 42, 50, opened, coordinated, NOW_MS)


@pytest.mark.parametrize(
    ("coordinated", "verdict", "trouble"),
    [
        (ONGOING, Verdict.IN_PROGRESS, False),
        (replace(ONGOING, start_ms=NOW_MS - 60_000 - GRACE_MS - 1), Verdict.OVERDUE, True),
        (replace(ONGOING, timeout_ms=2147483647, start_ms=0), Verdict.PREPARED_OUTSIDE, False),
        (replace(ONGOING, state="PrepareCommit", producer_epoch=4), Verdict.COMPLETING, False),
        (replace(ONGOING, state="PrepareAbort", producer_epoch=4), Verdict.COMPLETING, False),
        (replace(ONGOING, state="PrepareAbort", partitions=frozenset()), Verdict.HANGING, True),
        (replace(ONGOING, state="CompleteCommit", partitions=frozenset()), Verdict.HANGING, True),
        (replace(ONGOING, state="Empty", partitions=frozenset()), Verdict.HANGING, True),
        (replace(ONGOING, partitions=frozenset((TopicPartition("other", 0),))), Verdict.HANGING, True),
        (replace(ONGOING, producer_id=1001), Verdict.HANGING, True),
        (None, Verdict.HANGING, True),
    ],
)
def test_the_two_views_together_give_the_verdict(
    coordinated: CoordinatorView | None, verdict: Verdict, trouble: bool
) -> None:
    finding = judged(coordinated)
    assert finding.verdict is verdict
    assert finding.verdict.is_trouble is trouble
    assert meaning(finding).endswith(".") and advice(finding).endswith(".")
    assert finding.as_dict()["verdict"] == verdict.value


def test_it_says_who_since_when_and_how_much_is_held_back() -> None:
    text = explain(judged(ONGOING))
    assert "Readers of committed data stop at offset 42; the log goes on to 50, so 8 offsets are held back." in text
    assert "transactional id 'payments' (producer id 1000, epoch 3), for 25 s" in text
    assert "open since offset 42, last sequence 17" in text
    assert "Ongoing, epoch 3" in text and "timeout 1 min, partitions: ledger-0" in text
    assert "aborts it in 35 s at the latest" in text
    one = replace(judged(ONGOING), high_watermark=43)
    assert "the log goes on to 43, so 1 offset is held back." in explain(one)


def test_one_whose_producer_wrote_nothing_for_minutes_is_not_said_to_be_as_it_should_be() -> None:
    """A producer with a timeout of 15 minutes died 11 minutes ago: readers wait for 4 minutes more."""
    began_ms = NOW_MS - 11 * 60_000 - 5_000
    left = replace(ONGOING, timeout_ms=15 * 60_000, start_ms=began_ms)
    dead = replace(OPENED, last_timestamp_ms=NOW_MS - 11 * 60_000)
    finding = judged(left, dead)
    assert (finding.verdict, finding.verdict.is_trouble) == (Verdict.SILENT, False)
    text = explain(finding)
    assert "as it should" not in text
    assert "nothing was written in the transaction for 11 min" in text and "aborts it in 3 min 55 s" in text
    assert "start the producer again" in text
    assert finding.as_dict()["silent_ms"] == 11 * 60_000
    # It writes to another partition all the while.
    busy = judge(LEDGER, 42, 50, dead, left, NOW_MS, last_written_ms=NOW_MS - 3_000)
    assert busy.verdict is Verdict.IN_PROGRESS
    assert "last wrote 3 s ago" in explain(busy)


def test_a_hanging_one_is_said_to_be_unknown_and_safe_to_end() -> None:
    text = explain(judged(None))
    assert "an unknown transactional id (producer id 1000, epoch 3), for 20 s" in text
    assert "the coordinator knows of no such transaction" in text
    assert "safe to write the missing abort marker" in text
    finished = judged(replace(ONGOING, state="CompleteCommit", partitions=frozenset()))
    assert "says 'payments' is CompleteCommit, without this partition" in meaning(finished)


def test_a_decided_outcome_is_waited_for_and_never_changed() -> None:
    finding = judged(replace(ONGOING, state="PrepareCommit"))
    assert "it will be committed" in meaning(finding)
    assert advice(finding).startswith("Wait")
    assert "the outcome that was decided" in advice(finding)
    assert "it will be aborted" in meaning(judged(replace(ONGOING, state="PrepareAbort")))


def test_one_that_is_open_behind_the_first_is_said_to_be_so() -> None:
    finding = judged(ONGOING, replace(OPENED, first_offset=45))
    assert not finding.holds_readers
    assert "Also open, behind the offset at which readers stop (42)." in explain(finding)


@pytest.mark.parametrize(
    ("span_ms", "said"),
    [
        (0, "0 ms"),
        (250, "250 ms"),
        (1_000, "1 s"),
        (252_000, "4 min 12 s"),
        (3_600_000, "1 h"),
        (90_061_000, "1 d 1 h"),
    ],
)
def test_spans_of_time_are_said_as_people_say_them(span_ms: int, said: str) -> None:
    assert duration(span_ms) == said


def test_a_moment_is_in_universal_time() -> None:
    assert moment(0) == "1970-01-01 00:00:00 UTC"
    assert moment(-1) == "never"


YEAR_MS = 365 * 24 * 3600 * 1000
LONG = replace(ONGOING, timeout_ms=15 * 60_000, start_ms=NOW_MS - 10 * 60_000)


@pytest.mark.parametrize("record_time_ms", [NOW_MS - YEAR_MS, NOW_MS + YEAR_MS, -1])
def test_record_times_that_cannot_be_those_of_a_write_do_not_make_a_producer_silent(record_time_ms: int) -> None:
    """Events of last year, written now: only when the transaction began is known."""
    finding = judged(LONG, replace(OPENED, last_timestamp_ms=record_time_ms))
    assert finding.verdict is Verdict.IN_PROGRESS
    assert finding.as_dict()["silent_ms"] is None
    assert "When it last wrote is not known" in meaning(finding) and "as it should be" not in meaning(finding)


def test_a_producer_that_was_seen_to_write_is_not_silent_whatever_its_records_say() -> None:
    old = replace(OPENED, last_timestamp_ms=NOW_MS - 9 * 60_000)
    silent = judged(LONG, old)
    assert silent.verdict is Verdict.SILENT and "timestamp of the record, which may be older" in meaning(silent)
    writing = judge(LEDGER, 42, 50, old, LONG, NOW_MS, seen_writing=True)
    assert (writing.verdict, writing.silent_ms) == (Verdict.IN_PROGRESS, 0)


def test_a_record_made_a_moment_before_its_transaction_began_still_tells_when_its_producer_fell_silent() -> None:
    finding = judged(LONG, replace(OPENED, last_timestamp_ms=LONG.start_ms - 500))
    assert (finding.verdict, finding.silent_ms) == (Verdict.SILENT, 10 * 60_000)


def test_one_that_a_coordinator_may_know_who_is_away_is_not_called_hanging() -> None:
    away = frozenset((TopicPartition("__transaction_state", 7),))
    finding = judge(LEDGER, 42, 50, OPENED, None, NOW_MS, away=away)
    assert finding.verdict is Verdict.UNKNOWN and finding.verdict.is_trouble
    assert "__transaction_state-7" in meaning(finding) and "--fix does nothing" in advice(finding)
    # Whom a coordinator knows needs no other coordinator.
    assert judge(LEDGER, 42, 50, OPENED, ONGOING, NOW_MS, away=away).verdict is Verdict.IN_PROGRESS
