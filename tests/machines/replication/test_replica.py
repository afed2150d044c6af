"""A replica over its leaderships: when it leads, when it follows, and what happens in between."""

from __future__ import annotations

from semel.machines.replication.follower import FollowerReplica
from semel.machines.replication.leader import LeaderReplica
from semel.machines.replication.replica import Replica
from semel.machines.replication.values import (
    BeginEpoch,
    DropEmptyEpochs,
    FetchFrom,
    HighWatermark,
    PartitionState,
    StepDown,
)


def replica(life: int = 5) -> Replica:
    """Broker 1 with 10 records, the last of epoch 4; all but two are committed."""
    return Replica(1, life, (1, 2, 3), 2, 10, 8, last_epoch=4)


def test_r4_a_leadership_begins_with_its_entry() -> None:
    machine = replica()
    assert machine.register(PartitionState(1, 7, (1, 2), 5), 20, 0) == [BeginEpoch(7, 10)]
    assert isinstance(machine.role, LeaderReplica) and machine.role.start_offset == 10


def test_a_leader_that_is_alone_and_enough_commits_what_it_has() -> None:
    machine = Replica(1, 5, (1,), 1, 10, 8, last_epoch=4)
    assert machine.register(PartitionState(1, 7, (1,), 5), 20, 0) == [BeginEpoch(7, 10), HighWatermark(10)]


def test_r1_an_earlier_life_is_not_resumed() -> None:
    machine = replica(life=6)
    assert machine.register(PartitionState(1, 7, (1, 2), 5), 20, 0) == []
    assert machine.role is None
    assert machine.register(PartitionState(1, 8, (1, 2), 6), 21, 0) == [BeginEpoch(8, 10)]


def test_r5_following_begins_without_empty_epochs() -> None:
    machine = replica()
    assert machine.register(PartitionState(2, 7, (1, 2), 9), 20, 0) == [DropEmptyEpochs(10)]
    assert isinstance(machine.role, FollowerReplica)
    assert machine.role.next_request(0) == FetchFrom(1, 5, 7, 10, 4)


def test_a_leader_that_is_replaced_steps_down_and_follows_with_what_it_wrote() -> None:
    machine = replica()
    machine.register(PartitionState(1, 7, (1, 2), 5), 20, 0)
    assert isinstance(machine.role, LeaderReplica)
    machine.role.appended(12)
    assert machine.register(PartitionState(2, 8, (1, 2), 9), 21, 0) == [StepDown(), DropEmptyEpochs(12)]
    assert isinstance(machine.role, FollowerReplica)
    assert machine.role.next_request(0) == FetchFrom(1, 5, 8, 12, 7)


def test_r4_r5_a_leader_that_wrote_nothing_follows_with_the_epoch_of_its_last_record() -> None:
    machine = replica()
    machine.register(PartitionState(1, 7, (1, 2), 5), 20, 0)
    machine.register(PartitionState(2, 8, (1, 2), 9), 21, 0)
    assert isinstance(machine.role, FollowerReplica)
    assert machine.role.next_request(0) == FetchFrom(1, 5, 8, 10, 4)


def test_z5_a_leader_that_resigned_follows_with_what_it_wrote() -> None:
    """With the epoch of an older record it would be told to cut away what it has of the newer one (R7)."""
    machine = replica()
    machine.register(PartitionState(1, 7, (1, 2), 5), 20, 0)
    assert isinstance(machine.role, LeaderReplica)
    machine.role.appended(12)
    assert machine.resign() == [StepDown()]
    assert machine.role is None
    assert machine.register(PartitionState(2, 8, (2,), 9), 21, 0) == [DropEmptyEpochs(12)]
    assert isinstance(machine.role, FollowerReplica)
    assert machine.role.next_request(0) == FetchFrom(1, 5, 8, 12, 7)


def test_z5_a_follower_that_resigned_goes_on_where_it_was() -> None:
    machine = replica()
    machine.register(PartitionState(2, 7, (1, 2), 9), 20, 0)
    assert isinstance(machine.role, FollowerReplica)
    machine.role.data(7, 10, 13, 11)
    machine.role.appended(13, 7)
    machine.resign()
    machine.register(PartitionState(2, 8, (2,), 9), 21, 0)
    assert isinstance(machine.role, FollowerReplica)
    assert machine.role.next_request(0) == FetchFrom(1, 5, 8, 13, 7)
    assert machine.role.high_watermark == 11


def test_a_leader_that_is_elected_again_begins_a_new_epoch() -> None:
    machine = replica()
    machine.register(PartitionState(1, 7, (1, 2), 5), 20, 0)
    assert machine.register(PartitionState(1, 8, (1, 2), 5), 21, 0) == [StepDown(), BeginEpoch(8, 10)]


def test_a_follower_that_is_elected_leads_with_what_it_has() -> None:
    machine = replica()
    machine.register(PartitionState(2, 7, (1, 2), 9), 20, 0)
    assert isinstance(machine.role, FollowerReplica)
    machine.role.data(7, 10, 13, 11)
    machine.role.appended(13, 7)
    assert machine.register(PartitionState(1, 8, (1,), 5), 21, 0) == [BeginEpoch(8, 13)]
    assert isinstance(machine.role, LeaderReplica) and machine.role.high_watermark == 11


def test_z7_the_same_version_again_changes_nothing() -> None:
    machine = replica()
    machine.register(PartitionState(2, 7, (1, 2), 9), 20, 0)
    role = machine.role
    assert machine.register(PartitionState(1, 7, (1, 2), 5), 20, 0) == []
    assert machine.role is role
