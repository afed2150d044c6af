"""Limits on connections are for clients: other brokers come in, if they have a listener of their own."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from semel.broker.connections import Connections
from semel.broker.listeners import Listener
from semel.config import BROKER

CLIENTS, BROKERS = Listener("CLIENTS", "h", 1), Listener("BROKERS", "h", 2)


@pytest.mark.parametrize(
    ("listeners", "comes_by", "comes_in"),
    [
        ([CLIENTS, BROKERS], BROKERS, True),
        ([CLIENTS, BROKERS], CLIENTS, False),
        ([BROKERS], BROKERS, False),  # clients come by it as well
    ],
)
def test_a_broker_that_is_full_lets_other_brokers_in(
    listeners: list[Listener], comes_by: Listener, comes_in: bool
) -> None:
    async def story() -> None:
        broker = SimpleNamespace(
            settings=BROKER.parse({"max.connections": 1}),
            metrics=SimpleNamespace(connections_created=0),
            cluster=SimpleNamespace(door=SimpleNamespace(listener=BROKERS)),
            listening=SimpleNamespace(listeners=listeners),
        )
        connections = Connections(cast(Any, broker))

        def admitted(listener: Listener) -> bool:
            return connections.admit(cast(Any, Coming(listener.name))) is None

        assert admitted(listeners[0])
        assert admitted(comes_by) is comes_in

    asyncio.run(story())


class Coming:
    """A new connection."""

    def __init__(self, listener_name: str) -> None:
        self.peer, self.listener_name = ("10.0.0.1", 1), listener_name
        self.transport = SimpleNamespace(get_extra_info=lambda _: None)
