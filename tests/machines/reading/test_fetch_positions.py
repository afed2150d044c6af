"""Where a consumer stands: the table, the policy, and data that comes too late."""

from __future__ import annotations

import pytest

from semel.errors import ErrorCode, Misuse, OffsetOutOfRange
from semel.machines.reading.fetch_positions import (
    EARLIEST,
    LATEST,
    POSITION_STEPS,
    FetchPositions,
    PositionEvent,
    PositionState,
)
from semel.machines.values import TopicPartition

P0, P1 = TopicPartition("ledger", 0), TopicPartition("ledger", 1)


def assigned(policy: str = "latest", *, with_group: bool = True) -> FetchPositions:
    positions = FetchPositions(policy)
    positions.assign([P0], with_group=with_group)
    return positions


def test_a_new_partition_of_a_group_starts_at_its_committed_offset() -> None:
    positions = assigned()
    assert positions.needing_committed() == [P0]
    positions.on_committed(P0, 42, 3)
    assert (positions[P0].position, positions[P0].leader_epoch) == (42, 3)
    assert positions.fetchable() == [(P0, positions[P0])]


@pytest.mark.parametrize(("policy", "timestamp"), [("earliest", EARLIEST), ("latest", LATEST)])
def test_without_a_committed_offset_the_policy_decides(policy: str, timestamp: int) -> None:
    positions = assigned(policy)
    positions.on_committed(P0, None)
    assert positions.needing_reset() == {P0: timestamp}
    positions.on_offset(P0, timestamp, 7)
    assert positions[P0].position == 7


def test_policy_none_makes_a_missing_offset_an_error_that_names_the_setting() -> None:
    with pytest.raises(OffsetOutOfRange, match=r"auto\.offset\.reset=none"):
        assigned("none").on_committed(P0, None)


def test_without_a_group_the_policy_decides_at_once() -> None:
    assert assigned("earliest", with_group=False).needing_reset() == {P0: EARLIEST}


def test_an_offset_that_is_gone_is_reset_by_the_policy() -> None:
    positions = assigned("earliest")
    positions.on_committed(P0, 42)
    positions.on_out_of_range(P0, positions[P0].generation)
    assert positions.needing_reset() == {P0: EARLIEST}


def test_data_asked_for_before_a_seek_is_thrown_away() -> None:
    positions = assigned()
    positions.on_committed(P0, 42)
    generation = positions[P0].generation
    assert positions.is_current(P0, generation)
    positions.seek(P0, 10)
    assert not positions.is_current(P0, generation)
    positions.on_out_of_range(P0, generation)
    assert positions[P0].state is PositionState.FETCHING


def test_a_seek_wins_over_a_lookup_that_is_on_its_way() -> None:
    positions = assigned()
    positions.seek(P0, 5)
    positions.on_committed(P0, 42)
    positions.on_offset(P0, LATEST, 99)
    assert positions[P0].position == 5


def test_a_second_seek_by_time_is_not_answered_by_the_first() -> None:
    positions = assigned()
    positions.seek_by_time(P0, EARLIEST)
    positions.seek_by_time(P0, LATEST)
    positions.on_offset(P0, EARLIEST, 0)
    assert positions.needing_reset() == {P0: LATEST}


def test_a_position_never_goes_back_by_reading() -> None:
    positions = assigned()
    positions.seek(P0, 10)
    positions.advance(P0, 20, 0)
    positions.advance(P0, 15, 0)
    assert positions[P0].position == 20


def test_an_assignment_keeps_what_stays_and_forgets_what_goes() -> None:
    positions = assigned()
    positions.seek(P0, 10)
    positions.assign([P0, P1], with_group=True)
    assert positions[P0].position == 10
    positions.assign([P1], with_group=True)
    with pytest.raises(Misuse, match="not assigned"):
        positions.seek(P0, 1)


def test_a_paused_partition_is_not_asked_for() -> None:
    positions = assigned()
    positions.seek(P0, 10)
    positions.pause(P0)
    assert positions.fetchable() == []
    assert positions.paused == {P0}
    positions.resume(P0)
    assert len(positions.fetchable()) == 1


def test_offsets_start_at_zero() -> None:
    with pytest.raises(Misuse) as raised:
        assigned().seek(P0, -1)
    assert raised.value.code is ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_seek_is_possible_in_every_stage() -> None:
    assert set(POSITION_STEPS) == set(PositionState)
    for stage in PositionState:
        assert POSITION_STEPS[stage][PositionEvent.SEEK] is PositionState.FETCHING


def test_an_answer_from_before_a_partition_was_given_away_and_back_is_thrown_away() -> None:
    """The group may send the reader further back than what was asked for then: using it would skip records."""
    positions = FetchPositions("earliest")
    positions.assign([P0], with_group=True)
    positions.on_committed(P0, 100)
    asked_in = positions[P0].generation
    positions.assign([], with_group=True)
    positions.assign([P0], with_group=True)
    positions.on_committed(P0, 50)
    assert not positions.is_current(P0, asked_in)
    assert positions.is_current(P0, positions[P0].generation)


def test_a_committed_offset_asked_for_before_a_partition_came_back_is_an_old_one() -> None:
    positions = assigned()
    asked_in = positions[P0].generation
    positions.assign([], with_group=True)
    positions.assign([P0], with_group=True)
    positions.on_committed(P0, 50, asked_in=asked_in)
    assert positions.needing_committed() == [P0], "somebody else may have read on since: it is asked for again"
    positions.on_committed(P0, 80, asked_in=positions[P0].generation)
    assert positions[P0].position == 80
