"""The broker's assignors: every partition to exactly one subscriber, evenly, and moving little."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.machines.groups.consumer.assignors import ASSIGNORS, AssignedMember, Assignment, assign_range, assign_uniform

T1, T2, T3 = UUID(int=1), UUID(int=2), UUID(int=3)
BOTH = frozenset({T1, T2})

topics = st.dictionaries(st.sampled_from([T1, T2, T3]), st.integers(1, 8), min_size=1)


@st.composite
def groups(draw: st.DrawFn, same: bool = False) -> tuple[dict[str, AssignedMember], dict[UUID, int]]:
    partitions = draw(topics)
    names = draw(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6, unique=True))
    everything = frozenset(partitions)
    subscriptions = st.just(everything) if same else st.frozensets(st.sampled_from([T1, T2, T3]))
    return {name: AssignedMember(draw(subscriptions)) for name in names}, partitions


def with_current(members: dict[str, AssignedMember], target: dict[str, Assignment]) -> dict[str, AssignedMember]:
    return {
        name: AssignedMember(member.topics, member.instance_id, target.get(name, {}))
        for name, member in members.items()
    }


def places(assignment: Assignment) -> set[tuple[UUID, int]]:
    return {(topic_id, partition) for topic_id, partitions in assignment.items() for partition in partitions}


@pytest.mark.parametrize("name", ASSIGNORS)
@given(groups())
def test_every_partition_somebody_wants_has_exactly_one_owner_that_wants_it(
    name: str, group: tuple[dict[str, AssignedMember], dict[UUID, int]]
) -> None:
    members, partitions = group
    target = ASSIGNORS[name](members, partitions)
    assert target.keys() == members.keys()
    given_out = [place for assignment in target.values() for place in places(assignment)]
    wanted = frozenset().union(*(member.topics for member in members.values()))
    assert len(given_out) == len(set(given_out))
    assert set(given_out) == {(t, p) for t, count in partitions.items() if t in wanted for p in range(count)}
    assert all(target[member].keys() <= members[member].topics for member in members)


@given(groups(same=True))
def test_uniform_is_even_to_within_one_when_all_want_the_same(
    group: tuple[dict[str, AssignedMember], dict[UUID, int]],
) -> None:
    sizes = [len(places(assignment)) for assignment in assign_uniform(*group).values()]
    assert max(sizes) - min(sizes) <= 1


@given(groups())
def test_uniform_leaves_no_move_that_would_make_it_more_even(
    group: tuple[dict[str, AssignedMember], dict[UUID, int]],
) -> None:
    members, partitions = group
    target = {member: places(assignment) for member, assignment in assign_uniform(members, partitions).items()}
    for rich, held in target.items():
        for topic_id, _ in held:
            for poor in target:
                if topic_id in members[poor].topics:
                    assert len(target[rich]) - len(target[poor]) <= 1


@pytest.mark.parametrize("name", ASSIGNORS)
@given(groups())
def test_asking_again_changes_nothing(name: str, group: tuple[dict[str, AssignedMember], dict[UUID, int]]) -> None:
    members, partitions = group
    target = ASSIGNORS[name](members, partitions)
    assert ASSIGNORS[name](with_current(members, target), partitions) == target


@settings(max_examples=50)
@given(groups(same=True), st.sampled_from(["join", "leave"]))
def test_uniform_moves_only_what_it_must(group: tuple[dict[str, AssignedMember], dict[UUID, int]], event: str) -> None:
    members, partitions = group
    before = assign_uniform(members, partitions)
    held = with_current(members, before)
    if event == "join":
        held["z"] = AssignedMember(frozenset(partitions))
    elif len(held) > 1:
        del held[min(held)]
    after = assign_uniform(held, partitions)
    share = sum(partitions.values()) // len(held)
    for member, current in held.items():
        kept = places(current.current) & places(after[member])
        assert len(kept) >= min(len(places(current.current)), share)


def test_range_gives_the_same_stretch_of_topics_alike() -> None:
    members = {name: AssignedMember(BOTH) for name in ("a", "b")}
    assert assign_range(members, {T1: 3, T2: 3}) == {
        "a": {T1: frozenset({0, 1}), T2: frozenset({0, 1})},
        "b": {T1: frozenset({2}), T2: frozenset({2})},
    }


def test_range_puts_static_members_first() -> None:
    members = {"a": AssignedMember(BOTH), "z": AssignedMember(BOTH, "instance")}
    assert assign_range(members, {T1: 3})["z"] == {T1: frozenset({0, 1})}


def test_more_members_than_partitions_leaves_some_with_nothing() -> None:
    members = {name: AssignedMember(frozenset({T1})) for name in "abc"}
    for assignor in ASSIGNORS.values():
        assert sorted(len(places(a)) for a in assignor(members, {T1: 2}).values()) == [0, 1, 1]


def test_nobody_gets_nothing() -> None:
    for assignor in ASSIGNORS.values():
        assert assignor({}, {T1: 2}) == {}
