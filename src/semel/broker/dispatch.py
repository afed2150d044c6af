"""From a frame to a handler and back.

Guarantees:

- A frame that cannot be decoded, or asks for what is not served, closes its connection; ApiVersions alone is
  answered in version 0, so that a newer client can learn what to speak.
- `Refused` becomes the protocol's error code here, and nowhere else, unless a handler has one answer per partition.
- A failure nobody foresaw answers UNKNOWN_SERVER_ERROR and is logged with its traceback. `InvariantViolation` is not
  caught: whoever serves the connection stops the broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from importlib import import_module
from typing import TYPE_CHECKING, Any

from semel.broker.handlers import SERVED
from semel.errors import ErrorCode, Refused
from semel.net.connection import Buffers, Served, ServerConnection
from semel.wire import decode
from semel.wire.apis import APIS, ApiKey
from semel.wire.frames import parse_request, response_frame

if TYPE_CHECKING:
    from semel.broker.server import BrokerServer

logger = logging.getLogger(__name__)


class Call:
    """Who asks, and how: what a handler may need besides the request itself."""

    __slots__ = ("api_key", "client_id", "connection", "correlation_id", "version")

    def __init__(self, api_key: int, version: int, correlation_id: int, client_id: str | None) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id or ""
        self.connection: ServerConnection


Handler = Callable[["BrokerServer", Any, Call], Any]


class Dispatcher:
    """Serves frames with the handlers of `broker.handlers`, each imported when it is first asked for."""

    def __init__(self, broker: BrokerServer) -> None:
        self._broker = broker
        self._handlers: dict[int, Handler] = {}
        self._requests = broker.metrics.requests

    def serve(self, connection: ServerConnection, frame: memoryview) -> Served:
        """Serve one request."""
        if self._broker.fatal_error is not None:
            connection.refuse("the broker stopped for a broken invariant")
            return None
        try:
            header, body_offset = parse_request(frame)
        except Refused as error:
            connection.refuse(f"no request header: {error}")
            return None
        key, version = header.api_key, header.api_version
        api = APIS.get(key) if key in SERVED else None
        if api is None or not api.min_version <= version <= self._broker.highest_version(key):
            if key == ApiKey.API_VERSIONS:
                return self._unsupported_api_versions(header.correlation_id)
            connection.refuse(f"api {key} version {version} is not served")
            return None
        try:
            request = decode(api.request, version, frame, body_offset)
        except Refused as error:
            connection.refuse(f"{api.name} v{version} cannot be decoded: {error}")
            return None
        call = Call(key, version, header.correlation_id, header.client_id)
        call.connection = connection
        self._requests[key] = self._requests.get(key, 0) + 1
        handler = self._handlers.get(key) or self._find(key)
        try:
            reply = handler(self._broker, request, call)
        except Exception as error:
            reply = self._failed(request, call, error)
        if isinstance(reply, Coroutine):
            return self._reply_later(reply, request, call)
        if reply is None:
            return None
        return response_frame(key, version, call.correlation_id, reply)

    async def _reply_later(self, coroutine: Coroutine[Any, Any, Any], request: object, call: Call) -> Buffers | None:
        try:
            reply = await coroutine
        except Exception as error:
            reply = self._failed(request, call, error)
        if reply is None:
            return None
        return response_frame(call.api_key, call.version, call.correlation_id, reply)

    def _find(self, key: int) -> Handler:
        module, function = SERVED[ApiKey(key)]
        handler: Handler = getattr(import_module(f"semel.broker.handlers.{module}"), function)
        self._handlers[key] = handler
        return handler

    def _unsupported_api_versions(self, correlation_id: int) -> Served:
        from semel.broker.handlers.versions import api_versions

        reply = api_versions(self._broker, None, None)
        reply.error_code = ErrorCode.UNSUPPORTED_VERSION
        return response_frame(ApiKey.API_VERSIONS, 0, correlation_id, reply)

    def _failed(self, request: object, call: Call, error: Exception) -> object | None:
        if isinstance(error, Refused):
            code = error.code
        else:
            code = ErrorCode.UNKNOWN_SERVER_ERROR
            logger.exception("%s from %s failed", type(request).__name__, call.connection.peer, exc_info=error)
        reply = APIS[call.api_key].response()
        if not hasattr(reply, "error_code"):
            call.connection.refuse(f"{type(request).__name__} failed and its response has no place for an error")
            return None
        reply.error_code = code
        if hasattr(reply, "error_message"):
            reply.error_message = error.why if isinstance(error, Refused) else str(error)
        answer: object = reply
        return answer
