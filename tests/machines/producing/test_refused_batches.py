"""Whatever was sent behind a refused batch must not overtake it (librdkafka issues 4953 and 3584)."""

from __future__ import annotations

from semel.errors import ErrorCode
from semel.machines.producing import refused_batches
from semel.machines.producing.refused_batches import HELD_FOR_MS, RefusedBatches

TOO_FEW, NOT_HERE = ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_LEADER_OR_FOLLOWER
NOW = 1_000_000


def with_one_refused(first_sequence: int = 5) -> RefusedBatches:
    made = RefusedBatches()
    made.add(7, 0, first_sequence, TOO_FEW, NOW)
    return made


def test_what_follows_is_held_back_until_the_first_comes_again() -> None:
    made = with_one_refused()
    assert made.holding_back(7, 0, 6, 5, NOW) is TOO_FEW
    assert made.holding_back(7, 0, 9, 5, NOW) is TOO_FEW
    assert made.holding_back(8, 0, 6, 5, NOW) is None, "others go on"
    assert made.holding_back(7, 0, 4, 5, NOW) is None, "a retry of an earlier one is answered"
    assert made.holding_back(7, 0, 5, 5, NOW) is None
    assert made.holding_back(7, 0, 6, 6, NOW) is None


def test_a_new_producer_does_not_begin_in_the_middle() -> None:
    made = with_one_refused(0)
    assert made.holding_back(7, 0, 1, None, NOW) is TOO_FEW


def test_of_several_that_are_refused_the_first_counts() -> None:
    made = with_one_refused()
    made.add(7, 0, 6, NOT_HERE, NOW)
    assert made.holding_back(7, 0, 6, 5, NOW) is NOT_HERE
    assert made.holding_back(7, 0, 5, 5, NOW) is None


def test_if_the_first_is_in_the_log_already_the_next_still_counts() -> None:
    """A new leader has the first from the last leader, who had not answered. It refuses its retry and the one behind it
    because it does not know of its election yet. What comes then must not be told that sequences are out of order."""
    made = with_one_refused(5)
    made.add(7, 0, 6, NOT_HERE, NOW)
    assert made.holding_back(7, 0, 7, 6, NOW) is NOT_HERE
    assert made.holding_back(7, 0, 8, 6, NOW) is NOT_HERE
    assert made.holding_back(7, 0, 5, 6, NOW) is None, "answered with its offset"
    assert made.holding_back(7, 0, 7, 6, NOW) is NOT_HERE
    assert made.holding_back(7, 0, 6, 6, NOW) is None
    assert made.holding_back(7, 0, 7, 7, NOW) is None
    assert len(made) == 0


def test_a_gap_that_no_refusal_has_made_is_told_as_one() -> None:
    assert with_one_refused(5).holding_back(7, 0, 6, 3, NOW) is None


def test_sequences_wrap_around() -> None:
    made = with_one_refused(2**31 - 1)
    assert made.holding_back(7, 0, 0, 2**31 - 1, NOW) is TOO_FEW


def test_nobody_waits_for_what_was_written_elsewhere_or_does_not_come() -> None:
    assert with_one_refused().holding_back(7, 0, 6, 6, NOW) is None, "another leader has written it"
    assert with_one_refused().holding_back(7, 1, 6, 0, NOW) is None, "the producer has begun a new epoch"
    assert with_one_refused().holding_back(7, 0, 6, 5, NOW + HELD_FOR_MS + 1) is None


def test_only_what_clients_repeat_by_themselves_is_remembered() -> None:
    made = RefusedBatches()
    made.add(7, 0, 5, ErrorCode.MESSAGE_TOO_LARGE, NOW)
    made.add(-1, -1, -1, TOO_FEW, NOW)
    assert len(made) == 0


def test_the_memory_is_bounded() -> None:
    made = RefusedBatches()
    for producer_id in range(refused_batches.MOST_PRODUCERS + 10):
        made.add(producer_id, 0, 0, TOO_FEW, NOW)
    assert len(made) == refused_batches.MOST_PRODUCERS
