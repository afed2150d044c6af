"""What `semel cluster status` advises when partitions have no leader: whom to start, without a loss if that can be."""

from __future__ import annotations

from typing import Any

import pytest

from semel.cli.cluster_health import Health, advice

HERE, AWAY = [1, 4], [2, 3]


def offline(partition: int, in_sync: list[int], eligible: list[int]) -> dict[str, Any]:
    return {"topic": "t", "partition": partition, "in_sync": in_sync, "eligible": eligible}


def said(*rows: dict[str, Any]) -> list[str]:
    brokers = [{"broker": number, "address": "h:1" if number in HERE else None} for number in (*HERE, *AWAY)]
    health = Health("c", controller=1, offline=list(rows), brokers=brokers)
    return [line for line in advice(health, AWAY, misplaced=0) if "no leader" in line]


@pytest.mark.parametrize(
    ("in_sync", "eligible", "words"),
    [
        ([2], [], "it has all its records on broker 2, so start that. Only if it is lost for good"),
        ([2], [3], "it has all its records on each of brokers 2, 3, so start one of them. Only if they are lost"),
        ([], [3], "it has all its records on broker 3, so start that."),
        ([], [], "no broker is known to have all records"),
        ([1], [], "it has all its records on broker 1. Look at the log there, why it does not lead."),
        ([1], [3], "on each of brokers 1, 3, so start one of them"),
    ],
)
def test_everybody_who_may_lead_without_a_loss_is_named(in_sync: list[int], eligible: list[int], words: str) -> None:
    (line,) = said(offline(0, in_sync, eligible))
    assert line.startswith("1 partition has no leader") and words in line


def test_partitions_that_need_different_brokers_are_told_apart() -> None:
    """Starting a broker that only some of them need would leave the others without a leader."""
    lines = said(offline(0, [2], []), offline(1, [2], []), offline(2, [3], []))
    assert [line.partition(",")[0] for line in lines] == [
        "2 partitions have no leader: they have all their records on broker 2",
        "1 partition has no leader: it has all its records on broker 3",
    ]
