"""The follower of a partition: every cell of its table, and the rules by number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from semel.log.checkpoints import LeaderEpochs
from semel.machines.replication.follower import (
    FOLLOWING_TABLE,
    AskOffsets,
    FollowerReplica,
    FollowingEvent,
    FollowingState,
)
from semel.machines.replication.values import (
    Append,
    Diverging,
    FetchFrom,
    HighWatermark,
    PartitionState,
    RestartAt,
    Truncate,
)

S, E = FollowingState, FollowingEvent
EPOCHS = LeaderEpochs([(4, 0), (6, 8)])


def follower() -> FollowerReplica:
    """Broker 2 has 10 records, the last of epoch 6, and follows broker 1 in epoch 7."""
    return FollowerReplica(2, 3, PartitionState(1, 7, (1, 2), 5), 20, 10, 8, 6, back_off_ms=100)


def failing(event: FollowingEvent) -> Callable[[FollowerReplica], object]:
    return lambda machine: machine.failed(7, event, 1_000)


EVENTS: dict[FollowingEvent, Callable[[FollowerReplica], object]] = {
    E.DATA: lambda machine: machine.data(7, 10, 12, 11),
    E.DIVERGING: lambda machine: machine.diverging(7, Diverging(4, 8), EPOCHS),
    E.FENCED: failing(E.FENCED),
    E.UNKNOWN_EPOCH: failing(E.UNKNOWN_EPOCH),
    E.OFFSET_OUT_OF_RANGE: failing(E.OFFSET_OUT_OF_RANGE),
    E.OFFSETS: lambda machine: machine.offsets(7, 0, 5),
    E.DISCONNECTED: failing(E.DISCONNECTED),
    E.BACK_OFF_OVER: lambda machine: machine.next_request(10_000),
    E.REGISTER: lambda machine: machine.register(PartitionState(3, 8, (2, 3), 1), 21),
}
WAYS: dict[FollowingState, tuple[FollowingEvent, ...]] = {
    S.VALIDATING: (),
    S.FETCHING: (E.DATA,),
    S.OUT_OF_RANGE: (E.OFFSET_OUT_OF_RANGE,),
    S.WAITING: (E.DISCONNECTED,),
}


@pytest.mark.parametrize("event", FollowingEvent)
@pytest.mark.parametrize("state", FollowingState)
def test_every_cell_of_the_table(state: FollowingState, event: FollowingEvent) -> None:
    machine = follower()
    for step in WAYS[state]:
        EVENTS[step](machine)
    assert machine.status is state
    before = replace(machine)
    EVENTS[event](machine)
    expected = FOLLOWING_TABLE.step(state, event)
    assert machine.status is (state if expected is None else expected)
    if expected is None:
        assert machine == before


def test_it_asks_for_what_follows_its_end_and_says_of_which_epoch_that_is() -> None:
    assert follower().next_request(0) == FetchFrom(2, 3, 7, 10, 6)


def test_without_a_leader_it_asks_nobody() -> None:
    machine = follower()
    machine.register(PartitionState(-1, 8, (1,), -1), 21)
    assert machine.next_request(0) is None


@pytest.mark.parametrize("event", [E.FENCED, E.UNKNOWN_EPOCH, E.DISCONNECTED])
def test_after_an_error_it_waits(event: FollowingEvent) -> None:
    machine = follower()
    machine.failed(7, event, 1_000)
    assert machine.next_request(1_099) is None
    assert machine.next_request(1_100) == FetchFrom(2, 3, 7, 10, 6)


def test_r10_its_high_watermark_never_passes_its_own_end() -> None:
    machine = follower()
    assert machine.data(7, 10, 12, 40) == [Append(10, 12), HighWatermark(12)]
    machine.appended(12, 7)
    assert machine.next_request(0) == FetchFrom(2, 3, 7, 12, 7)
    assert machine.data(7, 12, 12, 11) == []  # and it does not go back


def test_r6_a_late_answer_of_another_leadership_is_dropped() -> None:
    machine = follower()
    machine.register(PartitionState(1, 8, (1, 2), 5), 21)
    assert machine.data(7, 10, 12, 11) == []
    assert machine.diverging(7, Diverging(4, 8), EPOCHS) == []
    machine.failed(7, E.OFFSET_OUT_OF_RANGE, 0)
    assert machine.offsets(7, 0, 5) == []
    assert machine.status is S.VALIDATING


def test_data_that_does_not_follow_the_end_is_dropped() -> None:
    machine = follower()
    assert machine.data(7, 9, 12, 11) == [] and machine.status is S.VALIDATING


@pytest.mark.parametrize(
    ("diverging", "cut"),
    [
        (Diverging(6, 9), 9),  # the leader's epoch 6 ended earlier
        (Diverging(5, 9), 8),  # epoch 6 is not in the leader's log: all of it goes
        (Diverging(4, 6), 6),  # and of epoch 4 it has less
        (Diverging(2, 3), 0),  # nothing in common
        (Diverging(9, 7), 7),  # an epoch that we do not know: by the leader's end alone
    ],
)
def test_r7_where_the_logs_part_it_cuts_its_own(diverging: Diverging, cut: int) -> None:
    machine = follower()
    assert machine.diverging(7, diverging, EPOCHS) == [Truncate(cut)]
    assert machine.high_watermark == 8  # nothing else is taken from that answer
    machine.truncated(cut, 4)
    assert (machine.end_offset, machine.high_watermark) == (cut, min(8, cut))
    assert machine.status is S.VALIDATING


def test_r7_every_new_leadership_is_validated() -> None:
    machine = follower()
    machine.data(7, 10, 10, 8)
    assert machine.status is S.FETCHING
    machine.register(PartitionState(1, 7, (1, 2, 3), 5), 21)  # the same leadership, another set
    assert machine.status is S.FETCHING
    machine.register(PartitionState(1, 8, (1, 2, 3), 5), 22)
    assert machine.status is S.VALIDATING


def test_z7_an_older_register_is_not_heard() -> None:
    machine = follower()
    machine.register(PartitionState(3, 6, (3,), 1), 20)
    assert machine.state.leader == 1


@pytest.mark.parametrize(
    ("start", "end", "effects"),
    [(0, 5, [Truncate(5)]), (30, 40, [RestartAt(30)]), (5, 40, [])],
)
def test_out_of_range_it_goes_to_where_the_leaders_log_is(start: int, end: int, effects: list[object]) -> None:
    machine = follower()
    machine.failed(7, E.OFFSET_OUT_OF_RANGE, 0)
    assert machine.next_request(0) == AskOffsets(1, 7)
    assert machine.offsets(7, start, end) == effects
    assert machine.status is S.VALIDATING
