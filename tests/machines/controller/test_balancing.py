"""Where replicas and leaders should be: `machines.controller.balancing`, by example and by random clusters."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from semel.errors import Refused
from semel.machines.controller.balancing import Plan, Replicas, Situation, Wish, plan
from semel.machines.values import TopicPartition


def situation(brokers: dict[int, str | None], *replicas: Replicas, topic: str = "t") -> Situation:
    return Situation(brokers, {TopicPartition(topic, number): each for number, each in enumerate(replicas)})


def without_racks(*brokers: int) -> dict[int, str | None]:
    return dict.fromkeys(brokers)


def after(now: Situation, made: Plan) -> dict[TopicPartition, Replicas]:
    return {**now.partitions, **{move.partition: move.after for move in made.moves}}


def test_a_cluster_that_is_even_stays_as_it_is() -> None:
    assert plan(situation(without_racks(1, 2, 3), (1, 2), (2, 3), (3, 1)), Wish()).moves == []


def test_one_broker_becomes_three() -> None:
    """The way from one broker: everything on broker 1, three replicas wanted."""
    now = situation(without_racks(1, 2, 3), *[(1,)] * 9)
    made = plan(now, Wish(replication_factor=3))
    assert made.replicas_after == {1: 9, 2: 9, 3: 9}
    assert made.leaders_after == {1: 3, 2: 3, 3: 3}
    assert made.copies == 18
    assert "3 replicas are wanted" in made.moves[0].reasons


def test_a_new_broker_gets_its_share_and_no_more() -> None:
    now = situation(without_racks(1, 2, 3), *[(1, 2), (2, 1)] * 3)
    made = plan(now, Wish())
    assert made.replicas_after == {1: 4, 2: 4, 3: 4}
    assert made.leaders_after == {1: 2, 2: 2, 3: 2}
    assert made.copies == 4


def test_a_broker_is_emptied_also_if_it_does_not_run() -> None:
    for brokers in (without_racks(1, 2, 3, 4), without_racks(1, 2, 3)):
        now = situation(brokers, (4, 1, 2), (1, 2, 4), (2, 4, 3))
        made = plan(now, Wish(remove=frozenset((4,))))
        assert made.replicas_after[4] == 0
        assert all(len(replicas) == 3 for replicas in after(now, made).values())
        assert "broker 4 is to hold nothing" in made.moves[0].reasons


def test_where_no_broker_is_left_for_a_replica_it_stays_and_that_is_told() -> None:
    now = situation(without_racks(1, 2, 3), (1, 2, 3))
    made = plan(now, Wish(remove=frozenset((3,))))
    assert made.moves == []
    assert "no other broker" in made.left_alone[TopicPartition("t", 0)]


def test_a_partition_that_nobody_leads_is_not_moved() -> None:
    partition = TopicPartition("t", 0)
    now = Situation(without_racks(1, 2), {partition: (3,)}, offline=frozenset((partition,)))
    made = plan(now, Wish(remove=frozenset((3,))))
    assert made.moves == [] and "nobody leads it" in made.left_alone[partition]


def test_a_broker_that_does_not_run_keeps_its_replicas_and_gets_none() -> None:
    now = situation(without_racks(1, 2), (1, 3), (2, 3), (1, 2))
    made = plan(now, Wish())
    assert made.replicas_after[3] == 2


def test_replicas_that_share_a_rack_are_separated() -> None:
    now = situation({1: "a", 2: "a", 3: "b", 4: "b"}, (1, 2), (3, 4))
    made = plan(now, Wish())
    racks = {1: "a", 2: "a", 3: "b", 4: "b"}
    assert all(len({racks[broker] for broker in replicas}) == 2 for replicas in after(now, made).values())
    assert made.copies == 2


def test_only_the_named_topics_move() -> None:
    partitions = {TopicPartition(topic, number): (1,) for topic in ("a", "b") for number in range(4)}
    made = plan(Situation(without_racks(1, 2), partitions), Wish(topics=frozenset(("b",))))
    assert {move.partition.topic for move in made.moves} == {"b"}


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        (Wish(replication_factor=3), "2 brokers run"),
        (Wish(replication_factor=0), "at least 1"),
        (Wish(replication_factor=2, remove=frozenset((2,))), "1 brokers run"),
        (Wish(topics=frozenset(("x",))), "no topic x"),
    ],
)
def test_what_cannot_be_is_refused_in_words(wish: Wish, why: str) -> None:
    with pytest.raises(Refused, match=why):
        plan(situation(without_racks(1, 2), (1, 2)), wish)


@some.composite
def clusters(draw: some.DrawFn, *, racks: bool) -> tuple[Situation, Wish]:
    count = draw(some.integers(1, 7))
    rack_of = some.sampled_from("abc") if racks else some.none()
    brokers = {broker: draw(rack_of) for broker in range(1, count + 1)}
    away = draw(some.lists(some.integers(20, 22), unique=True, max_size=1))
    everybody = [*brokers, *away]
    partitions = {}
    for number in range(draw(some.integers(0, 25))):
        replicas = draw(some.lists(some.sampled_from(everybody), unique=True, min_size=1, max_size=4))
        if not set(replicas) & set(brokers):
            continue
        partitions[TopicPartition(f"t{number % 3}", number)] = tuple(replicas)
    remove = frozenset(draw(some.lists(some.sampled_from(everybody), unique=True, max_size=1)))
    left = len(set(brokers) - remove)
    factor = draw(some.none() | some.integers(1, left)) if left else None
    used = {broker for replicas in partitions.values() for broker in replicas}
    return Situation(brokers, partitions), Wish(remove & (used | brokers.keys()), factor)


def check_promises(now: Situation, wish: Wish, made: Plan) -> None:
    later = after(now, made)
    for partition, before in now.partitions.items():
        replicas = later[partition]
        assert len(set(replicas)) == len(replicas) >= len(before), "never fewer, never two on one broker"
        gained = set(replicas) - set(before)
        assert gained <= now.brokers.keys() - wish.remove, "only brokers that run, and may hold replicas, get any"
        if partition not in made.left_alone:
            assert len(replicas) >= (wish.replication_factor or 0)
            assert not set(replicas) & wish.remove
        for broker in set(before) - set(replicas):
            assert broker in now.brokers or broker in wish.remove, "an away broker keeps what it has"
    for move in made.moves:
        assert move.reasons
    assert plan(Situation(now.brokers, later), wish).copies == 0, "a second plan copies nothing"


@settings(max_examples=150, deadline=None)
@given(clusters(racks=False))
def test_promises_without_racks(given_cluster: tuple[Situation, Wish]) -> None:
    now, wish = given_cluster
    made = plan(now, wish)
    check_promises(now, wish, made)
    allowed = sorted(now.brokers.keys() - wish.remove)
    later = after(now, made)
    if not allowed:
        return
    held = Counter(broker for replicas in later.values() for broker in replicas)
    loads = {broker: held[broker] for broker in allowed}
    # Uneven only where every partition of the fuller one is on the emptier one as well.
    for over in allowed:
        for under in allowed:
            if loads[over] - loads[under] > 1:
                assert all(under in replicas for replicas in later.values() if over in replicas)
    # As few copies as possible: what must be copied, and what is too much on the brokers that hold too much.
    if not wish.remove and wish.replication_factor is None:
        before = Counter(broker for replicas in now.partitions.values() for broker in replicas)
        below = sum(max(0, loads[broker] - before[broker]) for broker in allowed)
        assert made.copies <= below + sum(max(0, before[each] - loads[each]) for each in allowed)
        assert made.copies == below


@settings(max_examples=150, deadline=None)
@given(clusters(racks=True))
def test_promises_with_racks(given_cluster: tuple[Situation, Wish]) -> None:
    now, wish = given_cluster
    made = plan(now, wish)
    check_promises(now, wish, made)
    allowed = {broker: rack for broker, rack in now.brokers.items() if broker not in wish.remove}
    for partition, replicas in after(now, made).items():
        here = [broker for broker in replicas if broker in allowed]
        racks = {allowed[broker] for broker in here}
        if partition not in made.left_alone and here == list(replicas):
            assert len(racks) == min(len(replicas), len(set(allowed.values()))), "as many racks as there can be"


@settings(max_examples=100, deadline=None)
@given(clusters(racks=False))
def test_nobody_leads_two_more_than_another_who_could_take_one(given_cluster: tuple[Situation, Wish]) -> None:
    now, wish = given_cluster
    later = after(now, plan(now, wish))
    allowed = now.brokers.keys() - wish.remove
    leads = Counter(replicas[0] for replicas in later.values())
    for replicas in later.values():
        if replicas[0] in allowed:
            for other in replicas[1:]:
                assert other not in allowed or leads[replicas[0]] - leads[other] <= 1
