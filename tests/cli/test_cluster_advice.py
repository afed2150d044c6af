"""What `semel cluster status` advises when partitions have no leader: whom to start, without a loss if that can be."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from semel.cli.cluster_health import Health, _refuses, advice
from tests.support.processes import free_port

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


def test_a_broker_whose_port_refuses_is_not_called_frozen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert not _refuses("127.0.0.1", listening.getsockname()[1])
    assert _refuses("127.0.0.1", free_port())
    gone = Health("c", controller=None, refusing=[2])
    assert not gone.is_well
    nobody, line = advice(gone, [], misplaced=0)
    assert "nobody takes the place of a broker that ends: start it again" in nobody
    assert line.startswith("Broker 2 is registered, and the port refuses connections: the process has ended.")


def test_a_move_to_a_broker_that_is_away_is_told_and_one_that_goes_on_is_no_trouble() -> None:
    brokers = [{"broker": number, "address": "h:1" if number in HERE else None} for number in (*HERE, *AWAY)]
    row = {"topic": "t", "partition": 0, "adding": [4], "removing": [1]}
    health = Health("c", controller=1, brokers=brokers, moving=[row])
    assert health.is_well
    assert any("1 partition is on the way to other brokers" in line for line in advice(health, [], misplaced=0))
    row["adding"] = [3]
    assert not health.is_well
    (line,) = [line for line in advice(health, [], misplaced=0) if "on the way" in line]
    assert "broker 3 is not there" in line and "kafka-reassign-partitions --cancel" in line
