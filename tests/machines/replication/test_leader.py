"""The leader of a partition: every cell of its table, and the rules by number."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from semel.errors import ErrorCode
from semel.log.checkpoints import LeaderEpochs
from semel.machines.replication.leader import (
    LEADERSHIP_TABLE,
    LeaderReplica,
    LeadershipEvent,
    LeadershipState,
)
from semel.machines.replication.values import (
    Diverging,
    Effect,
    FetchFrom,
    HighWatermark,
    PartitionState,
    ReadState,
    StepDown,
    WriteState,
)

S, E = LeadershipState, LeadershipEvent
LAG_MS = 30_000
EPOCHS = LeaderEpochs([(4, 0), (7, 10)])


def leader(isr: tuple[int, ...] = (1, 2, 3), *, end: int = 10, watermark: int = 10, needed: int = 2) -> LeaderReplica:
    """Broker 1 leads epoch 7, which begins at 10."""
    state = PartitionState(1, 7, isr, 5)
    return LeaderReplica(1, (1, 2, 3), needed, LAG_MS, state, 20, end, watermark, 10, now_ms=0)


def fetch(follower: int, offset: int, *, epoch: int = 7, last: int = 7, life: int = 0) -> FetchFrom:
    return FetchFrom(follower, life, epoch, offset, last if offset > 10 else 4)


def fetched(machine: LeaderReplica, asked: FetchFrom, now_ms: int = 0) -> tuple[Effect, ...]:
    answer = machine.fetched(asked, EPOCHS, now_ms)
    assert (answer.error, answer.diverging) == (ErrorCode.NONE, None)
    return answer.effects


# --- every cell of the table


def caught_up(machine: LeaderReplica) -> object:
    """The third broker is not in the set, and has everything."""
    return machine.fetched(fetch(3, machine.end_offset), EPOCHS, 0)


def lags(machine: LeaderReplica) -> object:
    """The second broker is in the set, and was not heard of for long."""
    return machine.tick(LAG_MS + 1)


EVENTS: dict[LeadershipEvent, Callable[[LeaderReplica], object]] = {
    E.CAUGHT_UP: caught_up,
    E.LAGS: lags,
    E.WRITTEN: lambda machine: machine.written(machine.version, machine.version + 1),
    E.REFUSED: lambda machine: machine.not_written(machine.version, refused=True),
    E.ANSWER_LOST: lambda machine: machine.not_written(machine.version, refused=False),
    E.READ: lambda machine: machine.register(machine.state, machine.version + 1),
    E.REPLACED: lambda machine: machine.register(
        PartitionState(2, machine.state.leader_epoch + 1, (2, 3), 9), machine.version + 1
    ),
}
WAYS: dict[LeadershipState, tuple[LeadershipEvent, ...]] = {
    S.STABLE: (),
    S.GROWING: (E.CAUGHT_UP,),
    S.SHRINKING: (E.LAGS,),
    S.UNSURE: (E.LAGS, E.ANSWER_LOST),
    S.RESIGNED: (E.REPLACED,),
}


@pytest.mark.parametrize("event", LeadershipEvent)
@pytest.mark.parametrize("state", LeadershipState)
def test_every_cell_of_the_table(state: LeadershipState, event: LeadershipEvent) -> None:
    machine = leader((1, 2), end=15)
    for step in WAYS[state]:
        EVENTS[step](machine)
    assert machine.status is state
    before = replace(machine, followers=dict(machine.followers))
    EVENTS[event](machine)
    expected = LEADERSHIP_TABLE.step(state, event)
    assert machine.status is (state if expected is None else expected)
    if expected is None:  # nothing but what is known about followers has changed
        assert replace(machine, followers=before.followers) == before


# --- R2, R3: what is committed


def test_r2_a_record_is_committed_when_every_member_of_the_set_has_it() -> None:
    machine = leader()
    assert machine.appended(12) == []
    assert fetched(machine, fetch(2, 12)) == ()
    assert fetched(machine, fetch(3, 11)) == (HighWatermark(11),)
    assert fetched(machine, fetch(3, 12)) == (HighWatermark(12),)


def test_r2_a_follower_that_was_asked_in_counts_before_it_is_in() -> None:
    machine = leader((1, 2), end=10)
    assert [type(effect) for effect in fetched(machine, fetch(3, 10))] == [WriteState]
    machine.appended(12)
    assert fetched(machine, fetch(2, 12)) == ()
    assert fetched(machine, fetch(3, 12)) == (HighWatermark(12),)


def test_r2_a_follower_that_was_asked_out_counts_until_it_is_out() -> None:
    machine = leader()
    machine.appended(12)
    fetched(machine, fetch(2, 12))
    [write] = machine.tick(LAG_MS + 1)
    assert isinstance(write, WriteState) and write.state.isr == (1, 2) and write.version == 20
    assert machine.high_watermark == 10
    assert machine.not_written(20, refused=False) == [ReadState()]
    assert fetched(machine, fetch(2, 12)) == ()  # and also while nobody knows
    assert machine.register(write.state, 21, synced=True) == [HighWatermark(12)]


def test_r2_a_write_that_is_done_lets_the_high_watermark_move() -> None:
    machine = leader()
    machine.appended(12)
    fetched(machine, fetch(2, 12))
    machine.tick(LAG_MS + 1)
    assert machine.written(20, 21) == [HighWatermark(12)]
    assert machine.state.isr == (1, 2) and machine.version == 21


def test_r3_below_the_needed_number_nothing_is_committed() -> None:
    machine = leader((1,))
    assert not machine.has_enough_replicas
    assert machine.appended(12) == []
    [write] = fetched(machine, fetch(2, 12))
    assert isinstance(write, WriteState)
    assert machine.written(20, 21) == [HighWatermark(12)]


def test_r3_with_fewer_needed_nothing_is_committed_before_nobody_is_eligible_any_more() -> None:
    """Who is eligible may lead without what this leader would commit alone."""
    machine = leader((1,))
    machine.state = machine.state._replace(elr=(2,))
    machine.appended(12)
    assert machine.assigned((1, 2, 3), 1) == []
    assert not machine.has_enough_replicas
    assert machine.register(machine.state._replace(elr=()), 21) == [HighWatermark(12)]


def test_e9_a_replica_that_is_assigned_later_may_fetch_and_enter_the_set() -> None:
    machine = leader((1, 2))
    assert machine.fetched(fetch(4, 10), EPOCHS, 0).error is ErrorCode.NOT_LEADER_OR_FOLLOWER
    machine.assigned((4, 1, 2), 2)
    fetched(machine, fetch(2, 10))
    [write] = fetched(machine, fetch(4, 10))
    assert isinstance(write, WriteState) and write.state.isr == (1, 2, 4)


def test_e9_a_replica_that_is_in_the_set_counts_also_when_it_is_not_assigned_any_more() -> None:
    """R2: the register decides, not the assignment."""
    machine = leader((1, 2))
    machine.assigned((1, 3), 1)
    assert machine.appended(12) == []
    assert fetched(machine, fetch(2, 12)) == (HighWatermark(12),)


def test_a_partition_with_one_replica_commits_by_itself() -> None:
    machine = leader((1,), needed=1)
    assert machine.appended(12) == [HighWatermark(12)]


def test_r12_a_new_leader_knows_its_high_watermark_when_its_followers_are_there() -> None:
    machine = leader(watermark=8)
    assert not machine.knows_its_high_watermark
    fetched(machine, fetch(2, 10))
    assert fetched(machine, fetch(3, 10)) == (HighWatermark(10),)
    assert machine.knows_its_high_watermark


# --- R6, R7: who is answered


def test_r6_both_sides_speak_of_the_same_leadership() -> None:
    machine = leader()
    assert machine.fetched(fetch(2, 10, epoch=6), EPOCHS, 0).error is ErrorCode.FENCED_LEADER_EPOCH
    assert machine.fetched(fetch(2, 10, epoch=8), EPOCHS, 0).error is ErrorCode.UNKNOWN_LEADER_EPOCH
    assert machine.followers[2].offset == -1
    machine.register(PartitionState(2, 8, (2,), 9), 21)
    assert machine.fetched(fetch(2, 10), EPOCHS, 0).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.mark.parametrize(
    ("offset", "last", "diverging"),
    [
        (12, 4, Diverging(4, 10)),  # more of epoch 4 than we have
        (12, 5, Diverging(4, 10)),  # an epoch that we do not know
        (8, 3, Diverging(3, 0)),  # older than all that we have
    ],
)
def test_r7_logs_that_part_are_told_where(offset: int, last: int, diverging: Diverging) -> None:
    machine = leader(end=15)
    answer = machine.fetched(FetchFrom(2, 0, 7, offset, last), EPOCHS, 0)
    assert (answer.error, answer.diverging, answer.effects) == (ErrorCode.NONE, diverging, ())
    assert machine.followers[2].offset == -1


def test_a_fetch_past_the_end_or_of_an_epoch_to_come_is_out_of_range() -> None:
    machine = leader(end=15)
    assert machine.fetched(FetchFrom(2, 0, 7, 16, -1), EPOCHS, 0).error is ErrorCode.OFFSET_OUT_OF_RANGE
    assert machine.fetched(FetchFrom(2, 0, 7, 12, 9), EPOCHS, 0).error is ErrorCode.OFFSET_OUT_OF_RANGE


def test_who_holds_no_replica_is_not_answered() -> None:
    assert leader().fetched(fetch(9, 10), EPOCHS, 0).error is ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_r8_a_late_fetch_of_an_earlier_life_does_not_count() -> None:
    machine = leader()
    fetched(machine, fetch(2, 10, life=3))
    assert machine.fetched(fetch(2, 10, life=2), EPOCHS, 0).error is ErrorCode.STALE_BROKER_EPOCH


# --- R8, R9: in and out


def test_r8_who_joins_has_all_that_is_committed_and_this_epochs_beginning() -> None:
    machine = leader((1, 2), end=12, watermark=8)
    assert fetched(machine, fetch(3, 9)) == ()  # at the high watermark, but before the epoch's start
    [write] = fetched(machine, fetch(3, 10, life=6))
    assert write == WriteState(machine.state._replace(isr=(1, 2, 3)), 20, joining=(3, 6))


def test_r8_a_broker_that_is_leaving_is_not_asked_in() -> None:
    machine = leader((1, 2))
    assert machine.fetched(fetch(3, 10), EPOCHS, 0, may_join=False).effects == ()


def test_r9_a_follower_leaves_when_it_was_not_caught_up_for_too_long() -> None:
    machine = leader()
    machine.appended(12)
    assert machine.next_tick_ms(0) == LAG_MS + 1
    assert machine.tick(LAG_MS) == []
    [write] = machine.tick(LAG_MS + 1)
    assert isinstance(write, WriteState) and write.state.isr == (1,) and write.joining is None
    assert write.state.elr == (2, 3)  # E5


def test_r9_who_reaches_what_the_leader_had_at_its_last_fetch_was_caught_up_then() -> None:
    machine = leader((1, 2))
    machine.appended(20)
    fetched(machine, fetch(2, 12), 20_000)
    machine.appended(30)
    fetched(machine, fetch(2, 20), 40_000)  # at 20,000 the end was 20: caught up then, though never at the end
    machine.appended(40)
    assert machine.tick(20_000 + LAG_MS) == []
    assert machine.tick(20_001 + LAG_MS) != []


def test_r9_a_follower_at_the_end_does_not_lag_however_long_nothing_happens() -> None:
    machine = leader((1, 2))
    fetched(machine, fetch(2, 10))
    assert machine.next_tick_ms(0) is None
    assert machine.tick(10 * LAG_MS) == []


# --- the register


def test_z3_an_answer_that_is_lost_is_decided_by_the_register() -> None:
    machine = leader((1, 2))
    [write] = fetched(machine, fetch(3, 10))
    assert isinstance(write, WriteState)
    machine.not_written(20, refused=False)
    assert machine.register(machine.state, 20) == []  # an old reading decides nothing
    assert machine.status is S.UNSURE
    machine.register(machine.state, 20, synced=True)  # after a sync it does: the write was not done
    assert machine.status is S.STABLE and machine.counted == {1, 2}


def test_z7_an_older_register_is_not_heard() -> None:
    machine = leader()
    assert machine.register(PartitionState(2, 6, (2,), 1), 19) == []
    assert machine.status is S.STABLE


def test_a_late_answer_to_an_earlier_write_is_not_heard() -> None:
    machine = leader((1, 2))
    fetched(machine, fetch(3, 10))
    machine.register(machine.state, 21)
    fetched(machine, fetch(3, 10))
    assert machine.status is S.GROWING
    assert machine.written(20, 21) == [] and machine.not_written(20, refused=True) == []
    assert machine.status is S.GROWING


@pytest.mark.parametrize(
    "state",
    [
        PartitionState(2, 8, (2, 3), 9),
        PartitionState(1, 8, (1, 2), 5),
        PartitionState(-1, 8, (1,), -1),
        PartitionState(1, 7, (1, 2), 6),
    ],
)
def test_r1_any_other_leadership_ends_this_one(state: PartitionState) -> None:
    machine = leader()
    assert machine.register(state, 21) == [StepDown()]


def test_r9_a_follower_that_repeats_nothing_counts_as_caught_up_until_its_last_fetch() -> None:
    """In a fetch session a partition is not named while nothing is written: then an append an hour later."""
    machine = leader()
    hour_ms = 3_600_000
    for follower in (2, 3):
        fetched(machine, fetch(follower, 10))
    machine.appended(11, [(2, hour_ms - 100), (3, 0)])
    assert machine.tick(hour_ms)[0] == WriteState(machine.wished or machine.state, 20), "3 was not heard of since"
    assert machine.wished is not None
    assert machine.wished.isr == (1, 2)
    assert machine.followers[2].last_caught_up_ms == hour_ms - 100


def test_r10_with_fsync_a_leader_counts_itself_only_as_far_as_its_disk() -> None:
    machine = leader()
    machine.durable_offset = 10
    machine.appended(12)
    for follower in (2, 3):
        assert fetched(machine, fetch(follower, 12)) == (), "all have it, and the leader's disk has not"
    assert machine.durable(11) == [HighWatermark(11)]
    assert machine.durable(12) == [HighWatermark(12)]
