"""Requests to other brokers: what happens where the other broker does not let us in."""

from __future__ import annotations

import asyncio
import logging
import select
import socket
from typing import Any, cast

import pytest

from semel.cluster import peers as module
from semel.cluster.peers import Peers
from semel.errors import AuthenticationFailed, Disconnected, ErrorCode
from semel.net.connection import Connection
from semel.wire.messages.metadata import MetadataRequest
from tests.support.waiting import until


class Door:
    """Lets us in, or not."""

    def __init__(self) -> None:
        self.is_open = False
        self.lifetime_s: float | None = None
        self.tries = self.renewals = 0

    async def open(self, host: str, port: int) -> tuple[Connection, float | None]:
        self.tries += 1
        if not self.is_open:
            raise AuthenticationFailed(ErrorCode.SASL_AUTHENTICATION_FAILED, f"{host}:{port}: wrong user or password")
        return cast(Connection, Pipe()), self.lifetime_s

    async def renew(self, connection: Connection) -> float | None:
        self.renewals += 1
        return self.lifetime_s


class Pipe:
    """A connection that answers nothing."""

    def __init__(self) -> None:
        self.closed, self.in_flight, self.sent = False, 0, 0

    def next_correlation_id(self) -> int:
        return 1

    def send(self, parts: Any, correlation_id: int) -> asyncio.Future[memoryview]:
        self.sent += 1
        answer: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        answer.set_exception(Disconnected(ErrorCode.NETWORK_EXCEPTION, "sent"))
        return answer

    def close(self, why: str = "") -> None:
        self.closed = True

    def notice_cuts(self, within_s: int) -> None:
        pass


def asked(peers: Peers) -> Any:
    return peers.ask(2, "fetch", MetadataRequest(topics=[]), 9, 5)


def test_a_broker_that_refuses_us_is_told_in_words_once_and_not_asked_on_and_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def story() -> None:
        door = Door()
        peers = Peers("semel-broker-1", lambda broker: ("b2", 9092), logged_in=door)
        for _ in range(50):
            with pytest.raises(Disconnected, match="wrong user or password"):
                await asked(peers)
        assert door.tries == 1

    caplog.set_level(logging.ERROR, logger=module.logger.name)
    asyncio.run(story())
    (line,) = caplog.messages
    assert "broker 2 does not let us in" in line and "wrong user or password" in line


def test_once_it_lets_us_in_requests_go_there_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr(module, "REFUSED_PAUSE_S", 0.0)
        door = Door()
        peers = Peers("semel-broker-1", lambda broker: ("b2", 9092), logged_in=door)
        with pytest.raises(Disconnected, match="wrong user or password"):
            await asked(peers)
        door.is_open = True
        with pytest.raises(Disconnected, match="sent"):
            await asked(peers)

    asyncio.run(story())


def test_a_login_is_renewed_on_its_connection_before_it_ends() -> None:
    async def story() -> None:
        door = Door()
        door.is_open, door.lifetime_s = True, 0.0
        peers = Peers("semel-broker-1", lambda broker: ("b2", 9092), logged_in=door)
        first = await peers.connected(2, "fetch", 5)
        for number in range(3):
            assert await peers.connected(2, "fetch", 5) is first
            assert (door.tries, door.renewals) == (1, number + 1)
        door.lifetime_s = None
        for _ in range(3):
            with pytest.raises(Disconnected, match="sent"):
                await asked(peers)
        assert (door.tries, door.renewals) == (1, 4)

    asyncio.run(story())


def test_a_broker_that_cannot_be_reached_any_more_is_noticed_soon() -> None:
    """After a cut TCP repeats in ever longer pauses, and who waits for an answer would notice nothing at all."""

    async def story() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        peers = Peers("broker", lambda _: server.sockets[0].getsockname()[:2])
        connection = await peers.connected(2, "fetch", 5)
        assert connection._transport is not None
        raw = connection._transport.get_extra_info("socket")
        assert raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == module.SILENT_FOR_S * 1000
        assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        idle_s = raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        rest_s = raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL) * 3
        assert idle_s + rest_s <= module.SILENT_FOR_S
        peers.close()
        server.close()

    asyncio.run(story())


def test_a_try_to_connect_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(host: str, port: int) -> Connection:
        await asyncio.sleep(3600)
        raise AssertionError

    async def story() -> None:
        peers = Peers("broker", lambda _: ("127.0.0.1", 1), never)
        with pytest.raises(Disconnected, match=r"cannot connect to 127\.0\.0\.1:1 within 0\.05 s"):
            await asked(peers)

    monkeypatch.setattr(module, "CONNECT_WITHIN_S", 0.05)
    asyncio.run(story())


@pytest.mark.skipif(not hasattr(select, "POLLRDHUP"), reason="only Linux tells")
def test_a_connection_that_the_other_has_ended_is_known_before_the_loop_tells() -> None:
    """A client of a broker that died asks another one in the same millisecond who leads now."""

    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            peers = Peers("semel-broker-1", lambda broker: listener.getsockname())
            await peers.connected(2, "fetch", 30)
            accepted, _ = listener.accept()
            assert peers.lost() == set()
            accepted.close()
            # Without a turn of the loop: nobody was told.
            until(lambda: peers.lost() == {2}, within_s=30, every_s=0, what="the end to be seen")
            peers.close()
            assert peers.lost() == set()

    asyncio.run(story())
