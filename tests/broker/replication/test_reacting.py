"""What a broker does when it cannot follow what the cluster has decided."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from semel.broker.replication.membership import Membership
from semel.cluster.session import SessionState


def test_a_broker_that_cannot_follow_what_is_decided_stops() -> None:
    """It would keep its session with ZooKeeper, and its place, and do nothing any more."""

    async def story() -> list[object]:
        told: list[object] = []
        event = asyncio.Event()
        event.set()
        failure = OSError(5, "input/output error")

        async def react() -> None:
            raise failure

        membership = SimpleNamespace(
            _event=event,
            session=SimpleNamespace(state=SessionState.CONNECTED),
            _react=react,
            _broker=SimpleNamespace(handle_failure=told.append, spawn_stop=lambda: told.append("stops")),
        )
        async with asyncio.timeout(10):
            await Membership._run(cast(Any, membership))
        assert told == [failure, "stops"]
        return told

    assert asyncio.run(story())


def test_a_broker_that_stops_takes_no_role_any_more() -> None:
    """It would follow, and cut, a log that is closed next."""

    async def story() -> list[object]:
        told: list[object] = []

        async def write_down() -> None:
            # Meanwhile it hears who leads now.
            Membership._take_roles(cast(Any, membership))

        async def close_session() -> None:
            told.append("session closed")

        def partitions() -> list[object]:
            told.append("looked for partitions")
            return []

        membership = SimpleNamespace(
            broker_epoch=3,
            last_life=SimpleNamespace(write_down=write_down),
            feeds=SimpleNamespace(close=lambda: None),
            peers=SimpleNamespace(close=lambda: None),
            session=SimpleNamespace(close=close_session),
            image=SimpleNamespace(states={}, topics={}),
            _fetchers={},
            _follow=lambda following: told.append("follows"),
            _has_left=False,
            _partitions=partitions,
            _replicas=list,
        )
        await Membership.leave(cast(Any, membership))
        return told

    assert asyncio.run(story()) == ["session closed"]
