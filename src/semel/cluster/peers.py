"""Requests of this broker to the other brokers of its cluster.

Guarantees: one connection for each broker and lane, opened when it is needed; after a failure it is opened anew with
the next request. A broker whose port refuses connections is told apart from one that does not answer: only the first is
surely gone (rule E6).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from semel.errors import Disconnected, ErrorCode
from semel.net.connection import Connection
from semel.wire import Malformed
from semel.wire.apis import APIS
from semel.wire.frames import parse_response, request_frame


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
    ) -> None:
        self._client_id = client_id
        self._address_of = address_of
        self._connect = connect
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
        connection = self._open.get(key)
        if connection is not None and not connection.closed:
            if self._addresses[key] == address:
                return connection
            connection.close("closed: the broker has moved")
        connection = self._open[key] = await self._connect(*address)
        self._addresses[key] = address
        return connection

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
