"""A proxy in front of a broker that loses and delays the messages that a test chooses.

It parses Kafka's frames, so a test chooses messages by API, by their number, or by their headers. Responses that hold
the broker's address (Metadata, FindCoordinator, DescribeCluster) are rewritten to the proxy's address, so clients
always connect through it. One proxy serves one broker.

    with FaultProxy(broker.bootstrap_servers, every(7, ApiKey.PRODUCE, Cut())) as proxy:
        producer = confluent_kafka.Producer({"bootstrap.servers": proxy.bootstrap_servers})

TCP never loses a message in the middle of a stream: a client that gets response 3 without response 2 may call the
broker broken. To lose a response as a network does, use `Cut` (the response and the connection are lost, the request
was carried out) or `Mute` (nothing more arrives, and the client must time out). `Swallow` drops one frame only, for
clients that match responses by correlation id.
"""

from __future__ import annotations

import asyncio
import enum
import struct
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from semel.wire.apis import ApiKey
from semel.wire.frames import parse_response, response_frame

#: How often a message that is held looks whether it was released.
_LOOK_AGAIN_S = 0.01
#: How long a connection is kept for the answer to a message that was held.
_LONGEST_ANSWER_S = 10.0


class Way(enum.Enum):
    """The direction of a message."""

    REQUEST = "request"
    RESPONSE = "response"


@dataclass(frozen=True, slots=True)
class Passing:
    """A message that passes through the proxy; `count` is 1 for the first of its API and direction."""

    way: Way
    api_key: int
    api_version: int
    correlation_id: int
    connection: int
    count: int


@dataclass(frozen=True, slots=True)
class Cut:
    """The message is lost, and both sides of its connection are closed."""


@dataclass(frozen=True, slots=True)
class Mute:
    """The message, and all later ones in its direction, are lost. The connection stays open."""


@dataclass(frozen=True, slots=True)
class Swallow:
    """Only this message is lost."""


@dataclass(frozen=True, slots=True)
class Delay:
    """The message, and so all later ones, arrive later."""

    delay_ms: int


@dataclass(frozen=True, slots=True)
class Hold:
    """The message, and so all later ones, arrive when the event is set. It outlives its sender, as in a network."""

    released: threading.Event


Fault = Cut | Mute | Swallow | Delay | Hold
Rule = Callable[[Passing], Fault | None]


def never(_: Passing) -> None:
    """A rule without faults."""


def every(nth: int, api_key: int, fault: Fault, *, way: Way = Way.RESPONSE) -> Rule:
    """A rule: every `nth` message of one API gets the fault."""

    def rule(passing: Passing) -> Fault | None:
        return fault if passing.way is way and passing.api_key == api_key and passing.count % nth == 0 else None

    return rule


def nth_only(nth: int, api_key: int, fault: Fault, *, way: Way = Way.RESPONSE) -> Rule:
    """A rule: one message of one API gets the fault, counted from 1."""

    def rule(passing: Passing) -> Fault | None:
        return fault if passing.way is way and passing.api_key == api_key and passing.count == nth else None

    return rule


@dataclass(slots=True, eq=False)
class _Link:
    """A client's connection and its connection to the broker, with the requests that wait for a response."""

    number: int
    client: asyncio.StreamWriter
    broker: asyncio.StreamWriter
    waiting: dict[int, tuple[int, int]] = field(default_factory=dict)

    def has_answered(self, correlation_id: int) -> bool:
        return correlation_id not in self.waiting

    def close(self) -> None:
        self.client.close()
        self.broker.close()


class FaultProxy:
    """The proxy. It serves from its own thread between `start` and `stop`."""

    def __init__(self, broker: str, rule: Rule = never, *, host: str = "127.0.0.1", port: int = 0) -> None:
        if not isinstance(broker, str):
            raise TypeError(f"broker is the address of a broker, host:port, not {type(broker).__name__}")
        self.broker_host, _, broker_port = broker.rpartition(":")
        if not self.broker_host or not broker_port.isdecimal() or not 0 < int(broker_port) < 65_536:
            raise ValueError(f"broker {broker!r}: the address of one broker is host:port, as in 127.0.0.1:9092")
        self.broker_port = int(broker_port)
        self.host = host
        self.port = port
        #: May be changed while the proxy serves.
        self.rule = rule
        #: How often each fault happened, by its class name.
        self.faults: Counter[str] = Counter()
        #: How many messages of each (direction, API key) arrived, lost ones included.
        self.passed: Counter[tuple[Way, int]] = Counter()
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._links_made = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)
        self._server: asyncio.Server | None = None

    @property
    def bootstrap_servers(self) -> str:
        return f"{self.host}:{self.port}"

    def start(self) -> FaultProxy:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)
        return self

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def cut_all(self) -> None:
        """Close every connection at once. New ones are accepted."""
        self._loop.call_soon_threadsafe(self._close_links)

    def __enter__(self) -> FaultProxy:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _end(self) -> None:
        assert self._server is not None
        self._server.close()
        self._close_links()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _close_links(self) -> None:
        for link in list(self._links):
            link.close()

    async def _accept(self, from_client: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            from_broker, broker = await asyncio.open_connection(self.broker_host, self.broker_port)
        except OSError:
            client.close()
            return
        self._links_made += 1
        link = _Link(self._links_made, client, broker)
        self._links.add(link)
        for way, reader, writer in (
            (Way.REQUEST, from_client, broker),
            (Way.RESPONSE, from_broker, client),
        ):
            task = self._loop.create_task(self._carry(link, way, reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _carry(
        self, link: _Link, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Forward one direction until either side closes."""
        muted = False
        try:
            while True:
                size = await reader.readexactly(4)
                frame = await reader.readexactly(struct.unpack(">i", size)[0])
                passing = self._recognise(link, way, frame)
                if passing is None:
                    continue
                fault = self.rule(passing)
                if fault is not None:
                    self.faults[type(fault).__name__] += 1
                match fault:
                    case Cut():
                        return
                    case Mute():
                        muted = True
                    case Swallow():
                        continue
                    case Delay():
                        await asyncio.sleep(fault.delay_ms / 1000)
                    case Hold():
                        await self._until(fault.released.is_set)
                        if way is Way.REQUEST:
                            # Its sender may be gone. The end of the connection must not overtake the answer.
                            writer.write(size + frame)
                            await self._until(partial(link.has_answered, passing.correlation_id), _LONGEST_ANSWER_S)
                            continue
                if muted:
                    continue
                if way is Way.RESPONSE:
                    writer.write(self._with_own_address(passing, size + frame))
                else:
                    writer.write(size + frame)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            link.close()
            self._links.discard(link)

    async def _until(self, done: Callable[[], bool], within_s: float = float("inf")) -> None:
        deadline = self._loop.time() + within_s
        while not done() and self._loop.time() < deadline:  # noqa: ASYNC110 - another thread may set it
            await asyncio.sleep(_LOOK_AGAIN_S)

    def _recognise(self, link: _Link, way: Way, frame: bytes) -> Passing | None:
        if way is Way.REQUEST:
            api_key, api_version, correlation_id = struct.unpack_from(">hhi", frame)
            link.waiting[correlation_id] = (api_key, api_version)
        else:
            (correlation_id,) = struct.unpack_from(">i", frame)
            known = link.waiting.pop(correlation_id, None)
            if known is None:
                return None
            api_key, api_version = known
        self.passed[way, api_key] += 1
        return Passing(way, api_key, api_version, correlation_id, link.number, self.passed[way, api_key])

    def _with_own_address(self, passing: Passing, whole: bytes) -> bytes:
        """The response with the proxy's address in place of the broker's."""
        if passing.api_key not in (ApiKey.METADATA, ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_CLUSTER):
            return whole
        _, message = parse_response(passing.api_key, passing.api_version, memoryview(whole)[4:])
        if passing.api_key == ApiKey.FIND_COORDINATOR:
            named = [*message.coordinators, message] if passing.api_version >= 4 else [message]
        else:
            named = message.brokers
        for node in named:
            if node.port > 0:
                node.host, node.port = self.host, self.port
        return b"".join(response_frame(passing.api_key, passing.api_version, passing.correlation_id, message))
