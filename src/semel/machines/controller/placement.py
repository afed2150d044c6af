"""Where the replicas of a new topic go: Apache Kafka's algorithm, which spreads leaders, replicas and racks evenly.

The two numbers that Kafka draws at random, `start` and `shift`, are arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from semel.errors import ErrorCode, Refused


def place(
    brokers: Mapping[int, str | None],
    partitions: int,
    replication_factor: int,
    *,
    start: int,
    shift: int,
    first_partition: int = 0,
) -> dict[int, tuple[int, ...]]:
    """The replicas of each partition, the preferred leader first. `brokers` are the live ones with their racks.

    Racks count if every broker has one.
    """
    if partitions <= 0:
        raise Refused(ErrorCode.INVALID_PARTITIONS, "a topic needs at least one partition")
    if replication_factor <= 0:
        raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, "the replication factor must be at least 1")
    if replication_factor > len(brokers):
        raise Refused(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"the replication factor is {replication_factor}, and {len(brokers)} brokers are there",
        )
    numbers = range(first_partition, first_partition + partitions)
    racks = {broker: rack for broker, rack in brokers.items() if rack is not None}
    if len(racks) < len(brokers):
        return _spread(sorted(brokers), numbers, replication_factor, start, shift)
    return _spread_over_racks(racks, numbers, replication_factor, start, shift)


def _replica_index(first: int, shift: int, replica: int, count: int) -> int:
    return (first + 1 + (shift + replica) % (count - 1)) % count


def _spread(
    brokers: Sequence[int], numbers: range, replication_factor: int, start: int, shift: int
) -> dict[int, tuple[int, ...]]:
    count = len(brokers)
    placed = {}
    for number in numbers:
        if number > 0 and number % count == 0:
            shift += 1
        first = (number + start) % count
        others = (brokers[_replica_index(first, shift, replica, count)] for replica in range(replication_factor - 1))
        placed[number] = (brokers[first], *others)
    return placed


def rack_alternated(racks: Mapping[int, str]) -> list[int]:
    """The brokers in an order in which neighbours are in different racks, as far as there are enough."""
    by_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        by_rack.setdefault(racks[broker], []).append(broker)
    waiting = [list(by_rack[rack]) for rack in sorted(by_rack)]
    order = []
    while any(waiting):
        for brokers in waiting:
            if brokers:
                order.append(brokers.pop(0))
    return order


def _spread_over_racks(
    racks: Mapping[int, str], numbers: range, replication_factor: int, start: int, shift: int
) -> dict[int, tuple[int, ...]]:
    order = rack_alternated(racks)
    count, rack_count = len(order), len(set(racks.values()))
    placed = {}
    for number in numbers:
        if number > 0 and number % count == 0:
            shift += 1
        first = (number + start) % count
        leader = order[first]
        chosen = [leader]
        used_racks, used_brokers = {racks[leader]}, {leader}
        step = 0
        for _ in range(replication_factor - 1):
            while True:
                broker = order[_replica_index(first, shift * rack_count, step, count)]
                step += 1
                # A rack is used twice only when all have one, a broker only when all have one.
                new_rack = racks[broker] not in used_racks or len(used_racks) == rack_count
                new_broker = broker not in used_brokers or len(used_brokers) == count
                if new_rack and new_broker:
                    break
            chosen.append(broker)
            used_racks.add(racks[broker])
            used_brokers.add(broker)
        placed[number] = tuple(chosen)
    return placed
