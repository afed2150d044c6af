"""Sends requests to the brokers of a cluster: finds the right broker, connects, and retries.

Guarantees: a request goes out in the highest version that both sides know; a lost connection is opened again when it is
next needed, with a growing pause; `request` tries once, `request_retrying` tries until its deadline as long as the
responses are retriable. Group joins, other requests to a coordinator, long-polling fetches and everything else use
separate connections, because a broker answers one connection strictly in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from semel.client.cluster.broker_connections import BrokerConnections, read_address
from semel.client.cluster.metadata import Metadata, Node, PartitionMetadata, TopicMetadata, topics_of
from semel.client.cluster.response_errors import check
from semel.client.forking import Origin
from semel.config import ADMIN, ConfigError, Values
from semel.environment import MACHINE, Environment
from semel.errors import Disconnected, ErrorCode, KafkaError, RequestTimedOut, Retriable, error_for
from semel.net.authentication import Authentication
from semel.net.connection import Connection
from semel.security.credentials import client_credentials
from semel.security.tls import client_context
from semel.wire.apis import ApiKey
from semel.wire.error_codes import error_codes
from semel.wire.messages.metadata import FindCoordinatorRequest, MetadataRequest

_COORDINATOR_KINDS = {"group": 0, "transaction": 1}
_CONCURRENT_TRANSACTIONS_BACKOFF = 0.02
#: A topic that is created on demand is reported as unknown at first.
_TIME_TO_MAKE_A_TOPIC_S = 0.5


@dataclass(frozen=True, slots=True)
class Coordinator:
    """As the target of a request: the broker that coordinates this group or transactional id."""

    kind: str
    key: str


@dataclass(frozen=True, slots=True)
class Leader:
    """As the target of a request: the broker that leads this partition."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class Controller:
    """As the target of a request: the controller, which creates and deletes topics."""


Target = int | Coordinator | Leader | Controller | None


class Cluster:
    """A client's access to a Kafka cluster.

    `to` is the target of a request: a node id, `Coordinator(kind, key)`, `Leader(topic, partition)`, `Controller()`,
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
        connect: Callable[[str, int], Awaitable[Connection]] | None = None,
        environment: Environment = MACHINE,
    ) -> None:
        self.environment = environment
        self.config = config if isinstance(config, Values) else ADMIN.parse(config)
        self.origin = Origin()
        self.metadata = Metadata()
        #: Whether asking for a topic may create it, if the broker allows that.
        self._auto_create_topics = auto_create_topics
        self._bootstrap = [read_address(text) for text in self.config["bootstrap.servers"]]
        if not self._bootstrap:
            raise ConfigError("bootstrap.servers is empty: name at least one broker as host:port")
        # Files and credentials are read now: a mistake in them is told before anything is sent.
        with self.config.named_as_given():
            if connect is None:
                connect = partial(Connection.open, tls=client_context(self.config))
            credentials = client_credentials(self.config)
        self._connections = BrokerConnections(
            self.config,
            connect,
            self._address_of,
            None if credentials is None else Authentication(credentials, environment.chance),
        )
        #: Log warnings about what the client waits for.
        self.wait_warnings = self._connections.wait_warnings
        self._coordinators: dict[Coordinator, int] = {}
        self._refreshing: dict[tuple[frozenset[str] | None, bool], asyncio.Task[None]] = {}

    async def __aenter__(self) -> Cluster:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close every connection. Requests that wait fail with `Disconnected`."""
        self._connections.close()
        for task in self._refreshing.values():
            task.cancel()
        await asyncio.gather(*self._refreshing.values(), return_exceptions=True)

    #: Closing takes no time: see `semel.client.finalizers`.
    abandon_within_s = 0.0

    async def abandon(self) -> None:
        """End without having been closed."""
        await self.close()

    @property
    def finalized_features(self) -> dict[str, int]:
        """The finalized features, such as {"transaction.version": 2}; known after the first connection."""
        return self._connections.finalized_features

    @property
    def transaction_version(self) -> int:
        """The transaction protocol of the cluster: 2 is KIP-890, lower values are the old one."""
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
        limit: str | None = None,
    ) -> Any:
        """Send once and return the response, whatever error codes it holds.

        `version` asks for exactly that version, `newest` for the highest one up to that. Raises `Disconnected` or
        `RequestTimedOut` if there is no response; whether the broker acted is then unknown. `limit` is for the error
        message: the caller's whole time limit, if `timeout_ms` is only what is left of it.
        """
        self.origin.check(self.config["client.id"])
        timeout_ms = self.config["request.timeout.ms"] if timeout_ms is None else timeout_ms
        connection: Connection | None = None
        lane = lane or ("coordinator" if isinstance(to, Coordinator) else "data")
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                node_id = to if type(to) is int else await self._node_for(to)
                if node_id is not None:
                    connection = self._connections.ready(node_id, lane)
                if connection is None or node_id is None:
                    connection, node_id = await self._connection(node_id, lane)
                return await self._connections.exchange(connection, node_id, lane, message, version, newest)
        except TimeoutError:
            if connection is not None:
                # Responses come in order: all later ones on this connection would wait for the late one.
                connection.close("closed: a response on it is overdue")
            elif self._connections.failure is not None:
                failure = self._connections.failure
                why = f"no connection within {limit or f'{timeout_ms:g} ms'}; the last try: {failure.why}"
                raise Disconnected(ErrorCode.NETWORK_EXCEPTION, why) from failure
            why = f"no answer to {type(message).__name__} within {limit or f'{timeout_ms:g} ms'}"
            if connection is None and (left_s := self._connections.throttles.longest_s()) > 0:
                why += f"; it was not sent: a quota makes this client wait for another {left_s * 1000:.0f} ms"
            raise RequestTimedOut(ErrorCode.REQUEST_TIMED_OUT, why) from None
        except asyncio.CancelledError:
            if connection is not None and lane != "data":
                # A broker may hold a join or a fetch for long, and answers nothing else on this connection meanwhile.
                connection.close("closed: nobody waits for its response any more")
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
        """Send until the response holds no retriable error, or until the deadline.

        A response with an error that is not retriable is returned as it is. The same message is sent each time, so a
        produce request with sequence numbers can be repeated without duplicates.
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
                    to,
                    message,
                    version=version,
                    newest=newest,
                    timeout_ms=wait_ms,
                    lane=lane,
                    limit=f"{min(timeout_ms, self.config['request.timeout.ms']):g} ms",
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
            if self._connections.closed:
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
        """Send several at once, each as `request_retrying`. The first error is raised when all are done."""
        answers = await asyncio.gather(
            *(self.request_retrying(message, to=to, **options) for to, message in requests), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def backoff(self, tries: int) -> float:
        """Seconds to wait before try number `tries` + 1: doubles each time up to a limit, with 20 % jitter."""
        base, most = self.config["retry.backoff.ms"], self.config["retry.backoff.max.ms"]
        return float(min(most, base * 2 ** min(tries - 1, 20)) * self.environment.chance.uniform(0.8, 1.2)) / 1000

    async def version_for(self, to: Target, api: ApiKey) -> int:
        """The version `request` will use for this API with this broker."""
        node_id = await self._node_for(to)
        _, node_id = await self._connection(node_id, "data")
        return self._connections.pick_version(node_id, api, None, None)

    async def serves(self, api: ApiKey) -> bool:
        """Whether the cluster has this API."""
        _, node_id = await self._connection(None, "data")
        return self._connections.serves(node_id, api)

    def throttled_s(self, node_id: int, lane: str = "data") -> float:
        """For how many seconds this client is throttled by the broker. `request` waits by itself."""
        return self._connections.throttles.left_s(node_id, lane)

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
        """An open connection to a node; for None to any broker."""
        if node_id is not None:
            return await self._connections.open(node_id, lane), node_id
        ready = self._connections.least_busy(lane)
        if ready is not None:
            return await self._connections.open(ready, lane), ready
        last: Disconnected | None = None
        known = list(self.metadata.nodes)
        self.environment.chance.shuffle(known)
        # Bootstrap addresses have negative ids: which brokers they are is not known.
        for candidate in known + [-1 - i for i in range(len(self._bootstrap))]:
            try:
                return await self._connections.open(candidate, lane), candidate
            except Disconnected as error:
                last = error
        assert last is not None
        raise Disconnected(ErrorCode.NETWORK_EXCEPTION, f"no broker can be reached; the last try: {last.why}") from last

    def _address_of(self, node_id: int) -> tuple[str, int]:
        if node_id < 0:
            return self._bootstrap[-1 - node_id]
        node = self.metadata.nodes.get(node_id)
        if node is None:
            raise Disconnected(ErrorCode.NETWORK_EXCEPTION, f"broker {node_id} is not in the cluster's metadata")
        return node.host, node.port

    # --- metadata -------------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Connect once. Brokers, versions and finalized features are known afterwards."""
        await self.refresh_metadata(())

    async def refresh_metadata(
        self,
        topics: Iterable[str] | None,
        *,
        allow_auto_create: bool = False,
        timeout_ms: float | None = None,
        limit: str | None = None,
        waiting: bool = True,
    ) -> None:
        """Fetch metadata of these topics (None: all, empty: brokers only). Equal calls at once share one request.

        With `waiting` the caller waits for these topics to exist: the log says which do not.
        """
        key = (None if topics is None else frozenset(topics), allow_auto_create or self._auto_create_topics)
        task = self._refreshing.get(key)
        if task is None or task.done():
            task = asyncio.ensure_future(self._refresh(*key, timeout_ms, limit))
            self._refreshing[key] = task
            task.add_done_callback(lambda done: self._on_refresh_done(key, done))
        await asyncio.shield(task)
        for name in (waiting and key[0]) or ():
            if name not in self.metadata.topics:
                self._note_missing(name, made_by_asking=key[1])
        if self.wait_warnings:
            for name in self.metadata.topics if key[0] is None else key[0] & self.metadata.topics.keys():
                self.wait_warnings.end(("topic", name))

    def _note_missing(self, name: str, *, made_by_asking: bool) -> None:
        why = "the brokers do not know it, or it has no leader yet"
        after_s = _TIME_TO_MAKE_A_TOPIC_S if made_by_asking else 0.0
        self.wait_warnings.begin(("topic", name), f"topic '{name}' is not there", why, after_s=after_s)

    async def refresh_retrying(
        self,
        topics: Iterable[str] | None,
        *,
        timeout_ms: float,
        allow_auto_create: bool = False,
        waiting: bool = False,
    ) -> None:
        """As `refresh_metadata`, retried until `timeout_ms` has passed."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_ms / 1000
        names = None if topics is None else frozenset(topics)
        tries = 0
        while True:
            left_ms = max(1.0, (deadline - loop.time()) * 1000)
            try:
                async with asyncio.timeout(left_ms / 1000):
                    await self.refresh_metadata(
                        names,
                        allow_auto_create=allow_auto_create,
                        timeout_ms=min(left_ms, self.config["request.timeout.ms"]),
                        waiting=waiting,
                    )
                return
            except (Retriable, TimeoutError) as error:
                tries += 1
                if self._connections.closed and isinstance(error, Retriable):
                    raise
                if loop.time() >= deadline:
                    last = error if isinstance(error, Retriable) else self._connections.failure
                    why = f"gave up after {timeout_ms:g} ms and {tries} tries"
                    if last is not None:
                        why += f"; the last answer: {last.why}"
                    raise RequestTimedOut(ErrorCode.REQUEST_TIMED_OUT, why) from last
            await asyncio.sleep(min(self.backoff(tries), max(0.0, deadline - loop.time())))

    def _on_refresh_done(self, key: tuple[frozenset[str] | None, bool], task: asyncio.Task[None]) -> None:
        if self._refreshing.get(key) is task:
            del self._refreshing[key]
        if not task.cancelled():
            task.exception()  # mark it as retrieved: nobody may have waited to the end

    async def _refresh(
        self, topics: frozenset[str] | None, allow_auto_create: bool, timeout_ms: float | None, limit: str | None
    ) -> None:
        wanted = (
            None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(topics)]
        )
        request = MetadataRequest(topics=wanted, allow_auto_topic_creation=allow_auto_create)
        response = await self.request(None, request, timeout_ms=timeout_ms, limit=limit)
        check(getattr(response, "error_code", 0), "asking for metadata")
        at = asyncio.get_running_loop().time()
        if topics is None:
            for gone in set(self.metadata.topics) - {topic.name for topic in response.topics}:
                self.metadata.forget(gone)
        self.metadata.update(response, at)
        for info in topics_of(response):
            if info.error is not ErrorCode.NONE and not info.error.retriable:
                raise error_for(info.error, f"topic '{info.name}': {info.error.meaning}")

    async def topic(
        self,
        name: str,
        *,
        allow_auto_create: bool = False,
        timeout_ms: float | None = None,
        limit: str | None = None,
    ) -> TopicMetadata:
        """A topic with its partitions, from memory if that is younger than metadata.max.age.ms.

        `limit` is for the error message, as for `request`.
        """
        loop = asyncio.get_running_loop()
        timeout_ms = self.config["request.timeout.ms"] if timeout_ms is None else timeout_ms
        deadline = loop.time() + timeout_ms / 1000
        limit = limit or f"{timeout_ms:g} ms"
        tries = 0
        was_answered = False  # the last request has so little time left that it may get no answer
        while True:
            fetched_at = self.metadata.fetched_at.get(name)
            if fetched_at is not None and loop.time() - fetched_at < self.config["metadata.max.age.ms"] / 1000:
                return self.metadata.topics[name]
            try:
                left_ms = max(1.0, (deadline - loop.time()) * 1000)
                await self.refresh_metadata(
                    (name,), allow_auto_create=allow_auto_create, timeout_ms=left_ms, limit=limit
                )
                was_answered = True
            except Retriable:
                if loop.time() >= deadline and not was_answered:
                    raise
            if name in self.metadata.topics:
                return self.metadata.topics[name]
            tries += 1
            if loop.time() >= deadline:
                why = f"topic '{name}' is not there after {limit}"
                raise error_for(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, why)
            await asyncio.sleep(min(self.backoff(tries), max(0.0, deadline - loop.time())))

    async def partition(self, topic: str, partition: int) -> PartitionMetadata:
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
        """The node that leads a partition. Raises a retriable error while there is none."""
        info = await self.partition(topic, partition)
        if info.leader < 0 or info.leader not in self.metadata.nodes:
            self.metadata.fetched_at.pop(topic, None)
            raise error_for(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader at the moment")
        return info.leader

    def forget_topic(self, topic: str) -> None:
        """Fetch this topic's metadata again before it is next used."""
        self.metadata.fetched_at.pop(topic, None)

    # --- coordinators ---------------------------------------------------------------------------------------------

    async def coordinator(self, kind: str, key: str) -> int:
        """The node that coordinates a group or a transactional id; remembered until an error says otherwise."""
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
        """After a retriable failure: look up the target again before the next try."""
        if isinstance(to, Coordinator):
            self.forget_coordinator(to.kind, to.key)
        elif isinstance(to, Leader):
            self.forget_topic(to.topic)
        elif isinstance(to, Controller):
            self.metadata.controller_id = -1
