"""How the leader of a classic group assigns partitions: range, roundrobin, sticky and cooperative-sticky.

Guarantees: every partition of a subscribed topic goes to exactly one member that is subscribed to it. The sizes of the
shares differ by as little as the subscriptions allow (roundrobin, sticky), or by at most one per topic (range). The
sticky assignors move a partition only to balance the shares. cooperative-sticky gives a partition to nobody until its
owner has revoked it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from semel.machines.values import TopicPartition


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member of the group: what the leader knows of it."""

    member_id: str
    topics: frozenset[str]
    group_instance_id: str | None = None
    owned: frozenset[TopicPartition] = frozenset()
    #: The generation in which `owned` was assigned. If two members claim a partition, the newer generation wins.
    generation_id: int = -1

    @property
    def order(self) -> tuple[bool, str]:
        """The sort key. Static members sort by their instance id, so that a restart does not move partitions."""
        return (self.group_instance_id is None, self.group_instance_id or self.member_id)


Shares = dict[str, list[TopicPartition]]


def assign_range(members: list[Subscriber], partition_counts: Mapping[str, int]) -> Shares:
    """Topic by topic, a range of partitions to each member. Equal partition numbers of topics go to the same member."""
    shares: Shares = {member.member_id: [] for member in members}
    for topic in sorted(partition_counts):
        readers = sorted((m for m in members if topic in m.topics), key=lambda m: m.order)
        if not readers:
            continue
        each, more = divmod(partition_counts[topic], len(readers))
        start = 0
        for place, reader in enumerate(readers):
            count = each + (place < more)
            shares[reader.member_id] += [TopicPartition(topic, number) for number in range(start, start + count)]
            start += count
    return shares


def assign_roundrobin(members: list[Subscriber], partition_counts: Mapping[str, int]) -> Shares:
    """All partitions in order, one to each member in turn."""
    shares: Shares = {member.member_id: [] for member in members}
    circle = sorted(members, key=lambda m: m.order)
    place = 0
    for partition in _all_partitions(members, partition_counts):
        while partition.topic not in circle[place % len(circle)].topics:
            place += 1
        shares[circle[place % len(circle)].member_id].append(partition)
        place += 1
    return shares


def assign_sticky(members: list[Subscriber], partition_counts: Mapping[str, int]) -> Shares:
    """Members keep what they own. Free partitions go to the member with the fewest. Then the shares are balanced."""
    partitions = _all_partitions(members, partition_counts)
    by_id = {member.member_id: member for member in members}
    shares: dict[str, set[TopicPartition]] = {member.member_id: set() for member in members}
    taken: set[TopicPartition] = set()
    existing = set(partitions)
    for member in sorted(members, key=lambda m: (-m.generation_id, m.order)):
        for partition in member.owned:
            if partition in existing and partition not in taken and partition.topic in member.topics:
                shares[member.member_id].add(partition)
                taken.add(partition)
    for partition in partitions:
        if partition not in taken:
            shares[_least_loaded(partition, members, shares)].add(partition)
    while (move := _next_move(by_id, shares)) is not None:
        partition, giver, taker = move
        shares[giver].discard(partition)
        shares[taker].add(partition)
    return {member_id: sorted(share, key=_place) for member_id, share in shares.items()}


def assign_cooperative_sticky(members: list[Subscriber], partition_counts: Mapping[str, int]) -> Shares:
    """As sticky, but a partition that changes its owner is assigned to nobody until the old owner has revoked it."""
    target = assign_sticky(members, partition_counts)
    owner: dict[TopicPartition, str] = {}
    for member in sorted(members, key=lambda m: m.generation_id):
        owner.update(dict.fromkeys(member.owned, member.member_id))
    return {
        member_id: [partition for partition in share if owner.get(partition, member_id) == member_id]
        for member_id, share in target.items()
    }


ASSIGNORS: dict[str, Callable[[list[Subscriber], Mapping[str, int]], Shares]] = {
    "range": assign_range,
    "roundrobin": assign_roundrobin,
    "sticky": assign_sticky,
    "cooperative-sticky": assign_cooperative_sticky,
}

#: Assignors whose members keep their partitions while the group rebalances.
COOPERATIVE = frozenset({"cooperative-sticky"})


def _all_partitions(members: list[Subscriber], partition_counts: Mapping[str, int]) -> list[TopicPartition]:
    wanted = {topic for member in members for topic in member.topics}
    return [
        TopicPartition(topic, number)
        for topic in sorted(wanted & set(partition_counts))
        for number in range(partition_counts[topic])
    ]


def _place(partition: TopicPartition) -> tuple[str, int]:
    return partition.topic, partition.partition


def _least_loaded(
    partition: TopicPartition, members: list[Subscriber], shares: Mapping[str, set[TopicPartition]]
) -> str:
    readers = [member for member in members if partition.topic in member.topics]
    return min(readers, key=lambda m: (len(shares[m.member_id]), m.order)).member_id


def _next_move(
    members: Mapping[str, Subscriber], shares: Mapping[str, set[TopicPartition]]
) -> tuple[TopicPartition, str, str] | None:
    """A partition to move from a larger to a smaller share, or None if the shares are balanced."""
    by_load = sorted(shares, key=lambda member_id: (len(shares[member_id]), members[member_id].order))
    for giver in reversed(by_load):
        for taker in by_load:
            if len(shares[giver]) - len(shares[taker]) < 2:
                break
            movable = [p for p in shares[giver] if p.topic in members[taker].topics]
            if movable:
                return max(movable, key=_place), giver, taker
    return None
