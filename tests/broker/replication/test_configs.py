"""A change of settings in a cluster: it is done once it is written."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from semel.broker.replication.configs import alter_topic
from semel.cluster.session import ConnectionLoss, NoNode
from semel.errors import ErrorCode, Refused


class ZooKeeper:
    """Has no settings yet. It may be lost before a change, or right after it."""

    def __init__(self, *, answers_the_change: bool) -> None:
        self.answers_the_change = answers_the_change
        self.changes: list[Any] = []

    async def sync(self, path: str) -> None:
        pass

    async def get(self, path: str) -> tuple[bytes, Any]:
        raise NoNode(path)

    async def multi(self, operations: Any) -> list[Any]:
        if not self.answers_the_change:
            raise ConnectionLoss("lost")
        self.changes.append(operations)
        return []

    async def get_children(self, path: str) -> tuple[list[str], Any]:
        raise ConnectionLoss("lost, after the change was written")


def change(zookeeper: ZooKeeper) -> None:
    async def connected() -> None:
        pass

    cluster: Any = SimpleNamespace(
        session=zookeeper, connected=connected, topic_settings=lambda name: {"retention.ms": "1"}
    )
    asyncio.run(alter_topic(cluster, "t", lambda present: {"retention.ms": "1"}, validate_only=False))


def test_a_change_that_is_written_succeeds_although_nothing_can_be_tidied_up() -> None:
    zookeeper = ZooKeeper(answers_the_change=True)
    change(zookeeper)
    assert len(zookeeper.changes) == 1


def test_a_change_whose_answer_is_lost_is_told_as_a_timeout() -> None:
    with pytest.raises(Refused) as refused:
        change(ZooKeeper(answers_the_change=False))
    assert refused.value.code is ErrorCode.REQUEST_TIMED_OUT
