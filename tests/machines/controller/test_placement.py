"""Where replicas go. The first two tables are those of Apache Kafka's own tests of its algorithm."""

from __future__ import annotations

from collections import Counter

import pytest

from semel.errors import ErrorCode, Refused
from semel.machines.controller.placement import place, rack_alternated

RACKS = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}


def test_without_racks_it_is_kafkas_table() -> None:
    assert list(place(dict.fromkeys(range(5)), 10, 3, start=0, shift=0).values()) == [
        (0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 0), (4, 0, 1),
        (0, 2, 3), (1, 3, 4), (2, 4, 0), (3, 0, 1), (4, 1, 2),
    ]  # fmt: skip


def test_with_racks_it_is_kafkas_table() -> None:
    assert rack_alternated(RACKS) == [0, 3, 1, 5, 4, 2]
    assert list(place(RACKS, 7, 3, start=0, shift=0).values()) == [
        (0, 3, 1), (3, 1, 5), (1, 5, 4), (5, 4, 2), (4, 2, 0), (2, 0, 3), (0, 4, 2),
    ]  # fmt: skip


@pytest.mark.parametrize("start", range(6))
@pytest.mark.parametrize("shift", range(6))
def test_every_rack_has_a_replica_and_every_broker_as_many_as_the_others(start: int, shift: int) -> None:
    placed = place(RACKS, 12, 3, start=start, shift=shift)
    assert all({RACKS[broker] for broker in replicas} == set(RACKS.values()) for replicas in placed.values())
    assert set(Counter(replicas[0] for replicas in placed.values()).values()) == {2}
    assert all(len(set(replicas)) == 3 for replicas in placed.values())


def test_more_replicas_than_racks_use_a_rack_twice_and_a_broker_once() -> None:
    for replicas in place({1: "a", 2: "a", 3: "b"}, 6, 3, start=1, shift=2).values():
        assert sorted(replicas) == [1, 2, 3]


def test_racks_count_only_if_every_broker_has_one() -> None:
    some = {**RACKS, 6: None}
    assert place(some, 7, 2, start=0, shift=0) == place(dict.fromkeys(range(7)), 7, 2, start=0, shift=0)


def test_new_partitions_go_on_where_the_old_ones_ended() -> None:
    whole = place(dict.fromkeys(range(3)), 4, 2, start=1, shift=1)
    assert place(dict.fromkeys(range(3)), 2, 2, start=1, shift=1, first_partition=1) == {
        number: whole[number] for number in (1, 2)
    }


def test_one_broker_holds_everything() -> None:
    assert place({4: None}, 2, 1, start=0, shift=0) == {0: (4,), 1: (4,)}


@pytest.mark.parametrize(
    ("partitions", "factor", "code"),
    [
        (0, 1, ErrorCode.INVALID_PARTITIONS),
        (1, 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        (1, 3, ErrorCode.INVALID_REPLICATION_FACTOR),
    ],
)
def test_what_cannot_be_is_refused(partitions: int, factor: int, code: ErrorCode) -> None:
    with pytest.raises(Refused) as refused:
        place({1: None, 2: None}, partitions, factor, start=0, shift=0)
    assert refused.value.code is code
