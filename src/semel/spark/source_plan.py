"""Plan a read: offsets in Spark's format, the share of each partition, the ranges for the tasks. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

from semel.machines.values import TopicPartition

from .range_reader import OffsetRange, SeveralRanges

#: A task costs more than to read so many records.
FEW_RECORDS = 100

#: To read so many records takes so long that a task more or less makes no difference.
MANY_RECORDS = 100_000

#: Offsets as Spark's Kafka source stores them in the checkpoint: {"topic": {"0": 42}}.
SparkOffsets = dict[str, dict[str, int]]


def as_spark(offsets: Mapping[TopicPartition, int]) -> SparkOffsets:
    """Offsets in Spark's format, always in the same order: Spark compares them as text to detect new data.

    >>> as_spark({TopicPartition("b", 10): 1, TopicPartition("b", 2): 3, TopicPartition("a", 0): 7})
    {'a': {'0': 7}, 'b': {'2': 3, '10': 1}}
    """
    found: SparkOffsets = {}
    for place in sorted(offsets, key=lambda place: (place.topic, place.partition)):
        found.setdefault(place.topic, {})[str(place.partition)] = offsets[place]
    return found


def places_of(offsets: SparkOffsets) -> list[TopicPartition]:
    """The partitions of the offsets."""
    return [TopicPartition(topic, int(number)) for topic, partitions in offsets.items() for number in partitions]


def by_place(offsets: SparkOffsets) -> dict[TopicPartition, int]:
    """Offsets by partition.

    >>> by_place({"b": {"2": 3}})
    {TopicPartition(topic='b', partition=2): 3}
    """
    return {place: offsets[place.topic][str(place.partition)] for place in places_of(offsets)}


def ends_not_before(start: SparkOffsets, end: SparkOffsets) -> SparkOffsets:
    """The end offsets, but none before its start, and with every partition of the start."""
    ends = {place: end[place.topic][str(place.partition)] for place in places_of(end)}
    for place in places_of(start):
        since = start[place.topic][str(place.partition)]
        ends[place] = max(since, ends.get(place, since))
    return as_spark(ends)


def unread_spans(
    start: SparkOffsets, end: SparkOffsets, beginnings: Mapping[TopicPartition, int]
) -> dict[TopicPartition, tuple[int, int]]:
    """The unread span of each partition: (from, until). New partitions are read from their beginning."""
    waiting = {}
    for place in places_of(end):
        until = end[place.topic][str(place.partition)]
        since = start.get(place.topic, {}).get(str(place.partition), beginnings.get(place, until))
        waiting[place] = (since, until)
    return waiting


def is_batch_due(waiting: int, least: int | None, since_last_ms: float | None, longest_ms: int) -> bool:
    """Whether a batch is due: always for the first one, then when enough records wait or the delay has passed.

    >>> is_batch_due(5, 10, None, 1000), is_batch_due(5, 10, 999, 1000), is_batch_due(5, 10, 1000, 1000)
    (True, False, True)
    """
    return not least or waiting >= least or since_last_ms is None or since_last_ms >= longest_ms


def ends_within_limit(waiting: Mapping[TopicPartition, tuple[int, int]], most: int) -> SparkOffsets:
    """The end offsets of a batch of about `most` records: in proportion to what waits, at least one per partition."""
    total = sum(max(0, until - since) for since, until in waiting.values())
    shared = {}
    for place, (since, until) in waiting.items():
        if total <= most or until <= since:
            shared[place] = until
        else:
            shared[place] = min(until, since + max(1, most * (until - since) // total))
    return as_spark(shared)


def split_ranges(
    ranges: Iterable[OffsetRange], most_records: int | None, least_partitions: int | None
) -> list[OffsetRange]:
    """Cut ranges to at most `most_records` each, then cut the long ones until there are about `least_partitions`."""
    pieces = []
    for one in ranges:
        length = one.end - one.start
        pieces += _cut(one, -(-length // most_records) if most_records else 1)
    total = sum(one.end - one.start for one in pieces)
    if not least_partitions or least_partitions <= len(pieces) or not total:
        return pieces
    finer = []
    for one in pieces:
        finer += _cut(one, max(1, round(least_partitions * (one.end - one.start) / total)))
    return finer


def join_ranges(ranges: Iterable[OffsetRange], most_tasks: int | None = None) -> list[OffsetRange | SeveralRanges]:
    """Ranges that together have few records become one task.

    With `most_tasks` so do others, until there are no more tasks than that, each with about as many records. But not if
    they would have many: tasks that take long are better spread while they run.

    >>> join_ranges([OffsetRange("t", 0, 0, 60), OffsetRange("t", 1, 0, 40), OffsetRange("t", 2, 0, 101)])
    [SeveralRanges(ranges=(OffsetRange(topic='t', partition=0, start=0, end=60), \
OffsetRange(topic='t', partition=1, start=0, end=40))), OffsetRange(topic='t', partition=2, start=0, end=101)]
    """
    groups: list[list[OffsetRange]] = []
    records = total = 0
    for one in ranges:
        records += one.end - one.start
        total += one.end - one.start
        if groups and records <= FEW_RECORDS:
            groups[-1].append(one)
        else:
            groups.append([one])
            records = one.end - one.start
    if most_tasks is not None and most_tasks < len(groups) and total <= most_tasks * MANY_RECORDS:
        groups = _shared_out(groups, most_tasks)
    return [group[0] if len(group) == 1 else SeveralRanges(tuple(group)) for group in groups]


def _shared_out(groups: list[list[OffsetRange]], tasks: int) -> list[list[OffsetRange]]:
    """The largest first, each to the task that has least so far."""
    sizes = [sum(one.end - one.start for one in group) for group in groups]
    given: list[list[int]] = [[] for _ in range(tasks)]
    loads = [0] * tasks
    for number in sorted(range(len(groups)), key=lambda number: -sizes[number]):
        least = loads.index(min(loads))
        given[least].append(number)
        loads[least] += sizes[number]
    return [[one for number in sorted(numbers) for one in groups[number]] for numbers in given]


def _cut(one: OffsetRange, count: int) -> list[OffsetRange]:
    length = one.end - one.start
    cuts = [one.start + length * i // count for i in range(count + 1)]
    return [OffsetRange(one.topic, one.partition, a, b) for a, b in pairwise(cuts) if b > a]
