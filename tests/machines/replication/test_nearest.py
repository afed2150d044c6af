"""Reading from the nearest replica (KIP-392): who is named, and who is not."""

from __future__ import annotations

from semel.machines.replication.leader import LeaderReplica, Progress
from semel.machines.replication.nearest import Candidate, nearest_replica
from semel.machines.replication.values import PartitionState

HERE, THERE = "here", "there"


def leader(**followers: tuple[int, int]) -> LeaderReplica:
    """Broker 1 leads; (offset, caught up at) of each follower, all in sync."""
    numbers = {int(name[1:]): progress for name, progress in followers.items()}
    state = PartitionState(1, 7, (1, *numbers), 5)
    return LeaderReplica(
        1,
        (1, *numbers),
        2,
        30_000,
        state,
        20,
        50,
        40,
        10,
        followers={number: Progress(offset, last_caught_up_ms=at) for number, (offset, at) in numbers.items()},
    )


def test_a_follower_in_the_clients_rack_is_named() -> None:
    machine = leader(b2=(45, 0), b3=(45, 0))
    followers = [Candidate(2, THERE, 0), Candidate(3, HERE, 0)]
    assert nearest_replica(machine, THERE, followers, HERE, 20) == 3


def test_a_leader_in_the_clients_rack_serves_it_itself() -> None:
    assert nearest_replica(leader(b2=(45, 0)), HERE, [Candidate(2, HERE, 0)], HERE, 20) is None


def test_a_client_that_does_not_say_where_it_is_stays_with_the_leader() -> None:
    assert nearest_replica(leader(b2=(45, 0)), None, [Candidate(2, None, 0)], "", 20) is None


def test_only_one_that_has_the_offset_is_named() -> None:
    machine = leader(b2=(45, 0))
    for offset, start, named in ((46, 0, None), (45, 0, 2), (20, 21, None), (21, 21, 2), (20, -1, None)):
        assert nearest_replica(machine, THERE, [Candidate(2, HERE, start)], HERE, offset) == named


def test_only_one_in_sync_is_named() -> None:
    machine = leader(b2=(45, 0))
    machine.state = machine.state._replace(isr=(1,))
    assert nearest_replica(machine, THERE, [Candidate(2, HERE, 0)], HERE, 20) is None


def test_of_several_the_one_that_has_most_then_the_one_that_was_caught_up_last() -> None:
    near = [Candidate(2, HERE, 0), Candidate(3, HERE, 0)]
    assert nearest_replica(leader(b2=(45, 0), b3=(46, 0)), THERE, near, HERE, 20) == 3
    assert nearest_replica(leader(b2=(45, 9), b3=(45, 3)), THERE, near, HERE, 20) == 2
