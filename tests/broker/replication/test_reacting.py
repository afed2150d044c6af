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
