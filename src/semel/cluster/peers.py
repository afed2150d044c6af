"""Requests of this broker to the other brokers of its cluster.

Guarantees: one connection for each broker and lane, opened when it is needed; after a failure it is opened anew with
the next request. A broker whose port refuses connections is told apart from one that does not answer: only the first is
surely gone (rule E6). One that does not let us in, by our certificate or password, is not asked on and on: the log says
why, and it is tried again after a pause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, Protocol

from semel.errors import AuthenticationFailed, Disconnected, ErrorCode, KafkaError, TlsFailed
from semel.net.connection import Connection
from semel.wire import Malformed
from semel.wire.apis import APIS
from semel.wire.frames import parse_response, request_frame

logger = logging.getLogger(__name__)

#: How the client ids of brokers begin.
PEER_CLIENT_ID = "semel-broker-"
#: A machine that is not heard of for so long is out of reach: its connections are given up, and opened anew as soon as
#: it can be reached. Each try is short, because the system repeats what gets no answer in ever longer pauses.
SILENT_FOR_S, CONNECT_WITHIN_S = 4, 1.5
#: How long a broker that did not let us in is left alone, at first and at most, and how often the log says so.
REFUSED_PAUSE_S, REFUSED_PAUSE_MAX_S, TOLD_EVERY_S = 0.5, 10.0, 60.0


class LoggedIn(Protocol):
    """Opens connections on which we have shown who we are."""

    async def open(self, host: str, port: int) -> tuple[Connection, float | None]:
        """A connection, and after how many seconds we have to log in again; None: never."""

    async def renew(self, connection: Connection) -> float | None:
        """Log in again. Nothing else may be sent on the connection meanwhile."""


class _Refusal(NamedTuple):
    """A broker did not let us in."""

    until_s: float
    pause_s: float
    told_s: float
    why: str


def refused_connection(error: BaseException) -> bool:
    """Whether nobody listens there: the process is gone."""
    return isinstance(error.__cause__, ConnectionRefusedError)


class Peers:
    """`address_of` gives the address of a broker, or None if it is not known."""

    def __init__(
        self,
        client_id: str,
        address_of: Callable[[int], tuple[str, int] | None],
        connect: Callable[[str, int], Awaitable[Connection]] = Connection.open,
        logged_in: LoggedIn | None = None,
    ) -> None:
        """`connect` is enough to see whether anybody listens; `logged_in`, if given, is for requests."""
        self._client_id = client_id
        self._address_of = address_of
        self._connect = connect
        self._logged_in = logged_in
        self._one_at_a_time: dict[tuple[int, str], asyncio.Lock] = {}
        #: When to log in again.
        self._ends_s: dict[tuple[int, str], float] = {}
        self._refused: dict[int, _Refusal] = {}
        self._open: dict[tuple[int, str], Connection] = {}
        self._addresses: dict[tuple[int, str], tuple[str, int]] = {}

    async def ask(self, broker: int, lane: str, message: Any, version: int, timeout_s: float) -> Any:
        """The answer; `Disconnected` if there is none."""
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connection(broker, lane)
                api = APIS[type(message).__about__.key]
                correlation_id = connection.next_correlation_id()
                parts = request_frame(api.key, version, correlation_id, self._client_id, message)
                frame = await connection.send(parts, correlation_id)
        except TimeoutError:
            self.forget(broker)
            why = f"broker {broker} did not answer within {timeout_s} s"
            raise Disconnected(ErrorCode.NETWORK_EXCEPTION, why) from None
        try:
            return parse_response(api.key, version, frame)[1]
        except Malformed as malformed:
            connection.close("closed: it sent something that is not a response")
            raise Disconnected(ErrorCode.NETWORK_EXCEPTION, malformed.why) from malformed

    async def connected(self, broker: int, lane: str, timeout_s: float) -> Connection:
        """The open connection; `Disconnected` if there can be none."""
        key = (broker, lane)
        connection = self._open.get(key)
        if (
            connection is not None
            and not connection.closed
            and not self._must_renew(key)
            and self._addresses[key] == self._address_of(broker)
        ):
            return connection
        try:
            async with asyncio.timeout(timeout_s):
                return await self._connection(broker, lane)
        except TimeoutError:
            self.forget(broker)
            why = f"broker {broker} cannot be reached within {timeout_s} s"
            raise Disconnected(ErrorCode.NETWORK_EXCEPTION, why) from None

    def send(
        self, connection: Connection, message: Any, version: int, answer: asyncio.Future[memoryview] | None = None
    ) -> asyncio.Future[memoryview]:
        """Send a request on a connection. The future gets the frame of the answer (`parse`)."""
        correlation_id = connection.next_correlation_id()
        key = type(message).__about__.key
        parts = request_frame(key, version, correlation_id, self._client_id, message)
        return connection.send(parts, correlation_id, answer)

    @staticmethod
    def parse(response: Any, version: int, frame: memoryview) -> Any:
        """The answer in a frame; `Disconnected` if it is none."""
        try:
            return parse_response(response.__about__.key, version, frame)[1]
        except Malformed as malformed:
            raise Disconnected(ErrorCode.NETWORK_EXCEPTION, malformed.why) from malformed

    def lost(self) -> set[int]:
        """The brokers that have ended an open connection to them, also if nobody was told yet."""
        return {key[0] for key, connection in self._open.items() if not connection.closed and connection.has_ended}

    async def probe(self, broker: int, timeout_s: float) -> bool:
        """Whether the broker's port refuses a connection now."""
        address = self._address_of(broker)
        if address is None:
            return False
        try:
            async with asyncio.timeout(timeout_s):
                (await self._connect(*address)).close()
        except TimeoutError:
            return False
        except Disconnected as error:
            return refused_connection(error)
        return False

    async def _connection(self, broker: int, lane: str) -> Connection:
        address = self._address_of(broker)
        if address is None:
            raise Disconnected(ErrorCode.NETWORK_EXCEPTION, f"broker {broker} is not in the cluster")
        key = (broker, lane)
        found = self._usable(key, address)
        if found is not None and not self._must_renew(key):
            return found
        if self._logged_in is None:
            try:
                async with asyncio.timeout(CONNECT_WITHIN_S):
                    connection = await self._connect(*address)
            except TimeoutError:
                why = f"cannot connect to {address[0]}:{address[1]} within {CONNECT_WITHIN_S} s"
                raise Disconnected(ErrorCode.NETWORK_EXCEPTION, why) from None
            connection.notice_cuts(SILENT_FOR_S)
            self._open[key] = connection
            self._addresses[key] = address
            return connection
        # Others who ask on this lane wait: while we log in, nothing else may be sent.
        async with self._one_at_a_time.setdefault(key, asyncio.Lock()):
            found = self._usable(key, address)
            if found is None or self._must_renew(key):
                found = await self._log_in(self._logged_in, key, address, found)
            return found

    def _usable(self, key: tuple[int, str], address: tuple[str, int]) -> Connection | None:
        connection = self._open.get(key)
        if connection is None or connection.closed:
            return None
        if self._addresses[key] != address:
            connection.close("closed: the broker has moved")
            return None
        return connection

    def _must_renew(self, key: tuple[int, str]) -> bool:
        ends_s = self._ends_s.get(key)
        return ends_s is not None and asyncio.get_running_loop().time() >= ends_s

    async def _log_in(
        self, door: LoggedIn, key: tuple[int, str], address: tuple[str, int], open_one: Connection | None
    ) -> Connection:
        broker, now_s = key[0], asyncio.get_running_loop().time
        before = self._refused.get(broker)
        if before is not None and now_s() < before.until_s:
            raise Disconnected(ErrorCode.NETWORK_EXCEPTION, before.why)
        try:
            if open_one is None:
                connection, lifetime_s = await door.open(*address)
                connection.notice_cuts(SILENT_FOR_S)
            else:
                connection, lifetime_s = open_one, await door.renew(open_one)
        except (AuthenticationFailed, TlsFailed) as error:
            raise self._refused_by(broker, error, now_s()) from None
        if self._refused.pop(broker, None) is not None:
            logger.info("broker %d lets us in again", broker)
        self._open[key], self._addresses[key] = connection, address
        self._ends_s.pop(key, None)
        if lifetime_s is not None:
            self._ends_s[key] = now_s() + lifetime_s
        return connection

    def _refused_by(self, broker: int, error: KafkaError, now_s: float) -> Disconnected:
        before = self._refused.get(broker)
        pause_s = REFUSED_PAUSE_S if before is None else min(2 * before.pause_s, REFUSED_PAUSE_MAX_S)
        told_s = now_s if before is None or now_s - before.told_s >= TOLD_EVERY_S else before.told_s
        if told_s == now_s:
            logger.error(
                "broker %d does not let us in, so nothing is replicated between us: %s; check the certificates and the "
                "login of the listener between brokers, on both sides", broker, error.why,
            )
        self._refused[broker] = _Refusal(now_s + pause_s, pause_s, told_s, error.why)
        return Disconnected(ErrorCode.NETWORK_EXCEPTION, error.why)

    def forget(self, broker: int) -> None:
        """Close the connections to a broker."""
        for key, connection in list(self._open.items()):
            if key[0] == broker:
                connection.close()
                del self._open[key]

    def close(self) -> None:
        for connection in self._open.values():
            connection.close()
        self._open.clear()
