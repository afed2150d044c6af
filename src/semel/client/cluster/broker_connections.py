"""Connections to brokers: opened when needed, and opened again after a failure.

Guarantees: the first request on a connection is ApiVersions, so that every request after it goes out in a version that
the broker serves; then the client authenticates, if it has credentials, and again before its session ends; for each
broker and lane one connection is opened at a time; after a failure the next attempt waits, longer each time; throttle
times that a broker asks for are kept.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from math import inf
from typing import Any

from semel.client.cluster.response_errors import check
from semel.client.cluster.throttling import Throttles
from semel.client.cluster.wait_warnings import WaitWarnings
from semel.config import ConfigError, Values
from semel.errors import Disconnected, ErrorCode, UnsupportedVersion
from semel.net.authentication import Authentication, check_sasl_is_not_asked_for
from semel.net.connection import Connection
from semel.wire import Malformed
from semel.wire.apis import APIS, ApiKey
from semel.wire.frames import parse_response, request_frame
from semel.wire.messages.features import ApiVersionsRequest
from semel.wire.messages.security import SaslHandshakeRequest

#: Responses to ApiVersions that were read before, by version and bytes, and how many are kept.
_VERSIONS: dict[tuple[int, bytes], Any] = {}
_MOST_VERSIONS = 16
_PORT = re.compile(r"[0-9]{1,5}")
#: The last versions that name topics. Later ones use topic ids, which callers do not fill in.
LAST_VERSION_BY_NAME = {
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 12,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
}


@dataclass(slots=True)
class _ConnectionSlot:
    """For one broker and lane: the connection, and how often opening it failed."""

    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    connection: Connection | None = None
    failures: int = 0
    not_before: float = 0.0
    #: On the loop's clock: when to authenticate again.
    renew_at: float = inf


class BrokerConnections:
    """The connections of one client. `address_of` returns the address of a node."""

    def __init__(
        self,
        config: Values,
        connect: Callable[[str, int], Awaitable[Connection]],
        address_of: Callable[[int], tuple[str, int]],
        authentication: Authentication | None = None,
    ) -> None:
        self.config = config
        #: Features the whole cluster agreed on; known after the first connection.
        self.finalized_features: dict[str, int] = {}
        #: Why the last connection could not be opened; None once one could.
        self.failure: Disconnected | None = None
        self.closed = False
        self.throttles = Throttles()
        self.wait_warnings = WaitWarnings(f"{config.table.noun} '{config['client.id']}'")
        self._client_id: str = config["client.id"]
        self._max_idle_s: float = config["connections.max.idle.ms"] / 1000
        self._connect = connect
        self._address_of = address_of
        self._authentication = authentication
        self._slots: dict[tuple[int, str], _ConnectionSlot] = {}
        self._versions: dict[int, dict[int, tuple[int, int]]] = {}
        #: Addresses of brokers that were asked, and want no SASL.
        self._without_sasl: set[tuple[str, int]] = set()

    def least_busy(self, lane: str) -> int | None:
        """The node whose open connection has the fewest waiting requests; None if no connection is open.

        A broker that throttles this client comes after all that do not.
        """
        ready = [
            (self.throttles.left_s(node_id, lane), slot.connection.in_flight, node_id)
            for (node_id, slot_lane), slot in self._slots.items()
            if slot_lane == lane and slot.connection is not None and not slot.connection.closed
        ]
        return min(ready)[2] if ready else None

    def close(self) -> None:
        """Close every connection; requests that wait fail with `Disconnected`."""
        self.closed = True
        self.throttles.close()
        self.wait_warnings.forget()
        for slot in self._slots.values():
            if slot.connection is not None:
                slot.connection.close()

    def serves(self, node_id: int, api: ApiKey) -> bool:
        return api in self._versions[node_id]

    async def exchange(
        self, connection: Connection, node_id: int, lane: str, message: Any, version: int | None, newest: int | None
    ) -> Any:
        """Send one request and wait for its response. Returns None for a produce with acks=0."""
        api = APIS[type(message).__about__.key]
        version = self.pick_version(node_id, api.key, version, newest)
        correlation_id = connection.next_correlation_id()
        parts = request_frame(api.key, version, correlation_id, self._client_id, message)
        unanswered = api.key == ApiKey.PRODUCE and message.acks == 0
        try:
            frame = await connection.send(parts, None if unanswered else correlation_id)
        except Disconnected:
            if self._authentication is None and not connection.has_served:
                await self._check_no_sasl(node_id, lane)
            raise
        if unanswered:
            return None
        connection.has_served = True
        response = _parse_response(connection, api.key, version, frame)
        self.throttles.note(node_id, lane, api.key, version, response)
        return response

    def pick_version(self, node_id: int, api: ApiKey, wanted: int | None, newest: int | None) -> int:
        """The version to use with a node: exactly `wanted`, or the highest one up to `newest`."""
        served = self._versions[node_id].get(api)
        ours = APIS[api]
        if served is None:
            raise UnsupportedVersion(ErrorCode.UNSUPPORTED_VERSION, f"the broker does not serve {ours.name}")
        if wanted is None:
            newest = LAST_VERSION_BY_NAME.get(api, ours.max_version) if newest is None else newest
            wanted = min(served[1], newest)
        if not max(served[0], ours.min_version) <= wanted <= served[1]:
            raise UnsupportedVersion(
                ErrorCode.UNSUPPORTED_VERSION,
                f"{ours.name} version {wanted} is needed, the broker serves {served[0]} to {served[1]}",
            )
        return wanted

    def ready(self, node_id: int, lane: str) -> Connection | None:
        """The connection to a node, if it can be used without any wait."""
        slot = self._slots.get((node_id, lane))
        connection = None if slot is None else slot.connection
        if connection is None or connection.closed or self.throttles.has_any(node_id, lane):
            return None
        assert slot is not None
        if connection.idle_s >= self._max_idle_s or (slot.renew_at != inf and connection.now_s() >= slot.renew_at):
            return None
        return connection

    async def open(self, node_id: int, lane: str) -> Connection:
        """An open connection to a node, which is not throttled now. Raises `Disconnected` with the reason."""
        while True:
            connection = await self._connect_slot(node_id, lane)
            await self.throttles.passed(node_id, lane)
            slot = self._slots[node_id, lane]
            # While waiting it may have been lost, or somebody may have begun to authenticate on it again.
            if not connection.closed and asyncio.get_running_loop().time() < slot.renew_at:
                return connection

    async def _connect_slot(self, node_id: int, lane: str) -> Connection:
        slot = self._slots.get((node_id, lane))
        if slot is None:
            slot = self._slots[node_id, lane] = _ConnectionSlot()
        loop = asyncio.get_running_loop()
        if slot.connection is not None and not slot.connection.closed:
            if slot.connection.idle_s >= self._max_idle_s:
                # The broker closes idle connections too, and a request should not be the one to notice.
                slot.connection.close("closed: it was idle")
            elif loop.time() < slot.renew_at:
                return slot.connection
        async with slot.opening:
            if slot.connection is not None and not slot.connection.closed:
                if loop.time() >= slot.renew_at:
                    await self._renew(slot, node_id, lane)
                return slot.connection
            self._check_open()
            await asyncio.sleep(max(0.0, slot.not_before - loop.time()))
            try:
                slot.connection = await self._connect_and_authenticate(slot, node_id, lane)
                self._check_open(slot.connection)
            except Disconnected as failure:
                self._note_failure(node_id, failure)
                self.failure = failure
                slot.failures += 1
                base, most = self.config["reconnect.backoff.ms"], self.config["reconnect.backoff.max.ms"]
                slot.not_before = loop.time() + min(most, base * 2 ** min(slot.failures - 1, 20)) / 1000
                raise
            slot.failures = 0
            self.failure = None
            self.wait_warnings.end(("broker", *self._address_of(node_id)))
            return slot.connection

    def _note_failure(self, node_id: int, failure: Disconnected) -> None:
        if self.closed:
            return
        try:
            host, port = self._address_of(node_id)
        except Disconnected:
            return  # it is not in the cluster any more
        self.wait_warnings.begin(("broker", host, port), f"no connection to the broker at {host}:{port}", failure.why)

    def _check_open(self, connection: Connection | None = None) -> None:
        """After closing nothing is opened, and a connection that was being opened is closed again."""
        if self.closed:
            if connection is not None:
                connection.close()
            raise Disconnected(ErrorCode.NETWORK_EXCEPTION, "the client is closed")

    async def _connect_and_authenticate(self, slot: _ConnectionSlot, node_id: int, lane: str) -> Connection:
        """Connect, ask which versions the broker serves, and authenticate."""
        host, port = self._address_of(node_id)
        setup_ms = self.config["socket.connection.setup.timeout.ms"]
        try:
            async with asyncio.timeout(setup_ms / 1000):
                connection = await self._connect(host, port)
                self._set_buffers(connection)
                try:
                    await self._learn_versions(connection, node_id, lane)
                    await self._authenticate(slot, connection, node_id, lane)
                except BaseException:
                    connection.close("closed: it did not say which versions it serves, or did not let us in")
                    raise
                return connection
        except TimeoutError:
            raise Disconnected(
                ErrorCode.NETWORK_EXCEPTION, f"{host}:{port} did not answer within {setup_ms} ms of connecting"
            ) from None

    async def _authenticate(self, slot: _ConnectionSlot, connection: Connection, node_id: int, lane: str) -> None:
        if self._authentication is None:
            return

        async def exchange(message: Any) -> Any:
            return await self.exchange(connection, node_id, lane, message, None, None)

        renew_in_s = await self._authentication.run(exchange, connection.address)
        # Not before: until the broker has let us in again, the time that is over keeps all other requests back. Kafka
        # answers any request in the midst of an authentication with ILLEGAL_SASL_STATE, and hangs up.
        slot.renew_at = inf if renew_in_s is None else asyncio.get_running_loop().time() + renew_in_s

    async def _check_no_sasl(self, node_id: int, lane: str) -> None:
        """Raise `AuthenticationFailed` if the broker wants SASL. It answers ApiVersions, and hangs up on all else."""
        try:
            address = self._address_of(node_id)
            if address in self._without_sasl:
                return
            connection = await self._connect(*address)
            try:
                await self._learn_versions(connection, node_id, lane)
                # Only to be refused. It is not sent by `exchange`, which would come here again.
                correlation_id = connection.next_correlation_id()
                asked = SaslHandshakeRequest(mechanism="")
                frame = await connection.send(
                    request_frame(ApiKey.SASL_HANDSHAKE, 1, correlation_id, self._client_id, asked), correlation_id
                )
                answer = _parse_response(connection, ApiKey.SASL_HANDSHAKE, 1, frame)
            finally:
                connection.close()
        except Disconnected:
            return  # It is away, or something else is wrong: what the request met is told.
        check_sasl_is_not_asked_for(answer, connection.address, self.config["security.protocol"])
        self._without_sasl.add(address)

    async def _renew(self, slot: _ConnectionSlot, node_id: int, lane: str) -> None:
        """Authenticate again on an open connection. Requests of this lane wait for it; answers still come in order."""
        connection = slot.connection
        assert connection is not None
        try:
            await self._authenticate(slot, connection, node_id, lane)
        except BaseException:
            connection.close("closed: it did not let us in again")
            raise

    def _set_buffers(self, connection: Connection) -> None:
        """Set socket buffer sizes only if they are configured: the system adapts its own sizes to the connection."""
        given = self.config.explicit
        sizes = [
            self.config[name] if name in given and self.config[name] > 0 else None
            for name in ("send.buffer.bytes", "receive.buffer.bytes")
        ]
        connection.set_buffers(*sizes)

    async def _learn_versions(self, connection: Connection, node_id: int, lane: str) -> None:
        ours = APIS[ApiKey.API_VERSIONS]
        hello = ApiVersionsRequest(client_software_name="semel", client_software_version="1.0")
        version = ours.max_version
        while True:
            correlation_id = connection.next_correlation_id()
            frame = await connection.send(
                request_frame(ours.key, version, correlation_id, self._client_id, hello), correlation_id
            )
            # A broker that does not know our version answers in version 0, with error 35 first in the body.
            refused = int.from_bytes(frame[4:6], "big") == ErrorCode.UNSUPPORTED_VERSION
            response = _parse_versions(connection, 0 if refused else version, frame)
            if not refused:
                break
            offered = {row.api_key: row.max_version for row in response.api_keys}
            version = min(offered.get(ours.key, 0), version - 1)
            if version < 0:
                raise UnsupportedVersion(ErrorCode.UNSUPPORTED_VERSION, "the broker refuses every ApiVersions request")
        self.throttles.note(node_id, lane, ours.key, version, response)
        check(response.error_code, f"asking {connection.address} which versions it serves")
        self._versions[node_id] = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
        if response.finalized_features_epoch >= 0:
            self.finalized_features = {row.name: row.max_version_level for row in response.finalized_features}


def _parse_versions(connection: Connection, version: int, frame: memoryview) -> Any:
    """The response to ApiVersions, which nobody may change: a broker says the same on every connection, and to read it
    takes longer than all the rest of opening one."""
    key = version, bytes(frame[4:])  # without the correlation id
    response = _VERSIONS.get(key)
    if response is None:
        response = _parse_response(connection, ApiKey.API_VERSIONS, version, frame)
        if len(_VERSIONS) >= _MOST_VERSIONS:
            _VERSIONS.clear()
        _VERSIONS[key] = response
    return response


def _parse_response(connection: Connection, api_key: int, version: int, frame: memoryview) -> Any:
    """The response in a frame. If it cannot be parsed, the connection is closed."""
    try:
        return parse_response(api_key, version, frame)[1]
    except Malformed as malformed:
        connection.close("closed: it sent something that is not a response")
        why = f"{connection.address} sent something that is not a response: {malformed.why}; is it a Kafka broker?"
        raise Disconnected(ErrorCode.NETWORK_EXCEPTION, why) from malformed


def read_address(text: str) -> tuple[str, int]:
    """Parse host:port. An IPv6 host is written in brackets.

    >>> read_address("broker-1:9092"), read_address("[::1]:9093")
    (('broker-1', 9092), ('::1', 9093))
    """
    if "://" in text:
        raise ConfigError(f"bootstrap.servers: '{text}': name host:port alone, and the protocol in security.protocol")
    host, _, port = text.rpartition(":")
    in_brackets = host.startswith("[") and host.endswith("]")
    name = host[1:-1] if in_brackets else host
    # A port above 65535 would become another one on the way to the system.
    if not name or (":" in name and not in_brackets) or not _PORT.fullmatch(port) or not 0 < int(port) <= 65535:
        raise ConfigError(f"bootstrap.servers: expected host:port (an IPv6 host as [::1]:9092), found '{text}'")
    return name, int(port)
