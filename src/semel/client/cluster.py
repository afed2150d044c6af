"""The client's way to the brokers: connections, versions, metadata, coordinators, and requests that survive faults.

Guarantees: a request goes out in the highest version both sides speak; a lost connection is opened again when it is
next needed, with a growing pause; `request` tries once, `request_retrying` tries until its deadline as long as the
broker's answers say that trying again is right. Requests to a coordinator, long-polling fetches and everything else
use separate connections, because a broker answers one connection strictly in order.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from semel.client.answers import check, error_codes
from semel.client.connection import Connection
from semel.client.metadata import Metadata, Node, PartitionInfo, TopicInfo, topics_of
from semel.config import ADMIN, ConfigError, Values
from semel.errors import Disconnected, ErrorCode, KafkaError, RequestTimedOut, Retriable, UnsupportedVersion, error_for
from semel.wire import Malformed
from semel.wire.apis import APIS, ApiKey
from semel.wire.frames import parse_response, request_frame
from semel.wire.messages.features import ApiVersionsRequest
from semel.wire.messages.metadata import FindCoordinatorRequest, MetadataRequest

#: From these versions on a request names topics by id. Callers that fill in names get the version before.
LAST_VERSION_BY_NAME = {
    ApiKey.PRODUCE: 12,
    ApiKey.FETCH: 12,
    ApiKey.OFFSET_COMMIT: 9,
    ApiKey.OFFSET_FETCH: 9,
}

_COORDINATOR_KINDS = {"group": 0, "transaction": 1}
_CONCURRENT_TRANSACTIONS_BACKOFF = 0.02


@dataclass(frozen=True, slots=True)
class Coordinator:
    """Sends a request to whichever broker coordinates this group or transactional id."""

    kind: str
    key: str


@dataclass(frozen=True, slots=True)
class Leader:
    """Sends a request to whichever broker leads this partition."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Controller:
    """Sends a request to the controller, which is where topics are made and unmade."""


Target = int | Coordinator | Leader | Controller | None


@dataclass(slots=True)
class _Link:
    """What the client keeps per broker and lane: the connection, and how often opening it failed."""

    opening: asyncio.Lock = field(default_factory=asyncio.Lock)
    connection: Connection | None = None
    failures: int = 0
    not_before: float = 0.0


class Cluster:
    """A Kafka cluster as a client sees it.

    `to` says who gets a request: a node id, `Coordinator(kind, key)`, `Leader(topic, partition)`, `Controller()`,
    or None for any broker.

    >>> import asyncio
    >>> async def features():
    ...     async with Cluster({"bootstrap.servers": broker}) as cluster:
    ...         await cluster.connect()
    ...         return cluster.finalized_features["transaction.version"]
    >>> asyncio.run(features())
    2
    """

    def __init__(
        self,
        config: Values | Mapping[str, object],
        *,
        auto_create_topics: bool = False,
        connect: Callable[[str, int], Awaitable[Connection]] = Connection.open,
    ) -> None:
        self.config = config if isinstance(config, Values) else ADMIN.parse(config)
        self.metadata = Metadata()
        #: Features the whole cluster agreed on, such as {"transaction.version": 2}; known after the first connection.
        self.finalized_features: dict[str, int] = {}
        self.client_id: str = self.config["client.id"]
        self._connect = connect
        #: Whether asking for a topic may make it, where the broker allows that.
        self._auto_create_topics = auto_create_topics
        self._bootstrap = [_address(text) for text in self.config["bootstrap.servers"]]
        if not self._bootstrap:
            raise ConfigError("bootstrap.servers is empty: name at least one broker as host:port")
        self._links: dict[tuple[int, str], _Link] = {}
        self._versions: dict[int, dict[int, tuple[int, int]]] = {}
        self._coordinators: dict[Coordinator, int] = {}
        self._refreshing: dict[tuple[frozenset[str] | None, bool], asyncio.Task[None]] = {}
        #: Why the last connection could not be opened; None once one could.
        self._failure: Disconnected | None = None
        self._closed = False

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection; requests that wait fail with `Disconnected`."""
        self._closed = True
        for link in self._links.values():
            if link.connection is not None:
                link.connection.close()
        for task in self._refreshing.values():
            task.cancel()
        await asyncio.gather(*self._refreshing.values(), return_exceptions=True)

    @property
    def transaction_version(self) -> int:
        """The transaction protocol the cluster has finalized: 2 is KIP-890, below it the old one."""
        return self.finalized_features.get("transaction.version", 0)

    # --- requests -------------------------------------------------------------------------------------------------

    async def request(
        self,
        to: Target,
        message: Any,
        *,
        version: int | None = None,
        newest: int | None = None,
        timeout_ms: float | None = None,
        lane: str | None = None,
    ) -> Any:
        """Send once and return the answer, whatever error codes it holds.

        `version` asks for exactly that version, `newest` for the best one up to that. Raises `Disconnected` or
        `RequestTimedOut` when there is no answer; whether the broker acted is then unknown.
        """
        timeout_ms = self.config["request.timeout.ms"] if timeout_ms is None else timeout_ms
        connection: Connection | None = None
        lane = lane or ("coordinator" if isinstance(to, Coordinator) else "data")
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                node_id = await self._node_for(to)
                connection, node_id = await self._connection(node_id, lane)
                return await self._exchange(connection, node_id, message, version, newest)
        except TimeoutError:
            if connection is not None:
                # Answers come in order: whatever follows on this connection would wait behind the one that is late.
                connection.close("closed: an answer on it is overdue")
            elif self._failure is not None:
                why = f"no connection within {timeout_ms:g} ms; the last try: {self._failure.why}"
                raise Disconnected(ErrorCode.NETWORK_EXCEPTION, why) from self._failure
            raise RequestTimedOut(
                ErrorCode.REQUEST_TIMED_OUT, f"no answer to {type(message).__name__} in {timeout_ms:g} ms"
            ) from None
        except asyncio.CancelledError:
            if connection is not None and lane != "data":
                # A broker may hold a join or a fetch for long, and would answer nothing else meanwhile.
                connection.close("closed: nobody waits for its answer any more")
            raise

    async def request_retrying(
        self,
        message: Any,
        *,
        to: Target = None,
        version: int | None = None,
        newest: int | None = None,
        timeout_ms: float | None = None,
        lane: str | None = None,
    ) -> Any:
        """Send until the answer holds no retriable error, or the deadline passes.

        An answer with any error that retrying cannot mend is returned as it is. The very same message is sent each
        time: a produce request with sequence numbers may be repeated without fear of a duplicate.
        """
        loop = asyncio.get_running_loop()
        timeout_ms = self.config["request.timeout.ms"] if timeout_ms is None else timeout_ms
        deadline = loop.time() + timeout_ms / 1000
        tries = 0
        last: KafkaError | None = None
        while (left := deadline - loop.time()) > 0 or tries == 0:
            wait_ms = max(1.0, min(self.config["request.timeout.ms"], left * 1000))
            try:
                response = await self.request(
                    to, message, version=version, newest=newest, timeout_ms=wait_ms, lane=lane
                )
            except Retriable as error:
                last = error
                codes = {error.code}
            else:
                codes = set(error_codes(response))
                if not codes or not all(code.retriable for code in codes):
                    return response
                code = min(codes)
                last = error_for(code, f"{type(message).__name__}: {code.meaning}")
            if self._closed:
                raise last
            self._doubt(to)
            tries += 1
            pause = self.backoff(tries)
            if codes == {ErrorCode.CONCURRENT_TRANSACTIONS}:
                pause = min(pause, _CONCURRENT_TRANSACTIONS_BACKOFF)
            await asyncio.sleep(max(0.0, min(pause, deadline - loop.time())))
        assert last is not None
        raise RequestTimedOut(
            ErrorCode.REQUEST_TIMED_OUT,
            f"gave up after {timeout_ms:g} ms and {tries} tries; the last answer: {last.why}",
        ) from last

    async def request_all(self, requests: Iterable[tuple[Target, Any]], **options: Any) -> list[Any]:
        """Send several at once, each as `request_retrying` does; the first failure is raised when all are done."""
        answers = await asyncio.gather(
            *(self.request_retrying(message, to=to, **options) for to, message in requests), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def backoff(self, tries: int) -> float:
        """Seconds to wait before try number `tries` + 1: doubling, capped, with a fifth of jitter."""
        base, most = self.config["retry.backoff.ms"], self.config["retry.backoff.max.ms"]
        return float(min(most, base * 2 ** min(tries - 1, 20)) * random.uniform(0.8, 1.2)) / 1000

    async def version_for(self, to: Target, api: ApiKey) -> int:
        """The version `request` will use for this API with this broker."""
        node_id = await self._node_for(to)
        _, node_id = await self._connection(node_id, "data")
        return self._pick_version(node_id, api, None, None)

    async def serves(self, api: ApiKey) -> bool:
        """Whether the cluster offers this API at all."""
        _, node_id = await self._connection(None, "data")
        return api in self._versions[node_id]

    async def _exchange(
        self, connection: Connection, node_id: int, message: Any, version: int | None, newest: int | None
    ) -> Any:
        api = APIS[type(message).__about__.key]
        version = self._pick_version(node_id, api.key, version, newest)
        correlation_id = connection.next_correlation_id()
        parts = request_frame(api.key, version, correlation_id, self.client_id, message)
        unanswered = api.key == ApiKey.PRODUCE and message.acks == 0
        frame = await connection.send(parts, None if unanswered else correlation_id)
        return None if unanswered else _parsed(connection, api.key, version, frame)

    def _pick_version(self, node_id: int, api: ApiKey, wanted: int | None, newest: int | None) -> int:
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

    # --- connections ----------------------------------------------------------------------------------------------

    async def _node_for(self, to: Target) -> int | None:
        if isinstance(to, Coordinator):
            return await self.coordinator(to.kind, to.key)
        if isinstance(to, Leader):
            return await self.leader(to.topic, to.partition)
        if isinstance(to, Controller):
            if self.metadata.controller_id not in self.metadata.nodes:
                await self.refresh_metadata(())
            return self.metadata.controller_id if self.metadata.controller_id in self.metadata.nodes else None
        return to

    async def _connection(self, node_id: int | None, lane: str) -> tuple[Connection, int]:
        """An open connection to a node, or for None to whichever broker answers first."""
        if node_id is not None:
            return await self._open(node_id, lane), node_id
        ready = [
            (link.connection.in_flight, key[0])
            for key, link in self._links.items()
            if key[1] == lane and link.connection is not None and not link.connection.closed
        ]
        if ready:
            return await self._connection(min(ready)[1], lane)
        last: Disconnected | None = None
        known = list(self.metadata.nodes)
        random.shuffle(known)
        # Bootstrap addresses have negative ids: they are a way in, not brokers by name.
        for candidate in known + [-1 - i for i in range(len(self._bootstrap))]:
            try:
                return await self._open(candidate, lane), candidate
            except Disconnected as error:
                last = error
        assert last is not None
        raise Disconnected(ErrorCode.NETWORK_EXCEPTION, f"no broker can be reached; the last try: {last.why}") from last

    async def _open(self, node_id: int, lane: str) -> Connection:
        link = self._links.setdefault((node_id, lane), _Link())
        if link.connection is not None and not link.connection.closed:
            if link.connection.idle_s < self.config["connections.max.idle.ms"] / 1000:
                return link.connection
            # The broker closes idle connections too, and a request must not be the one to find out.
            link.connection.close("closed: it was idle")
        async with link.opening:
            if link.connection is not None and not link.connection.closed:
                return link.connection
            if self._closed:
                raise Disconnected(ErrorCode.NETWORK_EXCEPTION, "the client is closed")
            loop = asyncio.get_running_loop()
            await asyncio.sleep(max(0.0, link.not_before - loop.time()))
            try:
                link.connection = await self._greet(node_id)
            except Disconnected as failure:
                self._failure = failure
                link.failures += 1
                base, most = self.config["reconnect.backoff.ms"], self.config["reconnect.backoff.max.ms"]
                link.not_before = loop.time() + min(most, base * 2 ** min(link.failures - 1, 20)) / 1000
                raise
            link.failures = 0
            self._failure = None
            return link.connection

    async def _greet(self, node_id: int) -> Connection:
        """Connect and learn what the broker serves."""
        host, port = self._address_of(node_id)
        setup_ms = self.config["socket.connection.setup.timeout.ms"]
        try:
            async with asyncio.timeout(setup_ms / 1000):
                connection = await self._connect(host, port)
                self._set_buffers(connection)
                try:
                    await self._learn_versions(connection, node_id)
                except BaseException:
                    connection.close("closed: it did not say which versions it serves")
                    raise
                return connection
        except TimeoutError:
            raise Disconnected(
                ErrorCode.NETWORK_EXCEPTION, f"{host}:{port} did not answer within {setup_ms} ms of connecting"
            ) from None

    def _set_buffers(self, connection: Connection) -> None:
        """Socket buffers are left to the system, which fits them to the connection, unless they were asked for."""
        given = self.config.explicit
        sizes = [
            self.config[name] if name in given and self.config[name] > 0 else None
            for name in ("send.buffer.bytes", "receive.buffer.bytes")
        ]
        connection.set_buffers(*sizes)

    async def _learn_versions(self, connection: Connection, node_id: int) -> None:
        ours = APIS[ApiKey.API_VERSIONS]
        hello = ApiVersionsRequest(client_software_name="semel", client_software_version="1.0")
        version = ours.max_version
        while True:
            correlation_id = connection.next_correlation_id()
            frame = await connection.send(
                request_frame(ours.key, version, correlation_id, self.client_id, hello), correlation_id
            )
            # A broker that does not know our version answers in version 0, with error 35 first in the body.
            refused = int.from_bytes(frame[4:6], "big") == ErrorCode.UNSUPPORTED_VERSION
            response = _parsed(connection, ours.key, 0 if refused else version, frame)
            if not refused:
                break
            offered = {row.api_key: row.max_version for row in response.api_keys}
            version = min(offered.get(ours.key, 0), version - 1)
            if version < 0:
                raise UnsupportedVersion(ErrorCode.UNSUPPORTED_VERSION, "the broker refuses every ApiVersions request")
        check(response.error_code, f"asking {connection.address} which versions it serves")
        self._versions[node_id] = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
        if response.finalized_features_epoch >= 0:
            self.finalized_features = {row.name: row.max_version_level for row in response.finalized_features}

    def _address_of(self, node_id: int) -> tuple[str, int]:
        if node_id < 0:
            return self._bootstrap[-1 - node_id]
        node = self.metadata.nodes.get(node_id)
        if node is None:
            raise Disconnected(ErrorCode.NETWORK_EXCEPTION, f"broker {node_id} is not in the cluster's metadata")
        return node.host, node.port

    # --- metadata -------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Reach the cluster once: brokers, versions and finalized features are known afterwards."""
        await self.refresh_metadata(())

    async def refresh_metadata(
        self, topics: Iterable[str] | None, *, allow_auto_create: bool = False, timeout_ms: float | None = None
    ) -> None:
        """Ask for news of these topics (None: all, empty: brokers only). Equal questions at once are asked once."""
        key = (None if topics is None else frozenset(topics), allow_auto_create or self._auto_create_topics)
        task = self._refreshing.get(key)
        if task is None or task.done():
            task = asyncio.ensure_future(self._refresh(*key, timeout_ms))
            self._refreshing[key] = task
            task.add_done_callback(lambda done: self._refreshed(key, done))
        await asyncio.shield(task)

    def _refreshed(self, key: tuple[frozenset[str] | None, bool], task: asyncio.Task[None]) -> None:
        if self._refreshing.get(key) is task:
            del self._refreshing[key]
        if not task.cancelled():
            task.exception()  # whoever awaited it has it; nobody may be left when a caller timed out

    async def _refresh(self, topics: frozenset[str] | None, allow_auto_create: bool, timeout_ms: float | None) -> None:
        wanted = (
            None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(topics)]
        )
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=allow_auto_create)
        response = await self.request(None, request, timeout_ms=timeout_ms)
        check(getattr(response, "error_code", 0), "asking for metadata")
        at = asyncio.get_running_loop().time()
        if topics is None:
            for gone in set(self.metadata.topics) - {topic.name for topic in response.topics}:
                self.metadata.forget(gone)
        self.metadata.update(response, at)
        for info in topics_of(response):
            if info.error is not ErrorCode.NONE and not info.error.retriable:
                raise error_for(info.error, f"topic '{info.name}': {info.error.meaning}")

    async def topic(self, name: str, *, allow_auto_create: bool = False, timeout_ms: float | None = None) -> TopicInfo:
        """A topic with its partitions, from memory while it is younger than metadata.max.age.ms."""
        loop = asyncio.get_running_loop()
        timeout_ms = self.config["request.timeout.ms"] if timeout_ms is None else timeout_ms
        deadline = loop.time() + timeout_ms / 1000
        tries = 0
        while True:
            fetched_at = self.metadata.fetched_at.get(name)
            if fetched_at is not None and loop.time() - fetched_at < self.config["metadata.max.age.ms"] / 1000:
                return self.metadata.topics[name]
            try:
                left_ms = max(1.0, (deadline - loop.time()) * 1000)
                await self.refresh_metadata((name,), allow_auto_create=allow_auto_create, timeout_ms=left_ms)
            except Retriable:
                if loop.time() >= deadline:
                    raise
            if name in self.metadata.topics:
                return self.metadata.topics[name]
            tries += 1
            if loop.time() >= deadline:
                why = f"topic '{name}' is not there after {timeout_ms:g} ms"
                raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, why)
            await asyncio.sleep(min(self.backoff(tries), max(0.0, deadline - loop.time())))

    async def partition(self, topic: str, partition: int) -> PartitionInfo:
        """One partition's leader and replicas."""
        info = await self.topic(topic)
        if not 0 <= partition < len(info.partitions):
            await self.refresh_metadata((topic,))
            info = await self.topic(topic)
        if not 0 <= partition < len(info.partitions):
            why = f"topic '{topic}' has partitions 0 to {len(info.partitions) - 1}, not {partition}"
            raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, why)
        return info.partitions[partition]

    async def leader(self, topic: str, partition: int) -> int:
        """The node that leads a partition; raises a retriable error while there is none."""
        info = await self.partition(topic, partition)
        if info.leader < 0 or info.leader not in self.metadata.nodes:
            self.metadata.fetched_at.pop(topic, None)
            raise error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader at the moment")
        return info.leader

    async def leaders(self, partitions: Iterable[tuple[str, int]]) -> dict[int, list[tuple[str, int]]]:
        """These (topic, partition) pairs, grouped by the node that leads them."""
        grouped: dict[int, list[tuple[str, int]]] = {}
        for topic, partition in partitions:
            grouped.setdefault(await self.leader(topic, partition), []).append((topic, partition))
        return grouped

    def forget_topic(self, topic: str) -> None:
        """Ask for this topic's metadata before it is used again."""
        self.metadata.fetched_at.pop(topic, None)

    # --- coordinators ---------------------------------------------------------------------------------------------

    async def coordinator(self, kind: str, key: str) -> int:
        """The node that coordinates a group or a transactional id; remembered until an answer casts doubt on it."""
        target = Coordinator(kind, key)
        node_id = self._coordinators.get(target)
        if node_id is not None:
            return node_id
        request = FindCoordinatorRequest(key=key, key_type=_COORDINATOR_KINDS[kind], coordinator_keys=[key])
        response = await self.request(None, request)
        found = response.coordinators[0] if response.coordinators else response
        check(found.error_code, f"looking for the coordinator of {kind} '{key}'", found.error_message)
        self.metadata.nodes[found.node_id] = Node(found.node_id, found.host, found.port)
        self._coordinators[target] = found.node_id
        return int(found.node_id)

    def forget_coordinator(self, kind: str, key: str) -> None:
        self._coordinators.pop(Coordinator(kind, key), None)

    def _doubt(self, to: Target) -> None:
        """After a retriable failure: what was believed about the target is asked again."""
        if isinstance(to, Coordinator):
            self.forget_coordinator(to.kind, to.key)
        elif isinstance(to, Leader):
            self.forget_topic(to.topic)
        elif isinstance(to, Controller):
            self.metadata.controller_id = -1


def _parsed(connection: Connection, api_key: int, version: int, frame: memoryview) -> Any:
    """The message in a frame; a connection that carries something else is of no use."""
    try:
        return parse_response(api_key, version, frame)[1]
    except Malformed as malformed:
        connection.close("closed: it sent something that is no answer")
        why = f"{connection.address} sent something that is no answer: {malformed.why}; is it a Kafka broker?"
        raise Disconnected(ErrorCode.NETWORK_EXCEPTION, why) from malformed


def _address(text: str) -> tuple[str, int]:
    """Read host:port; an IPv6 host stands in brackets.

    >>> _address("broker-1:9092"), _address("[::1]:9093")
    (('broker-1', 9092), ('::1', 9093))
    """
    host, sign, port = text.rpartition(":")
    if not sign or not port.isdigit() or not host:
        raise ConfigError(f"bootstrap.servers: expected host:port, found '{text}'")
    return host.strip("[]"), int(port)
