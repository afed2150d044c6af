"""From a frame to a handler and back.

Guarantees:

- A frame that cannot be decoded, or an API or version that is not served, closes the connection. Only ApiVersions is
  answered in version 0, so that a newer client can learn which versions to use. A name that is too long is answered
  with INVALID_REQUEST if the answer has a field for a code.
- `Refused` becomes the protocol's error code here and nowhere else, unless a handler has one code per partition.
- A request uses the thread for a bounded time in one turn of the loop. A request with very many elements is decoded on
  another thread, a handler that is a generator continues in later turns, a long answer is encoded on another thread.
- An unexpected failure is answered with UNKNOWN_SERVER_ERROR and logged with its traceback. `InvariantViolation` is not
  caught here: it stops the broker.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from functools import partial
from importlib import import_module
from types import CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from semel.broker.handlers import SERVED
from semel.broker.later_reply import LaterReply
from semel.broker.net.connection import Buffers, Served, ServerConnection
from semel.errors import ErrorCode, Refused
from semel.wire import TooManyElements, decode, decode_from
from semel.wire.apis import APIS, ApiKey
from semel.wire.error_codes import has_error_code
from semel.wire.frames import parse_request, response_frame
from semel.wire.primitives import LongString

if TYPE_CHECKING:
    from semel.broker.meter import Measurement
    from semel.broker.server import BrokerServer

logger = logging.getLogger(__name__)

#: A request with more elements than this in its arrays is decoded on a thread.
ELEMENTS_AT_ONCE = 2000
#: So is a request of more bytes, though its elements be few: very long names. Records are not looked at in decoding.
DECODED_AT_ONCE_BYTES = 1024 * 1024


#: Requests whose answers may be much larger than they are.
LARGE_ANSWERS = frozenset(
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
        ApiKey.DESCRIBE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS,
    }
)


def _may_have_a_large_answer(key: int, request: Any) -> bool:
    # The answer to a client that names its topics is small.
    return key in LARGE_ANSWERS and not (key == ApiKey.METADATA and request.topics)


class Call:
    """What a handler may need besides the request: the client, its connection, the version."""

    __slots__ = ("api_key", "client_id", "connection", "correlation_id", "is_long", "version")

    def __init__(
        self, api_key: int, version: int, correlation_id: int, client_id: str | None, connection: ServerConnection
    ) -> None:
        self.api_key = api_key
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id or ""
        self.connection = connection
        #: Whether it takes more than one turn of the loop. Then its answer is encoded on a thread.
        self.is_long = False


class Pace:
    """Lets a handler that is a coroutine give up the thread between two pieces of its work."""

    __slots__ = ("_call", "_since", "_turns")

    def __init__(self, broker: BrokerServer, call: Call) -> None:
        self._turns = broker.turns
        self._call = call
        self._since = self._turns.clock()

    async def rest(self) -> None:
        """Call this after each piece. What was looked up before may have changed afterwards."""
        if self._turns.is_over(self._since):
            self._call.is_long = True
            self._since = await self._turns.rest(self._since)


Handler = Callable[["BrokerServer", Any, Call], Any]


class Route:
    """One API: its request class, its versions and its handler."""

    __slots__ = ("api", "count", "handler", "max_version", "min_version", "request")

    def __init__(self, broker: BrokerServer, key: ApiKey) -> None:
        module, function = SERVED[key]
        self.api = APIS[key]
        self.request = self.api.request
        self.min_version = self.api.min_version
        self.max_version = broker.highest_version(key)
        self.handler: Handler = getattr(import_module(f"semel.broker.handlers.{module}"), function)
        if broker.access is not None:
            self.handler = broker.access.guarded(key, self.handler)
        #: Requests served since the start.
        self.count = 0


class Dispatcher:
    """Serves frames with the handlers in `broker.handlers`. A handler is imported at its first request."""

    def __init__(self, broker: BrokerServer) -> None:
        self._broker = broker
        self._after_reply = broker.after_reply
        self._due_steps = broker.after_reply.steps
        self._unread = broker.unread
        self.routes: dict[int, Route] = {}

    def serve(self, connection: ServerConnection, frame: memoryview) -> Served:
        """Serve one request."""
        broker = self._broker
        if broker.fatal_error is not None:
            connection.refuse("the broker stopped for a broken invariant")
            return None
        if self._due_steps:
            self._after_reply.run_all()
        try:
            header, body_offset = parse_request(frame)
            key, version, correlation_id, client_id = header
            route = self.routes.get(key) or self._find(key)
            if route is None or not route.min_version <= version <= route.max_version:
                return self._refuse_version(connection, key, version, correlation_id)
            call = Call(key, version, correlation_id, client_id, connection)
            measured = None if broker.meter is None else broker.meter.begin(call, len(frame))
            if len(frame) > DECODED_AT_ONCE_BYTES and key != ApiKey.PRODUCE:
                return self._serve_large(route, frame, body_offset, call, measured)
            try:
                request = decode_from(route.request, version, frame, body_offset, ELEMENTS_AT_ONCE)[0]
            except TooManyElements:
                return self._serve_large(route, frame, body_offset, call, measured)
            except LongString as error:
                reply = self._error_reply(route.request(), call, error)
                return None if reply is None else response_frame(key, version, correlation_id, reply)
        except Refused as error:
            connection.refuse(f"a request that cannot be decoded: {error}")
            return None
        if self._unread.is_full and _may_have_a_large_answer(key, request):
            return self._serve_when_others_read(route, request, call, measured)
        return self._handle(route, request, call, measured)

    def _handle(
        self, route: Route, request: Any, call: Call, measured: Measurement | None, *, holds_others_up: bool = False
    ) -> Served:
        """Call the handler. Every request comes through here, measured or not.

        `holds_others_up`: the connection waits for this request's answer.
        """
        route.count += 1
        if measured is not None:
            measured.start()
        try:
            reply = route.handler(self._broker, request, call)
            if type(reply) is GeneratorType:
                reply = self._other_steps(reply, call) if call.is_long else self._first_steps(reply, call)
        except Exception as error:
            reply = self._error_reply(request, call, error)
        if measured is not None:
            measured.stop()
        if type(reply) is CoroutineType or type(reply) is LaterReply or call.is_long:
            if type(reply) is LaterReply:
                if not holds_others_up:
                    return reply.answer(call, measured)
                reply = reply.wait()
            return self._reply_later(reply, request, call, measured)
        if measured is None:
            return None if reply is None else response_frame(call.api_key, call.version, call.correlation_id, reply)
        measured.count(reply)
        buffers = None if reply is None else response_frame(call.api_key, call.version, call.correlation_id, reply)
        measured.finish()
        return buffers

    async def _reply_later(
        self, reply: Any, request: object, call: Call, measured: Measurement | None
    ) -> Buffers | None:
        try:
            if type(reply) is CoroutineType:
                reply = await (reply if measured is None else measured.watch(reply))
        except Exception as error:
            reply = self._error_reply(request, call, error)
        if measured is not None:
            measured.count(reply)
        buffers = await self._encode(reply, call)
        if measured is not None:
            measured.finish()
        return buffers

    async def _encode(self, reply: Any, call: Call) -> Buffers | None:
        if reply is None:
            return None
        if not call.is_long:
            return response_frame(call.api_key, call.version, call.correlation_id, reply)
        return await self._broker.beside(
            partial(response_frame, call.api_key, call.version, call.correlation_id, reply)
        )

    # Requests that take longer than a turn of the loop

    def _first_steps(self, steps: Generator[None, None, Any], call: Call) -> Any:
        """Run a handler's steps until this turn is over. Returns the reply, or a coroutine that continues."""
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

    async def _serve_large(
        self, route: Route, frame: memoryview, body_offset: int, call: Call, measured: Measurement | None
    ) -> Buffers | None:
        """Serve a request with very many elements, unless there are too many."""
        most = self._broker.settings["semel.request.max.elements"]
        try:
            request = await self._broker.beside(partial(decode, route.request, call.version, frame, body_offset, most))
        except TooManyElements:
            call.connection.refuse(
                f"a {route.api.name} with more than {most} elements: name fewer topics, partitions or groups in one "
                "request, or raise semel.request.max.elements"
            )
            return None
        except LongString as error:
            return await self._encode(self._error_reply(route.request(), call, error), call)
        except Refused as error:
            call.connection.refuse(f"a request that cannot be decoded: {error}")
            return None
        call.is_long = True
        return await self._serve_when_others_read(route, request, call, measured)

    async def _serve_when_others_read(
        self, route: Route, request: Any, call: Call, measured: Measurement | None
    ) -> Buffers | None:
        """Serve a request in a later turn of the loop, once there is memory for an answer that may be large."""
        broker = self._broker
        if self._unread.is_full and _may_have_a_large_answer(call.api_key, request):
            await self._unread.room()
        if broker.fatal_error is not None:
            call.connection.refuse("the broker stopped for a broken invariant")
            return None
        # Others were served meanwhile.
        self._after_reply.run_all()
        served: Any = self._handle(route, request, call, measured, holds_others_up=True)
        buffers: Buffers | None = await served if type(served) is CoroutineType else served
        return buffers

    def _find(self, key: int) -> Route | None:
        if not self._broker.serves(key):
            return None
        route = self.routes[key] = Route(self._broker, ApiKey(key))
        return route

    def _refuse_version(self, connection: ServerConnection, key: int, version: int, correlation_id: int) -> Served:
        if key != ApiKey.API_VERSIONS:
            connection.refuse(f"api {key} version {version} is not served")
            return None
        return self.versions_served(correlation_id)

    def versions_served(self, correlation_id: int) -> Buffers:
        """The answer to an ApiVersions of a version that is not served: which versions are."""
        from semel.broker.handlers.versions import api_versions

        reply = api_versions(self._broker, None, None)
        reply.error_code = ErrorCode.UNSUPPORTED_VERSION
        return response_frame(ApiKey.API_VERSIONS, 0, correlation_id, reply)

    def _error_reply(self, request: object, call: Call, error: Exception) -> object | None:
        if isinstance(error, Refused):
            code = error.code
        else:
            code = ErrorCode.KAFKA_STORAGE_ERROR if isinstance(error, OSError) else ErrorCode.UNKNOWN_SERVER_ERROR
            logger.exception("%s from %s failed", type(request).__name__, call.connection.peer, exc_info=error)
        reply = APIS[call.api_key].response()
        if not has_error_code(type(reply), call.version):
            call.connection.refuse(f"{type(request).__name__} failed and its response has no place for an error")
            return None
        reply.error_code = code
        if hasattr(reply, "error_message"):
            reply.error_message = error.why if isinstance(error, Refused) else str(error)
        answer: object = reply
        return answer
