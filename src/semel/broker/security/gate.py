"""The gate of a connection to a listener with SASL: nothing is served before the client has shown who it is.

Guarantees:

- A request that is not part of the authentication reaches no handler, and its body is not even decoded.
- A connection that is not authenticated holds at most `sasl.server.max.receive.size` bytes, and for at most
  `semel.authentication.timeout.ms`.
- A refusal is answered after `connection.failed.authentication.delay.ms`. Until then the connection holds no memory but
  its answer, and nobody else waits.
- Once a client is authenticated its requests go straight to the dispatcher. Only where its session ends some day, the
  clock is looked at first (KIP-368).
"""

from __future__ import annotations

import logging
from asyncio import TimerHandle
from collections.abc import Coroutine
from types import CoroutineType
from typing import TYPE_CHECKING, Any, cast

from semel.broker.dispatch import Call
from semel.broker.net.connection import Buffers, Served, ServerConnection
from semel.errors import ErrorCode, Refused
from semel.machines.security.authentication import Authentication, Judgement, Reply
from semel.wire import decode
from semel.wire.apis import APIS, ApiKey
from semel.wire.error_codes import has_error_code
from semel.wire.frames import RequestHeader, parse_request, response_frame
from semel.wire.messages.security import SaslAuthenticateResponse, SaslHandshakeRequest, SaslHandshakeResponse

if TYPE_CHECKING:
    from semel.broker.security.doors import Door

logger = logging.getLogger(__name__)


class Gate:
    """One connection's way to the dispatcher."""

    __slots__ = ("_connection", "_deadline", "_door", "_machine")

    def __init__(self, door: Door, machine: Authentication, connection: ServerConnection) -> None:
        self._door = door
        self._machine = machine
        self._connection = connection
        self._deadline: TimerHandle | None = None

    def open(self) -> None:
        """The connection is made: the client has so long."""
        self._connection.serve_by(self.serve, self._door.max_frame_bytes)
        self._start_deadline()

    def _start_deadline(self) -> None:
        self._deadline = self._door.broker.loop.call_later(self._door.timeout_s, self._give_up)

    def close(self) -> None:
        """The connection is gone, or its client is through."""
        if self._machine.is_refused and not self._machine.is_over:
            self._tell_of_failure()  # it was told no, and has gone without the last message
            self._machine.is_refused = False
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._connection.refuse(
            f"not authenticated after {self._door.timeout_s:g} s (semel.authentication.timeout.ms)"
        )

    @property
    def _clock_ms(self) -> int:
        return int(self._door.broker.loop.time() * 1000)

    # Requests before the client is authenticated

    def serve(self, connection: ServerConnection, frame: memoryview) -> Served:
        """Take one request of a client that is not authenticated, or that authenticates again."""
        if self._machine.is_raw:
            return self._message(None, bytes(frame))
        try:
            header, body_offset = parse_request(frame)
            key = header.api_key
            if key == ApiKey.API_VERSIONS:
                return self._versions(header, frame, body_offset)
            if key == ApiKey.SASL_HANDSHAKE:
                return self._handshake(header, _decoded(header, frame, body_offset))
            if key == ApiKey.SASL_AUTHENTICATE:
                return self._message(header, bytes(_decoded(header, frame, body_offset).auth_bytes))
        except Refused as error:
            connection.refuse(f"before authentication a request that cannot be decoded: {error}")
            return None
        code = self._machine.other_request(APIS[key].name)
        return self._end(None if code is None else _refusal(header, code))

    def _versions(self, header: RequestHeader, frame: memoryview, body_offset: int) -> Served:
        from semel.broker.handlers.versions import api_versions

        broker, api = self._door.broker, APIS[header.api_key]
        reply = None
        if api.min_version <= header.api_version <= api.max_version:
            request = _decoded(header, frame, body_offset)
            call = Call(*header[:3], header.client_id, self._connection)
            reply = api_versions(broker, request, call)
        code = self._machine.versions(can_be_answered=reply is not None and not reply.error_code)
        if code is not ErrorCode.NONE:
            return self._end(None if code is None else _refusal(header, code))
        if reply is None:
            return broker.dispatcher.versions_served(header.correlation_id)
        return response_frame(*header[:3], reply)

    def _handshake(self, header: RequestHeader, request: SaslHandshakeRequest) -> Served:
        code = self._machine.handshake(request.mechanism, header.api_version, self._clock_ms)
        if code is None:
            return self._end(None)
        answer = response_frame(*header[:3], self._handshake_reply(code))
        return self._end(answer) if self._machine.is_over else answer

    def _handshake_reply(self, code: ErrorCode) -> SaslHandshakeResponse:
        known = [] if code is ErrorCode.ILLEGAL_SASL_STATE else list(self._door.mechanisms)
        return SaslHandshakeResponse(error_code=code, mechanisms=known)

    def _message(self, header: RequestHeader | None, data: bytes) -> Served:
        judged = self._machine.message(data)
        if type(judged) is CoroutineType:
            return self._judge_later(header, judged)
        if judged is None or isinstance(judged, ErrorCode):
            return self._end(None if judged is None or header is None else _refusal(header, judged))
        return self._judged(header, cast(Judgement, judged))

    async def _judge_later(
        self, header: RequestHeader | None, judging: Coroutine[Any, Any, Judgement]
    ) -> Buffers | None:
        return self._judged(header, await judging)

    def _judged(self, header: RequestHeader | None, judgement: Judgement) -> Buffers | None:
        machine, broker = self._machine, self._door.broker
        reply = machine.judged(judgement, broker.now_ms(), self._clock_ms)
        answer = None
        if header is not None:
            answer = response_frame(*header[:3], _authenticate_reply(reply))
        elif reply.code is ErrorCode.NONE:
            answer = [len(reply.data).to_bytes(4, "big") + reply.data]
        if machine.is_over:
            return self._end(answer)
        if machine.is_authenticated:
            self._let_in()
        return answer

    def _let_in(self) -> None:
        machine, connection, broker = self._machine, self._connection, self._door.broker
        assert machine.principal is not None
        self.close()
        serve = broker.dispatcher.serve if machine.ends_ms is None else self._serve_for_a_while
        connection.serve_by(serve, broker.settings["socket.request.max.bytes"])
        connection.authenticated(machine.principal)
        connection.by_token = machine.by_token
        broker.metrics.authentications[self._door.listener.name] += 1
        logger.debug("%s:%d is %s, by %s", *connection.peer, connection.who, machine.mechanism)

    def _end(self, answer: Buffers | None) -> Buffers | None:
        """The client is refused: it gets its answer, if there is one, and then the end of the connection.

        There is nothing to write now, which is what this returns.
        """
        machine, connection, door = self._machine, self._connection, self._door
        if answer is None and not machine.mechanism:
            connection.refuse(machine.why)
            return None
        self._tell_of_failure()
        connection.end_with(answer, door.delay_s)
        return None

    def _tell_of_failure(self) -> None:
        machine, door = self._machine, self._door
        door.broker.audit.authentication_failed(
            host=self._connection.peer[0],
            listener=door.listener.name,
            # The name of a mechanism that is not enabled is whatever the client made up.
            mechanism=machine.mechanism if machine.mechanism in door.mechanisms else "",
            principal=machine.claimed,
            why=machine.why,
        )

    # Requests of a client that is authenticated

    def _serve_for_a_while(self, connection: ServerConnection, frame: memoryview) -> Served:
        broker = self._door.broker
        if self._machine.has_expired(self._clock_ms) and frame[:2] != _HANDSHAKE_KEY:
            broker.metrics.sessions_expired += 1
            connection.refuse("its session has ended, and it did not authenticate again (connections.max.reauth.ms)")
            return None
        return broker.dispatcher.serve(connection, frame)

    def authenticate_again(self, request: SaslHandshakeRequest, call: Call) -> SaslHandshakeResponse | None:
        """A client that is authenticated begins anew. Until it is through, nothing else of it is served."""
        code = self._machine.handshake(request.mechanism, call.version, self._clock_ms)
        if code is None:
            self._end(None)
            return None
        if not self._machine.is_authenticated:
            self._connection.serve_by(self.serve, self._door.max_frame_bytes)
            self._start_deadline()
        return self._handshake_reply(code)


_HANDSHAKE_KEY = int(ApiKey.SASL_HANDSHAKE).to_bytes(2, "big")


def _decoded(header: RequestHeader, frame: memoryview, body_offset: int) -> Any:
    """The request, if its version is served."""
    api = APIS[header.api_key]
    if not api.min_version <= header.api_version <= api.max_version:
        raise Refused(ErrorCode.UNSUPPORTED_VERSION, f"{api.name} version {header.api_version} is not served")
    return decode(api.request, header.api_version, frame, body_offset)


def _authenticate_reply(reply: Reply) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(
        error_code=reply.code,
        error_message=reply.text,
        auth_bytes=reply.data,
        session_lifetime_ms=reply.session_lifetime_ms,
    )


def _refusal(header: RequestHeader, code: ErrorCode) -> Buffers | None:
    """The answer to a request that was not looked at; None where its response has no place for a code."""
    api, version = APIS[header.api_key], header.api_version
    if header.api_key == ApiKey.API_VERSIONS and version > api.max_version:
        version = 0
    if not api.min_version <= version <= api.max_version or not has_error_code(api.response, version):
        return None
    reply = api.response()
    reply.error_code = code
    if hasattr(reply, "error_message"):
        reply.error_message = code.meaning
    return response_frame(header.api_key, version, header.correlation_id, reply)
