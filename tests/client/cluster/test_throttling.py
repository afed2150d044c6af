"""A client that is told to wait waits, on that connection and for that long (KIP-219)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from semel.client.admin.admin import AsyncAdmin
from semel.client.blocking.cluster import BlockingCluster
from semel.client.cluster.cluster import Cluster
from semel.client.consumer.consumer import AsyncConsumer
from semel.client.producer.producer import AsyncProducer
from semel.errors import Disconnected, RequestTimedOut
from semel.machines.producing.accumulator import Accumulator
from semel.machines.producing.sender import Sender
from semel.machines.values import TopicPartition
from semel.net.connection import Connection
from semel.wire import encode
from semel.wire.apis import ApiKey
from semel.wire.frames import parse_request, parse_response
from semel.wire.messages.admin import CreateTopicsRequest
from semel.wire.messages.configs import AlterClientQuotasRequest
from semel.wire.messages.features import ApiVersionsResponse
from semel.wire.messages.metadata import MetadataRequest, MetadataResponse


@dataclass
class Said:
    """Everything that went over one client's connections: what was asked when, and when waits were asked for."""

    sent: list[tuple[Connection, float, ApiKey]] = field(default_factory=list)
    waits: list[tuple[Connection, float, float, ApiKey]] = field(default_factory=list)

    async def connect(self, host: str, port: int) -> Connection:
        said = self

        class Overheard(Connection):
            def send(self, parts: Any, correlation_id: int | None) -> asyncio.Future[memoryview]:
                parts = list(parts)
                header, _ = parse_request(memoryview(b"".join(parts))[4:])
                api = ApiKey(header.api_key)
                said.sent.append((self, time.monotonic(), api))
                answer = super().send(parts, correlation_id)

                def note(done: asyncio.Future[memoryview]) -> None:
                    if correlation_id is None or done.cancelled() or done.exception() is not None:
                        return
                    _, response = parse_response(api, header.api_version, done.result())
                    wait_ms = getattr(response, "throttle_time_ms", 0)
                    if wait_ms:
                        said.waits.append((self, time.monotonic(), wait_ms / 1000, api))

                answer.add_done_callback(note)
                return answer

        return await Overheard.open(host, port)

    def waited_s(self, *apis: ApiKey) -> float:
        """How long the client was told to wait in answers to these; all of it was waited for."""
        for connection, at, wait, api in self.waits:
            early = [
                f"{what.name} {when - at:.3f} s after {api.name} asked for {wait:g} s"
                for other, when, what in self.sent
                if other is connection and at < when < at + wait - 0.005
            ]
            assert not early, early
        return sum(wait for _, _, wait, api in self.waits if api in apis)


@contextmanager
def quota(bootstrap: str, client_id: str, **limits: float) -> Iterator[None]:
    """Quotas of one client id, for as long as the block lasts."""

    def request(remove: bool) -> AlterClientQuotasRequest:
        entity = AlterClientQuotasRequest.EntityData(entity_type="client-id", entity_name=client_id)
        ops = [AlterClientQuotasRequest.OpData(key=key, value=value, remove=remove) for key, value in limits.items()]
        return AlterClientQuotasRequest(entries=[AlterClientQuotasRequest.EntryData(entity=[entity], ops=ops)])

    with BlockingCluster({"bootstrap.servers": bootstrap}) as cluster:
        for remove in (False, True):
            (row,) = cluster.request_retrying(request(remove)).entries
            assert row.error_code == 0, row.error_message
            if not remove:
                yield


def new_topic(bootstrap: str, name: str) -> None:
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    with BlockingCluster({"bootstrap.servers": bootstrap}) as cluster:
        cluster.request_retrying(CreateTopicsRequest(topics=[topic]))


def test_a_producer_above_its_quota_sends_nothing_for_as_long_as_it_was_told(bootstrap: str, name: str) -> None:
    new_topic(bootstrap, name)
    said = Said()

    async def run() -> None:
        config = {"bootstrap.servers": bootstrap, "client.id": name, "linger.ms": 0, "batch.size": 3_000}
        async with AsyncProducer(config, connect=said.connect) as producer:
            offsets: list[int] = []
            # Apache Kafka answers that a quota is set before all of it knows.
            deadline = time.monotonic() + 30
            while said.waited_s(ApiKey.PRODUCE) <= 0.3 and time.monotonic() < deadline:
                sent = [await producer.send(name, b"x" * 2_500) for _ in range(6)]
                offsets += [(await delivery).offset for delivery in sent]
            offsets.append((await (await producer.send(name, b"y"))).offset)
            assert offsets == list(range(len(offsets)))

    with quota(bootstrap, name, producer_byte_rate=1_200.0):
        asyncio.run(run())
    assert said.waited_s(ApiKey.PRODUCE) > 0.3


def test_a_consumer_above_its_quota_fetches_nothing_for_as_long_as_it_was_told(bootstrap: str, name: str) -> None:
    new_topic(bootstrap, name)
    said = Said()

    async def run() -> list[int]:
        async with AsyncProducer({"bootstrap.servers": bootstrap}) as producer:
            for _ in range(7):
                await (await producer.send(name, b"x" * 2_000))
        config = {
            "bootstrap.servers": bootstrap,
            "client.id": name,
            "auto.offset.reset": "earliest",
            "max.partition.fetch.bytes": 2_000,
        }
        read: list[int] = []
        deadline = time.monotonic() + 30
        async with AsyncConsumer(config, connect=said.connect) as consumer:
            consumer.assign([(name, 0)])
            while len(said.waits) < 2 and time.monotonic() < deadline:
                read += [record.offset for record in await consumer.poll(100)]
                if read[-1:] == [6]:  # all of it, before all of Apache Kafka knows of the quota
                    consumer.seek((name, 0), 0)
        return read

    with quota(bootstrap, name, consumer_byte_rate=1_300.0):
        read = asyncio.run(run())
    assert read == [number % 7 for number in range(len(read))]
    assert said.waited_s(ApiKey.FETCH) > 0.3


def test_an_admin_above_its_quota_asks_nothing_for_as_long_as_it_was_told(bootstrap: str, name: str) -> None:
    said = Said()

    async def run() -> None:
        config = {"bootstrap.servers": bootstrap, "client.id": name}
        async with AsyncAdmin(config, connect=said.connect) as admin:
            # Apache Kafka answers that a quota is set before all of it knows.
            deadline = time.monotonic() + 30
            while said.waited_s(ApiKey.METADATA) <= 0.1 and time.monotonic() < deadline:
                await admin.list_topics()
            await admin.list_topics()

    with quota(bootstrap, name, request_percentage=0.0001):
        asyncio.run(run())
    assert said.waited_s(ApiKey.METADATA) > 0.1


class Told:
    """A broker that knows ApiVersions and Metadata, and asks for a wait in its answers to the latter."""

    def __init__(self, wait_ms: int, *, metadata_version: int = 12) -> None:
        self.wait_ms = wait_ms
        self.metadata_version = metadata_version
        self.asked: list[float] = []

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            host, port = server.sockets[0].getsockname()
            yield f"{host}:{port}"
        finally:
            server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        row = ApiVersionsResponse.ApiVersion
        versions = ApiVersionsResponse(
            api_keys=[
                row(api_key=ApiKey.API_VERSIONS, min_version=0, max_version=4),
                row(api_key=ApiKey.METADATA, min_version=0, max_version=self.metadata_version),
            ]
        )
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                header, _ = parse_request(memoryview(frame))
                answer: Any = versions
                if header.api_key == ApiKey.METADATA:
                    self.asked.append(time.monotonic())
                    answer = MetadataResponse(throttle_time_ms=self.wait_ms)
                body = encode(answer, header.api_version)
                tagged = header.api_key == ApiKey.METADATA and header.api_version >= 9
                reply = header.correlation_id.to_bytes(4, "big") + (b"\0" if tagged else b"") + body
                writer.write(len(reply).to_bytes(4, "big") + reply)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


def test_a_request_that_would_have_to_wait_beyond_its_deadline_says_that_a_quota_is_why() -> None:
    async def run() -> None:
        broker = Told(5_000)
        async with broker.serving() as address, Cluster({"bootstrap.servers": address}) as cluster:
            await cluster.refresh_metadata(())
            with pytest.raises(RequestTimedOut, match=r"not sent: a quota makes this client wait for another \d+ ms"):
                await cluster.refresh_metadata((), timeout_ms=50)
            assert len(broker.asked) == 1

    asyncio.run(run())


def test_what_waits_when_the_client_is_closed_fails_at_once() -> None:
    async def run() -> float:
        broker = Told(60_000)
        async with broker.serving() as address:
            cluster = Cluster({"bootstrap.servers": address})
            await cluster.refresh_metadata(())
            waiting = asyncio.create_task(cluster.request(-1, _metadata()))
            await asyncio.sleep(0)
            began = time.monotonic()
            await cluster.close()
            with pytest.raises(Disconnected, match="the client is closed"):
                await waiting
            return time.monotonic() - began

    assert asyncio.run(run()) < 10


def test_answers_of_a_version_whose_broker_waited_itself_ask_for_no_second_wait() -> None:
    async def run() -> None:
        broker = Told(60_000, metadata_version=5)
        async with broker.serving() as address, Cluster({"bootstrap.servers": address}) as cluster:
            for _ in range(3):
                await cluster.request(-1, _metadata(), timeout_ms=5_000)
            assert len(broker.asked) == 3

    asyncio.run(run())


def test_what_waited_goes_out_in_the_order_it_came() -> None:
    async def run() -> None:
        broker = Told(100)
        said = Said()
        done: list[int] = []

        async def ask(cluster: Cluster, number: int) -> None:
            await cluster.request(-1, _metadata())
            done.append(number)

        async with (
            broker.serving() as address,
            Cluster({"bootstrap.servers": address}, connect=said.connect) as cluster,
        ):
            await cluster.request(-1, _metadata())
            broker.wait_ms = 0
            await asyncio.gather(*(ask(cluster, number) for number in range(20)))
        assert done == list(range(20))
        assert said.waited_s(ApiKey.METADATA) == 0.1

    asyncio.run(run())


def test_batches_for_a_node_that_wants_to_hear_nothing_stay_and_others_go() -> None:
    accumulator = Accumulator(batch_size_bytes=1_000, linger_ms=0, buffer_memory_bytes=10_000, max_request_bytes=5_000)
    sender = Sender(accumulator, None)
    quiet, open_one = TopicPartition("t", 0), TopicPartition("t", 1)
    for partition in (quiet, open_one):
        accumulator.append(partition, None, b"v", (), 0, 0)
    waits = {0: 700}
    requests, wake_at = sender.poll(10, lambda p: p.partition, lambda node_id: waits.get(node_id, 0))
    assert [request.node_id for request in requests] == [1]
    assert wake_at == 710
    waits.clear()
    requests, _ = sender.poll(710, lambda p: p.partition, lambda node_id: waits.get(node_id, 0))
    assert [request.node_id for request in requests] == [0]


def _metadata() -> MetadataRequest:
    return MetadataRequest(topics=[])
