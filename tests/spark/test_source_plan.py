"""Planning a read: nothing is skipped, nothing is read twice, and everybody gets a share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from semel.machines.values import TopicPartition
from semel.spark.range_reader import OffsetRange, SeveralRanges
from semel.spark.source_plan import (
    FEW_RECORDS,
    MANY_RECORDS,
    as_spark,
    ends_not_before,
    ends_within_limit,
    join_ranges,
    places_of,
    split_ranges,
    unread_spans,
)

spans = st.tuples(st.integers(0, 1000), st.integers(0, 1000)).map(sorted).map(tuple)
waiting_maps = st.dictionaries(st.builds(TopicPartition, st.sampled_from("ab"), st.integers(0, 12)), spans, min_size=1)


@given(waiting_maps, st.integers(1, 500))
def test_a_share_moves_every_partition_that_waits_and_never_past_its_end(
    waiting: dict[TopicPartition, tuple[int, int]], most: int
) -> None:
    shared = ends_within_limit(waiting, most)
    steps = {}
    for place, (since, until) in waiting.items():
        end = shared[place.topic][str(place.partition)]
        assert since <= end <= until
        assert end > since or since == until
        steps[place] = end - since
    assert sum(steps.values()) <= most + len(waiting)  # at least one each


@given(waiting_maps, st.integers(1, 50) | st.none(), st.integers(1, 40) | st.none())
def test_cutting_ranges_covers_every_offset_once(
    waiting: dict[TopicPartition, tuple[int, int]], most: int | None, least: int | None
) -> None:
    ranges = [OffsetRange(p.topic, p.partition, since, until) for p, (since, until) in waiting.items() if until > since]
    pieces = split_ranges(ranges, most, least)
    covered = [(r.topic, r.partition, offset) for r in pieces for offset in range(r.start, r.end)]
    assert covered == [(r.topic, r.partition, offset) for r in ranges for offset in range(r.start, r.end)]
    if most:
        assert all(r.end - r.start <= most for r in pieces)
    if not most and not least:
        assert pieces == ranges


@given(waiting_maps)
def test_little_is_read_by_one_task_and_every_offset_is_read_once(
    waiting: dict[TopicPartition, tuple[int, int]],
) -> None:
    ranges = [OffsetRange(p.topic, p.partition, since, until) for p, (since, until) in waiting.items() if until > since]
    tasks = [task.ranges if isinstance(task, SeveralRanges) else (task,) for task in join_ranges(ranges)]
    assert [one for task in tasks for one in task] == ranges
    sizes = [sum(one.end - one.start for one in task) for task in tasks]
    assert all(size <= FEW_RECORDS for size, task in zip(sizes, tasks, strict=True) if len(task) > 1)
    if sum(sizes) <= FEW_RECORDS:
        assert len(tasks) <= 1


@given(waiting_maps, st.integers(1, 8))
def test_on_one_machine_tasks_are_no_more_than_run_at_once_and_have_about_the_same(
    waiting: dict[TopicPartition, tuple[int, int]], most_tasks: int
) -> None:
    ranges = [OffsetRange(p.topic, p.partition, since, until) for p, (since, until) in waiting.items() if until > since]
    tasks = [task.ranges if isinstance(task, SeveralRanges) else (task,) for task in join_ranges(ranges, most_tasks)]
    read = [one for task in tasks for one in task]
    assert sorted(read, key=ranges.index) == ranges  # each once
    assert all(list(task) == sorted(task, key=ranges.index) for task in tasks)
    assert len(tasks) <= most_tasks
    sizes = sorted(sum(one.end - one.start for one in task) for task in tasks)
    if sizes and len(tasks) == most_tasks:
        assert sizes[-1] - sizes[0] <= max(FEW_RECORDS, *(one.end - one.start for one in read), 0)


def test_tasks_that_take_long_are_left_to_spark_to_spread() -> None:
    ranges = [OffsetRange("a", number, 0, MANY_RECORDS) for number in range(3)]
    assert join_ranges(ranges, 2) == ranges
    ranges[2].end = 101  # now it is what two tasks are worth, at most
    ranges[1].end = MANY_RECORDS - 101
    assert join_ranges(ranges, 2) == [ranges[0], SeveralRanges((ranges[1], ranges[2]))]


def test_what_was_read_never_moves_back_and_never_vanishes() -> None:
    assert ends_not_before({"a": {"0": 5, "1": 7}}, {"a": {"0": 3}, "b": {"0": 1}}) == {
        "a": {"0": 5, "1": 7},
        "b": {"0": 1},
    }


def test_a_partition_that_is_new_is_read_from_its_beginning() -> None:
    new = TopicPartition("a", 1)
    assert unread_spans({"a": {"0": 5}}, {"a": {"0": 9, "1": 4}}, {new: 2})[new] == (2, 4)


def test_offsets_are_written_in_one_order_because_spark_compares_their_text() -> None:
    offsets = {TopicPartition("a", number): number for number in (10, 2, 1)}
    assert list(as_spark(offsets)["a"]) == ["1", "2", "10"]
    assert places_of(as_spark(offsets)) == sorted(offsets, key=lambda place: place.partition)
