"""From a frame to a handler and back.

Guarantees:

- A frame that cannot be decoded, or asks for what is not served, closes its connection; ApiVersions alone is
  answered in version 0, so that a newer client can learn what to speak. A name that is too long is answered with
  INVALID_REQUEST where the answer has room for a code.
- `Refused` becomes the protocol's error code here, and nowhere else, unless a handler has one answer per partition.
- However much a request asks for, it has the thread for a bounded time in one turn of the loop: one with very many
  elements is decoded beside the loop, a handler that is a generator goes on in later turns, and a long answer
  is encoded beside the loop.
- A failure nobody foresaw answers UNKNOWN_SERVER_ERROR and is logged with its traceback. `InvariantViolation` is not
  caught: whoever serves the connection stops the broker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from importlib import import_module
from types import CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from semel.broker.handlers import SERVED
from semel.broker.net.connection import Buffers, Served, ServerConnection
from semel.broker.quotas import Quotas, Stopwatch
from semel.errors import ErrorCode, Refused
from semel.wire import TooManyElements, decode
from semel.wire.apis import APIS, ApiKey
from semel.wire.frames import parse_request, response_frame
from semel.wire.primitives import LongString
from semel.wire.schema import fields_of

if TYPE_CHECKING:
    from semel.broker.server import BrokerServer

logger = logging.getLogger(__name__)

#: A request with more elements than this in its arrays is decoded beside the loop.
ELEMENTS_AT_ONCE = 2000


#: Requests whose answers may be far larger than they are themselves.
ANSWERED_AT_LENGTH = frozenset(
    {
        ApiKey.FETCH,
        ApiKey.METADATA,
        ApiKey.OFFSET_FETCH,
        ApiKey.DESCRIBE_GROUPS,
        ApiKey.LIST_GROUPS,
        ApiKey.DESCRIBE_CONFIGS,
        ApiKey.DESCRIBE_LOG_DIRS,
        ApiKey.DESCRIBE_PRODUCERS,
        ApiKey.DESCRIBE_TRANSACTIONS,
        ApiKey.LIST_TRANSACTIONS,
        ApiKey.CONSUMER_GROUP_DESCRIBE,
        ApiKey.LIST_CONFIG_RESOURCES,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    }
)


def _is_answered_at_length(key: int, request: Any) -> bool:
    # A client that names its topics wants to produce, and is told little.
    return key in ANSWERED_AT_LENGTH and not (key == ApiKey.METADATA and request.topics)


class Call:
    """Who asks, and how: what a handler may need besides the request itself."""

    __slots__ = ("api_key", "client_id", "connection", "correlation_id", "is_long", "version")

    def __init__(
        self, api_key: int, version: int, correlation_id: int, client_id: str | None, connection: ServerConnection
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id or ""
        self.connection = connection
        #: Whether it takes more than one turn of the loop: then its answer is long as well.
        self.is_long = False


class Pace:
    """Lets others have the thread between the pieces of a request's work, in a handler that is a coroutine."""

    __slots__ = ("_call", "_since", "_turns")

    def __init__(self, broker: BrokerServer, call: Call) -> None:
        self._turns = broker.turns
        self._call = call
        self._since = self._turns.clock()

    async def rest(self) -> None:
        """A piece is done. What was looked up before may have changed after this."""
        if self._turns.is_over(self._since):
            self._call.is_long = True
            self._since = await self._turns.rest(self._since)


Handler = Callable[["BrokerServer", Any, Call], Any]


class Route:
    """One API as it is served: its messages, its versions and its handler."""

    __slots__ = ("api", "count", "handler", "max_version", "min_version", "request")

    def __init__(self, broker: BrokerServer, key: ApiKey) -> None:
        module, function = SERVED[key]
        self.api = APIS[key]
        self.request = self.api.request
        self.min_version = self.api.min_version
        self.max_version = broker.highest_version(key)
        self.handler: Handler = getattr(import_module(f"semel.broker.handlers.{module}"), function)
        #: Requests served since the start.
        self.count = 0


class Dispatcher:
    """Serves frames with the handlers of `broker.handlers`, each imported when it is first asked for."""

    def __init__(self, broker: BrokerServer) -> None:
        self._broker = broker
        self._after_reply = broker.after_reply
        self.routes: dict[int, Route] = {}

    def serve(self, connection: ServerConnection, frame: memoryview) -> Served:
        """Serve one request."""
        broker = self._broker
        if broker.fatal_error is not None:
            connection.refuse("the broker stopped for a broken invariant")
            return None
        if self._after_reply.steps:
            self._after_reply.run_all()
        try:
            header, body_offset = parse_request(frame)
            key, version, correlation_id, client_id = header
            route = self.routes.get(key) or self._find(key)
            if route is None or not route.min_version <= version <= route.max_version:
                return self._not_served(connection, key, version, correlation_id)
            call = Call(key, version, correlation_id, client_id, connection)
            try:
                request = decode(route.request, version, frame, body_offset, ELEMENTS_AT_ONCE)
            except TooManyElements:
                return self._serve_large(route, frame, body_offset, call)
            except LongString as error:
                reply = self._failed(route.request(), call, error)
                return None if reply is None else response_frame(key, version, correlation_id, reply)
        except Refused as error:
            connection.refuse(f"a request that cannot be decoded: {error}")
            return None
        if broker.unread.is_full and _is_answered_at_length(key, request):
            return self._serve_when_others_read(connection, frame)
        route.count += 1
        if broker.quotas is not None:
            return self._serve_within(broker.quotas, route, request, call, len(frame))
        try:
            reply = route.handler(broker, request, call)
            if type(reply) is GeneratorType:
                reply = self._first_steps(reply, call)
        except Exception as error:
            reply = self._failed(request, call, error)
        if type(reply) is CoroutineType:
            return self._reply_later(reply, request, call)
        if reply is None:
            return None
        return response_frame(key, version, correlation_id, reply)

    async def _serve_when_others_read(self, connection: ServerConnection, frame: memoryview) -> Buffers | None:
        """Serve a request once there is room for an answer that may be large."""
        await self._broker.unread.room()
        served = Dispatcher.serve(self, connection, frame)
        return served if served is None or isinstance(served, list) else await served

    async def _reply_later(self, coroutine: Coroutine[Any, Any, Any], request: object, call: Call) -> Buffers | None:
        try:
            reply = await coroutine
        except Exception as error:
            reply = self._failed(request, call, error)
        return await self._encoded(reply, call)

    async def _encoded(self, reply: Any, call: Call) -> Buffers | None:
        if reply is None:
            return None
        if not call.is_long:
            return response_frame(call.api_key, call.version, call.correlation_id, reply)
        return await self._broker.beside(
            partial(response_frame, call.api_key, call.version, call.correlation_id, reply)
        )

    # What takes longer than a turn of the loop

    def _first_steps(self, steps: Generator[None, None, Any], call: Call) -> Any:
        """As much as this turn of the loop has room for: the reply, or a coroutine that goes on."""
        turns = self._broker.turns
        since = turns.clock()
        try:
            while True:
                next(steps)
                if turns.is_over(since):
                    return self._other_steps(steps, call)
        except StopIteration as done:
            return done.value

    async def _other_steps(self, steps: Generator[None, None, Any], call: Call) -> Any:
        turns = self._broker.turns
        call.is_long = True
        while True:
            await turns.next()
            since = turns.clock()
            try:
                while True:
                    next(steps)
                    if turns.is_over(since):
                        break
            except StopIteration as done:
                reply = done.value
                break
            finally:
                turns.worked(since)
        return await reply if type(reply) is CoroutineType else reply

    async def _serve_large(self, route: Route, frame: memoryview, body_offset: int, call: Call) -> Buffers | None:
        """Serve a request with very many elements, unless they are too many."""
        broker, connection = self._broker, call.connection
        most = broker.settings["semel.request.max.elements"]
        try:
            request = await broker.beside(partial(decode, route.request, call.version, frame, body_offset, most))
        except TooManyElements:
            connection.refuse(
                f"a {route.api.name} with more than {most} elements: name fewer topics, partitions or groups in one "
                "request, or raise semel.request.max.elements"
            )
            return None
        except Refused as error:
            connection.refuse(f"a request that cannot be decoded: {error}")
            return None
        if broker.unread.is_full and _is_answered_at_length(call.api_key, request):
            await broker.unread.room()
        if broker.fatal_error is not None:
            connection.refuse("the broker stopped for a broken invariant")
            return None
        # Others were served meanwhile.
        self._after_reply.run_all()
        route.count += 1
        call.is_long = True
        quotas = broker.quotas
        if quotas is not None:
            served: Any = self._serve_within(quotas, route, request, call, len(frame))
            buffers: Buffers | None = await served if type(served) is CoroutineType else served
            return buffers
        try:
            reply = route.handler(broker, request, call)
            if type(reply) is GeneratorType:
                reply = self._other_steps(reply, call)
            if type(reply) is CoroutineType:
                reply = await reply
        except Exception as error:
            reply = self._failed(request, call, error)
        return await self._encoded(reply, call)

    def _serve_within(self, quotas: Quotas, route: Route, request: Any, call: Call, size_bytes: int) -> Served:
        """Serve a request, and count what it takes."""
        began_ns = time.perf_counter_ns()
        try:
            reply = route.handler(self._broker, request, call)
            if type(reply) is GeneratorType:
                reply = self._first_steps(reply, call)
        except Exception as error:
            reply = self._failed(request, call, error)
        spent_ns = time.perf_counter_ns() - began_ns
        if type(reply) is CoroutineType:
            return self._reply_later_within(quotas, Stopwatch(reply, spent_ns), request, call, size_bytes)
        self._count(quotas, call, reply, size_bytes, spent_ns)
        if call.is_long:
            return self._encoded(reply, call)
        return None if reply is None else response_frame(call.api_key, call.version, call.correlation_id, reply)

    async def _reply_later_within(
        self, quotas: Quotas, stopwatch: Stopwatch, request: Any, call: Call, size_bytes: int
    ) -> Buffers | None:
        try:
            reply = await stopwatch
        except Exception as error:
            reply = self._failed(request, call, error)
        self._count(quotas, call, reply, size_bytes, stopwatch.spent_ns)
        return await self._encoded(reply, call)

    @staticmethod
    def _count(quotas: Quotas, call: Call, reply: Any, size_bytes: int, spent_ns: int) -> None:
        # Without an answer nobody could be told of the work; a produce of any kind is counted by its bytes.
        wait_ms = 0 if reply is None else quotas.worked(call, spent_ns)
        if call.api_key == ApiKey.PRODUCE:
            wait_ms = max(wait_ms, quotas.produced(call, size_bytes))
        quotas.throttle(call, reply, wait_ms)

    def _find(self, key: int) -> Route | None:
        if key not in SERVED:
            return None
        route = self.routes[key] = Route(self._broker, ApiKey(key))
        return route

    def _not_served(self, connection: ServerConnection, key: int, version: int, correlation_id: int) -> Served:
        if key != ApiKey.API_VERSIONS:
            connection.refuse(f"api {key} version {version} is not served")
            return None
        from semel.broker.handlers.versions import api_versions

        reply = api_versions(self._broker, None, None)
        reply.error_code = ErrorCode.UNSUPPORTED_VERSION
        return response_frame(key, 0, correlation_id, reply)

    def _failed(self, request: object, call: Call, error: Exception) -> object | None:
        if isinstance(error, Refused):
            code = error.code
        else:
            code = ErrorCode.KAFKA_STORAGE_ERROR if isinstance(error, OSError) else ErrorCode.UNKNOWN_SERVER_ERROR
            logger.exception("%s from %s failed", type(request).__name__, call.connection.peer, exc_info=error)
        reply = APIS[call.api_key].response()
        if not any(field.name == "error_code" and field.present_in(call.version) for field in fields_of(type(reply))):
            call.connection.refuse(f"{type(request).__name__} failed and its response has no place for an error")
            return None
        reply.error_code = code
        if hasattr(reply, "error_message"):
            reply.error_message = error.why if isinstance(error, Refused) else str(error)
        answer: object = reply
        return answer
