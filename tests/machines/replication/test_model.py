"""The rules of replication hold in every story that the model can tell, and each of them is needed.

`model.py` drives the real machines. An ablation switches one rule off, in the machine or in the model's ZooKeeper, and
the model must then find a story in which a committed record is lost, or in which the replicas do not become one again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

import pytest

from semel.errors import ErrorCode
from semel.machines.controller import elections
from semel.machines.replication import leader
from semel.machines.replication.follower import FollowerReplica, FollowingState
from semel.machines.replication.leader import LeaderReplica
from semel.machines.replication.replica import Replica
from semel.machines.replication.values import BeginEpoch, FetchFrom, PartitionState
from tests.machines.replication.model import Bounds, Model, Outcome, exhaust, walk

#: Any suspicion, also a wrong one, and logs that survive.
SUSPICIOUS = Bounds(writes=3, elections=3, asks=3)
#: One machine loses power; only who is down is suspected.
POWER_LOSS = Bounds(writes=2, elections=2, asks=2, losses=1, false_suspicion=False)
#: Processes are killed, and come back in a new life.
KILLS = Bounds(writes=3, elections=3, asks=3, kills=2)


def told(outcome: Outcome) -> str:
    return "\n".join((*outcome.story, outcome.wrong))


@pytest.mark.timeout(300)
def test_every_story_of_the_small_configuration_ends_well() -> None:
    outcome = exhaust(Model(Bounds(writes=1, elections=1, asks=1)), within_s=280)
    assert not outcome.wrong, told(outcome)
    assert outcome.exhausted and outcome.states > 100_000


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bounds", [SUSPICIOUS, POWER_LOSS, KILLS], ids=["suspicious", "power loss", "kills"])
def test_random_stories_of_larger_configurations_end_well(bounds: Bounds) -> None:
    outcome = walk(Model(bounds), seed=1, within_s=280, steps=10_000)
    assert not outcome.wrong, told(outcome)


@pytest.mark.soak
@pytest.mark.parametrize(
    "bounds",
    [
        Bounds(writes=1, elections=1, asks=2),
        Bounds(writes=1, elections=1, asks=1, kills=1, lost_answers=False),
        Bounds(writes=1, elections=1, asks=1, losses=1, false_suspicion=False, lost_answers=False),
    ],
    ids=["two changes of the set", "a kill", "a power loss"],
)
def test_every_story_of_the_middle_configurations_ends_well(bounds: Bounds) -> None:
    outcome = exhaust(Model(bounds), within_s=3_000)
    assert not outcome.wrong, told(outcome)
    assert outcome.exhausted


@pytest.mark.soak
def test_random_stories_for_a_long_time_end_well() -> None:
    seconds = float(os.environ.get("SEMEL_SOAK_SECONDS", "600")) / 3
    for bounds in (SUSPICIOUS, POWER_LOSS, KILLS):
        seed = int(time.time())
        outcome = walk(Model(bounds), seed, within_s=seconds)
        print("seed", seed, bounds, outcome.steps, "steps")
        assert not outcome.wrong, told(outcome)


# --- each rule is needed


def _eligible_for_ever(
    state: PartitionState, isr: Iterable[int], needed: int, unclean: frozenset[int] = frozenset()
) -> PartitionState:
    isr = tuple(isr)
    return state._replace(isr=isr, elr=tuple(sorted({*state.elr, *state.isr} - set(isr) - unclean)))


_lead, _follow, _next_request = Replica._lead, Replica._follow, FollowerReplica.next_request


def _lead_without_an_entry(self: Replica, *arguments: Any) -> list[Any]:
    return [effect for effect in _lead(self, *arguments) if not isinstance(effect, BeginEpoch)]


def _follow_with_empty_epochs(self: Replica, *arguments: Any) -> list[Any]:
    _follow(self, *arguments)
    return []


def _validated_once(self: FollowerReplica, now_ms: int) -> Any:
    """As followers did before Fetch 12: what was validated once under a leader epoch is not looked at again."""
    fetch = _next_request(self, now_ms)
    fetching = isinstance(fetch, FetchFrom) and self.status is FollowingState.FETCHING
    return fetch._replace(last_fetched_epoch=-1) if fetching else fetch


Patches = list[tuple[Any, str, Any]]

#: A rule; bounds in which it matters; what the model leaves out; what is patched; the first seed to try.
ABLATIONS: dict[str, tuple[Bounds, set[str], Patches, int]] = {
    "Z1: writes whatever the version is": (SUSPICIOUS, {"Z1"}, [], 1),
    "E4: stays in the set after a power loss": (POWER_LOSS, {"E4"}, [], 1),
    # R3 alone is enough here: nothing is committed while somebody is eligible. So both are taken out.
    "E5: eligible for ever, and a leader commits all the same": (
        SUSPICIOUS,
        set(),
        [
            (leader, "state_with_isr", _eligible_for_ever),
            (elections, "state_with_isr", _eligible_for_ever),
            (LeaderReplica, "has_enough_replicas", property(lambda self: len(self.state.isr) >= self.needed)),
        ],
        1,
    ),
    "R2: the set that was asked for does not count": (
        SUSPICIOUS,
        set(),
        [(LeaderReplica, "counted", property(lambda self: set(self.state.isr)))],
        2,
    ),
    "R2: only the set that was asked for counts": (
        SUSPICIOUS,
        set(),
        [(LeaderReplica, "counted", property(lambda self: set((self.wished or self.state).isr)))],
        1,
    ),
    "R3: commits with too few": (
        POWER_LOSS,
        set(),
        [(LeaderReplica, "has_enough_replicas", property(lambda self: True))],
        1,
    ),
    "R4: an epoch without an entry": (SUSPICIOUS, set(), [(Replica, "_lead", _lead_without_an_entry)], 5),
    "R5: entries without records": (SUSPICIOUS, set(), [(Replica, "_follow", _follow_with_empty_epochs)], 17),
    "R6: any epoch will do, where a log is validated once": (
        SUSPICIOUS,
        set(),
        [
            (LeaderReplica, "_fence", lambda self, fetch: ErrorCode.NONE),
            (FollowerReplica, "_is_late", lambda self, leader_epoch: False),
            (FollowerReplica, "next_request", _validated_once),
        ],
        131,
    ),
    "R7: logs that part are not noticed": (
        SUSPICIOUS,
        set(),
        [(LeaderReplica, "_diverging", lambda self, fetch, epochs: None)],
        1,
    ),
    "R8: joins before this epoch's start": (
        SUSPICIOUS,
        set(),
        [
            (
                LeaderReplica,
                "_may_enter",
                lambda self, fetch: fetch.follower not in self.counted and fetch.offset >= self.high_watermark,
            )
        ],
        36,
    ),
    "R8: joins below the high watermark": (
        SUSPICIOUS,
        set(),
        [
            (
                LeaderReplica,
                "_may_enter",
                lambda self, fetch: fetch.follower not in self.counted and fetch.offset >= self.start_offset,
            )
        ],
        1,
    ),
    "R8: joins in a life that is over": (POWER_LOSS, {"R8"}, [], 172),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("rule", ABLATIONS)
def test_without_the_rule_the_model_finds_a_story(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds, without, patches, seed = ABLATIONS[rule]
    for owner, name, replacement in patches:
        monkeypatch.setattr(owner, name, replacement)
    model = Model(bounds, frozenset(without))
    for attempt in range(seed, seed + 60):
        outcome = walk(model, attempt, within_s=280, steps=5_000)
        if outcome.wrong:
            return
    pytest.fail(f"{rule}: nothing was found; the rule is not needed, or the model has become blind")


def test_a_log_that_is_validated_once_is_safe_while_epochs_are_fenced(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control of the ablation of R6: what is patched besides the rule is harmless by itself."""
    monkeypatch.setattr(FollowerReplica, "next_request", _validated_once)
    outcome = walk(Model(SUSPICIOUS), seed=11, within_s=50, steps=5_000)
    assert not outcome.wrong, told(outcome)
