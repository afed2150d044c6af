"""The broker's own assignors under the consumer protocol: `uniform` and `range`.

Both are pure functions of members and topics. Every partition of a subscribed topic goes to exactly one of its
subscribers. `uniform` is balanced to within one partition if all subscriptions are equal, and moves few partitions.
`range` gives each subscriber of a topic one range of it, the same range of all topics with as many partitions and the
same subscribers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

#: (topic id, partition)
Place = tuple[UUID, int]
#: topic id -> partitions
Assignment = Mapping[UUID, frozenset[int]]


@dataclass(frozen=True, slots=True)
class AssignedMember:
    """A member as an assignor sees it."""

    topics: frozenset[UUID]
    instance_id: str | None = None
    current: Assignment = field(default_factory=dict)


#: Members by id and partition counts by topic id, to an assignment for every member.
Assignor = Callable[[Mapping[str, AssignedMember], Mapping[UUID, int]], dict[str, Assignment]]


def assign_range(members: Mapping[str, AssignedMember], partitions: Mapping[UUID, int]) -> dict[str, Assignment]:
    """A range of each topic per subscriber, in the order of instance ids and then member ids."""
    places: dict[str, set[Place]] = {member_id: set() for member_id in members}
    # Static members come first, so that a dynamic member does not change their ranges.
    order = sorted(members, key=lambda m: (members[m].instance_id is None, members[m].instance_id or "", m))
    for topic_id in sorted(partitions):
        subscribers = [member_id for member_id in order if topic_id in members[member_id].topics]
        if not subscribers:
            continue
        quota, extra = divmod(partitions[topic_id], len(subscribers))
        start = 0
        for position, member_id in enumerate(subscribers):
            end = start + quota + (1 if position < extra else 0)
            places[member_id].update((topic_id, partition) for partition in range(start, end))
            start = end
    return {member_id: _by_topic(given) for member_id, given in places.items()}


def assign_uniform(members: Mapping[str, AssignedMember], partitions: Mapping[UUID, int]) -> dict[str, Assignment]:
    """As balanced as the subscriptions allow. Members keep what they have where possible."""
    if not members:
        return {}
    subscriptions = {member.topics for member in members.values()}
    given = _keep_current(members, partitions)
    if len(subscriptions) == 1:
        _even_out(given, members, partitions)
    else:
        _level(given, members, partitions)
    return {member_id: _by_topic(places) for member_id, places in given.items()}


ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniform, "range": assign_range}


def _keep_current(members: Mapping[str, AssignedMember], partitions: Mapping[UUID, int]) -> dict[str, list[Place]]:
    """What each member keeps: partitions that exist, are subscribed to and not kept by another member."""
    taken: set[Place] = set()
    kept: dict[str, list[Place]] = {}
    for member_id in sorted(members):
        member = members[member_id]
        mine = [
            (topic_id, partition)
            for topic_id in sorted(member.current)
            if topic_id in member.topics
            for partition in sorted(member.current[topic_id])
            if partition < partitions.get(topic_id, 0) and (topic_id, partition) not in taken
        ]
        taken.update(mine)
        kept[member_id] = mine
    return kept


def _even_out(
    given: dict[str, list[Place]], members: Mapping[str, AssignedMember], partitions: Mapping[UUID, int]
) -> None:
    """All subscriptions are equal: each member gets an equal share, some of them one more."""
    topics = next(iter(members.values())).topics
    total = sum(partitions.get(topic_id, 0) for topic_id in topics)
    quota, extra = divmod(total, len(members))
    # The extra partitions stay with members that have more than the share, so fewer partitions move.
    for member_id in sorted(given, key=lambda m: (-len(given[m]), m)):
        share = quota
        if extra > 0 and len(given[member_id]) > quota:
            share += 1
            extra -= 1
        del given[member_id][share:]
    taken = {place for places in given.values() for place in places}
    free = [
        (topic_id, partition)
        for topic_id in sorted(topics)
        for partition in range(partitions.get(topic_id, 0))
        if (topic_id, partition) not in taken
    ]
    free.reverse()
    for member_id in sorted(given):
        while free and len(given[member_id]) < quota:
            given[member_id].append(free.pop())
    for member_id in sorted(given):
        if free and len(given[member_id]) == quota:
            given[member_id].append(free.pop())


def _level(
    given: dict[str, list[Place]], members: Mapping[str, AssignedMember], partitions: Mapping[UUID, int]
) -> None:
    """Subscriptions differ: free partitions go to the member with the fewest, then partitions move until balanced."""
    subscribers: dict[UUID, list[str]] = {
        topic_id: [member_id for member_id in sorted(members) if topic_id in members[member_id].topics]
        for topic_id in sorted(partitions)
    }
    taken = {place for places in given.values() for place in places}
    # Topics with the fewest subscribers first: the later ones can even out the shares.
    for topic_id in sorted(subscribers, key=lambda t: (len(subscribers[t]), t)):
        if not subscribers[topic_id]:
            continue
        for partition in range(partitions[topic_id]):
            if (topic_id, partition) not in taken:
                poorest = min(subscribers[topic_id], key=lambda m: (len(given[m]), m))
                given[poorest].append((topic_id, partition))
    moved = True
    while moved:
        moved = False
        for richest in sorted(given, key=lambda m: (-len(given[m]), m)):
            for place in list(given[richest]):
                poorest = min(subscribers[place[0]], key=lambda m: (len(given[m]), m))
                # A move helps only if the two members differ by at least two partitions.
                if len(given[richest]) - len(given[poorest]) >= 2:
                    given[richest].remove(place)
                    given[poorest].append(place)
                    moved = True


def _by_topic(places: list[Place] | set[Place]) -> dict[UUID, frozenset[int]]:
    by_topic: dict[UUID, set[int]] = {}
    for topic_id, partition in places:
        by_topic.setdefault(topic_id, set()).add(partition)
    return {topic_id: frozenset(by_topic[topic_id]) for topic_id in sorted(by_topic)}
