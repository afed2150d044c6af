"""Who leads a partition and who is in sync, rule by rule (E2 to E5)."""

from __future__ import annotations

import pytest

from semel.machines.controller.elections import first_state, next_state, without_damaged, without_unclean
from semel.machines.controller.image import Broker, Image
from semel.machines.replication.values import PartitionState

REPLICAS = (1, 2, 3)
NEEDED = 2


def image(live: tuple[int, ...], *, leaving: tuple[int, ...] = (), restarted: tuple[int, ...] = ()) -> Image:
    """Every broker's first life is 10, a restarted one's 11."""
    return Image(
        {
            broker: Broker(broker, 11 if broker in restarted else 10, broker in live, broker in leaving)
            for broker in REPLICAS
        }
    )


def state(leader: int, isr: tuple[int, ...], elr: tuple[int, ...] = ()) -> PartitionState:
    return PartitionState(leader, 5, isr, 10 if leader >= 0 else -1, elr)


def elected(before: PartitionState, known: Image, *, unclean: bool = False) -> PartitionState | None:
    return next_state(before, REPLICAS, NEEDED, known, unclean_allowed=unclean)


def test_while_all_is_well_nothing_changes() -> None:
    assert elected(state(1, (1, 2, 3)), image((1, 2, 3))) is None


def test_e2_a_dead_leader_is_followed_by_the_first_of_the_assignment_that_is_in_sync() -> None:
    assert elected(state(1, (1, 3, 2)), image((2, 3))) == PartitionState(2, 6, (3, 2), 10)
    assert elected(state(1, (1, 3)), image((2, 3))) == PartitionState(3, 6, (3,), 10, (1,))


def test_e2_a_leader_that_has_restarted_is_elected_anew_under_a_new_epoch() -> None:
    known = image((1, 2, 3), restarted=(1,))
    assert elected(state(1, (1, 2)), known) == PartitionState(1, 6, (1, 2), 11)


def test_e2_e8_a_leader_that_is_leaving_hands_over() -> None:
    assert elected(state(1, (1, 2, 3)), image((1, 2, 3), leaving=(1,))) == PartitionState(2, 6, (2, 3), 10)


def test_e8_a_leader_that_is_leaving_leads_on_where_nobody_can_take_over() -> None:
    assert elected(state(1, (1,)), image((1, 2, 3), leaving=(1,))) is None


def test_e8_a_broker_that_is_leaving_and_has_restarted_leads_rather_than_nobody() -> None:
    known = image((1,), leaving=(1,), restarted=(1,))
    assert elected(state(1, (1,)), known) == PartitionState(1, 6, (1,), 11)


def test_e5_when_fewer_are_needed_nobody_is_eligible_any_more() -> None:
    before = state(1, (1,), (2,))
    assert elected(before, image((1, 2))) is None
    assert next_state(before, REPLICAS, 1, image((1, 2))) == state(1, (1,))


def test_e2_if_nobody_in_sync_lives_an_eligible_one_leads_alone() -> None:
    assert elected(state(1, (1,), (3,)), image((2, 3))) == PartitionState(3, 6, (3,), 10, (1,))


def test_e2_nobody_leads_if_nobody_may() -> None:
    assert elected(state(1, (1, 3)), image((2,))) == PartitionState(-1, 6, (1, 3), -1)
    assert elected(state(-1, (1, 3)), image((2,))) is None


def test_e2_an_unclean_election_only_where_it_is_allowed() -> None:
    before = state(1, (1,), (3,))
    assert elected(before, image((2,)), unclean=True) == PartitionState(2, 6, (2,), 10)
    assert elected(before, image((2, 3)), unclean=True) == PartitionState(3, 6, (3,), 10, (1,))  # clean, if it can be


def test_e2_whoever_is_back_first_leads_a_partition_without_a_leader() -> None:
    assert elected(state(-1, (1, 3)), image((3,))) == PartitionState(3, 6, (3,), 10, (1,))


@pytest.mark.parametrize("known", [image((1, 2)), image((1, 2, 3), leaving=(3,))], ids=["dead", "leaving"])
def test_e3_a_follower_that_is_dead_or_leaving_leaves_the_set_under_the_same_epoch(known: Image) -> None:
    assert elected(state(1, (1, 2, 3)), known) == PartitionState(1, 5, (1, 2), 10)


def test_e5_who_leaves_a_set_that_is_too_small_stays_eligible_until_it_is_large_enough() -> None:
    assert elected(state(1, (1, 2)), image((1,))) == PartitionState(1, 5, (1,), 10, (2,))
    assert elected(state(1, (1, 2, 3), (2,)), image((1, 3))) == PartitionState(1, 5, (1, 3), 10, ())


def test_e4_a_machine_that_went_down_uncleanly_leaves_even_as_the_last_and_is_not_eligible() -> None:
    assert without_unclean(state(1, (1, 2)), 2, NEEDED) == PartitionState(1, 5, (1,), 10, ())
    assert without_unclean(state(1, (1,), (2, 3)), 1, NEEDED) == PartitionState(-1, 6, (), -1, (2, 3))
    assert without_unclean(state(1, (1,), (2, 3)), 2, NEEDED) == PartitionState(1, 5, (1,), 10, (3,))
    assert without_unclean(state(1, (1,), (3,)), 2, NEEDED) is None


def test_a_new_partition_is_led_by_the_first_that_lives() -> None:
    assert first_state((3, 1, 2), image((1, 2, 3))) == PartitionState(3, 0, (3, 1, 2), 10)
    assert first_state((3, 1, 2), image((1, 2))) == PartitionState(1, 0, (1, 2), 10)
    assert first_state((3, 1), image(())) == PartitionState(-1, 0, (3, 1), -1)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        # A leader with damaged files: another is elected, and it is not eligible itself.
        (state(1, (1, 2, 3)), PartitionState(-1, 6, (2, 3), -1)),
        (state(1, (1, 2)), PartitionState(-1, 6, (2,), -1)),
        (state(1, (1,), (3,)), PartitionState(-1, 6, (), -1, (3,))),
        # A follower.
        (state(2, (2, 1, 3)), PartitionState(2, 5, (2, 3), 10)),
        (state(2, (2,), (1,)), PartitionState(2, 5, (2,), 10)),
        (state(2, (2, 3)), None),
        # Nobody else has what is committed.
        (state(1, (1,)), None),
        (state(-1, (1,)), None),
        (state(-1, (), (1,)), None),
    ],
)
def test_e11_a_broker_with_damaged_files_leaves_to_whoever_has_everything(
    before: PartitionState, after: PartitionState | None
) -> None:
    assert without_damaged(before, 1, NEEDED) == after


def test_e11_another_is_elected_then() -> None:
    for before, leader in ((state(1, (1, 2, 3)), 2), (state(1, (1,), (3,)), 3)):
        left = without_damaged(before, 1, NEEDED)
        assert left is not None
        after = elected(left, image((1, 2, 3)))
        assert after is not None and after.leader == leader and 1 not in (*after.isr, *after.elr)
