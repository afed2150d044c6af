"""Work for other brokers: what waits goes together, and a failure stops nothing."""

from __future__ import annotations

import asyncio

import pytest

from semel.broker.replication.peer_queues import PeerQueues
from semel.errors import Disconnected, ErrorCode


class Brokers:
    """Notes what is sent, and answers when it is told to."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, list[str]]] = []
        self.failed: list[tuple[int, list[str]]] = []
        self.errors: list[Exception] = []
        self.may_answer = asyncio.Event()
        self.queues = PeerQueues[str](asyncio.ensure_future, self._send, self._failed)

    async def _send(self, broker: int, items: list[str]) -> None:
        self.sent.append((broker, items))
        await self.may_answer.wait()
        if self.errors:
            raise self.errors.pop()

    def _failed(self, broker: int, items: list[str], error: Exception) -> None:
        self.failed.append((broker, items))


async def rest() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_what_comes_while_a_piece_is_on_its_way_goes_together_and_other_brokers_do_not_wait() -> None:
    async def story() -> None:
        brokers = Brokers()
        brokers.queues.add(1, "a")
        await rest()
        for item in "bcd":
            brokers.queues.add(1, item)
        brokers.queues.add(2, "x")
        await rest()
        assert brokers.sent == [(1, ["a"]), (2, ["x"])]
        brokers.may_answer.set()
        await rest()
        assert brokers.sent[2:] == [(1, ["b", "c", "d"])] and brokers.failed == []

    asyncio.run(story())


@pytest.mark.parametrize("error", [Disconnected(ErrorCode.NETWORK_EXCEPTION, "gone"), ValueError("no such code")])
def test_a_piece_that_fails_is_handed_back_and_the_next_one_goes(error: Exception) -> None:
    async def story() -> None:
        brokers = Brokers()
        brokers.errors.append(error)
        brokers.may_answer.set()
        brokers.queues.add(1, "a")
        await rest()
        assert brokers.failed == [(1, ["a"])]
        brokers.queues.add(1, "b")
        await rest()
        assert brokers.sent == [(1, ["a"]), (1, ["b"])] and brokers.failed == [(1, ["a"])]

    asyncio.run(story())
