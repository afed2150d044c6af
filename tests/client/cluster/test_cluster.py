"""Connections, versions and retries: what everything else in the client stands on."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from semel import Broker
from semel.client.blocking.cluster import BlockingCluster
from semel.client.cluster.cluster import Cluster, Controller, Coordinator, Leader
from semel.config import ConfigError
from semel.errors import Disconnected, KafkaError, Misuse, RequestTimedOut, UnsupportedVersion
from semel.net.connection import Connection
from semel.testing.fault_proxy import Cut, Fault, FaultProxy, Mute, Passing, Way, nth_only
from semel.wire.apis import ApiKey
from semel.wire.error_codes import error_codes
from semel.wire.messages.admin import CreateTopicsRequest
from semel.wire.messages.metadata import FindCoordinatorRequest
from semel.wire.messages.transactions import InitProducerIdRequest


def init(transactional_id: str) -> tuple[InitProducerIdRequest, Coordinator]:
    request = InitProducerIdRequest(transactional_id=transactional_id, transaction_timeout_ms=10_000)
    return request, Coordinator("transaction", transactional_id)


def new_topic(name: str) -> CreateTopicsRequest:
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    return CreateTopicsRequest(topics=[topic])


def test_a_request_finds_its_way_by_node_coordinator_leader_and_controller(bootstrap: str, name: str) -> None:
    with BlockingCluster({"bootstrap.servers": bootstrap}) as cluster:
        cluster.connect()
        assert cluster.transaction_version == 2
        request, to = init(name)
        first = cluster.request_retrying(request, to=to)
        second = cluster.request_retrying(request, to=to)
        assert (second.producer_id, second.producer_epoch) == (first.producer_id, first.producer_epoch + 1)
        cluster.request_retrying(new_topic(name), to=Controller())
        assert len(cluster.topic(name).partitions) == 1
        question = FindCoordinatorRequest(key=name, coordinator_keys=[name])
        for target in (Leader(name, 0), Controller(), cluster.leader(name, 0), None):
            assert not list(error_codes(cluster.request_retrying(question, to=target)))


def test_a_topic_that_is_not_there_is_told_also_if_the_last_question_had_no_time_left(
    bootstrap: str, name: str
) -> None:
    answers = 0

    def mute_after_the_first(passing: Passing) -> Fault | None:
        nonlocal answers
        if passing.way is not Way.RESPONSE or passing.api_key != ApiKey.METADATA:
            return None
        answers += 1
        return Mute() if answers > 2 else None  # the first is that of connect()

    with (
        FaultProxy(bootstrap, mute_after_the_first) as proxy,
        BlockingCluster({"bootstrap.servers": proxy.bootstrap_servers}) as cluster,
    ):
        cluster.connect()
        with pytest.raises(KafkaError, match=r"topic .* is not there after 1500 ms"):
            cluster.topic(name, timeout_ms=1500)
    assert answers > 2


def test_a_request_without_an_answer_is_sent_again_on_a_new_connection(bootstrap: str, name: str) -> None:
    with (
        FaultProxy(bootstrap, nth_only(1, ApiKey.INIT_PRODUCER_ID, Cut())) as proxy,
        BlockingCluster({"bootstrap.servers": proxy.bootstrap_servers}) as cluster,
    ):
        request, to = init(name)
        assert cluster.request_retrying(request, to=to).error_code == 0
        proxy.cut_all()
        assert cluster.request_retrying(request, to=to).error_code == 0


def test_silence_ends_at_the_deadline_and_says_what_was_asked(session_broker: Broker, name: str) -> None:
    rule = nth_only(1, ApiKey.INIT_PRODUCER_ID, Mute(), way=Way.REQUEST)
    with (
        FaultProxy(session_broker.bootstrap_servers, rule) as proxy,
        BlockingCluster({"bootstrap.servers": proxy.bootstrap_servers}) as cluster,
    ):
        request, to = init(name)
        cluster.coordinator("transaction", name)
        with pytest.raises(RequestTimedOut, match="InitProducerIdRequest within 200 ms"):
            cluster.request(to, request, timeout_ms=200)
        assert cluster.request(to, request, timeout_ms=5_000).error_code == 0, "on a new connection"


def test_a_connection_that_opens_while_the_client_closes_is_closed_too(session_broker: Broker) -> None:
    async def run() -> None:
        opened: list[Connection] = []
        asked, go_on = asyncio.Event(), asyncio.Event()

        async def slowly(host: str, port: int) -> Connection:
            asked.set()
            await go_on.wait()
            opened.append(await Connection.open(host, port))
            return opened[0]

        cluster = Cluster({"bootstrap.servers": session_broker.bootstrap_servers}, connect=slowly)
        request = asyncio.create_task(cluster.request(None, FindCoordinatorRequest(key="x", coordinator_keys=["x"])))
        await asked.wait()
        await cluster.close()
        go_on.set()
        with pytest.raises(Disconnected, match="the client is closed"):
            await request
        assert opened[0].closed

    asyncio.run(run())


def test_an_idle_connection_is_replaced_before_it_is_used(session_broker: Broker) -> None:
    config = {"bootstrap.servers": session_broker.bootstrap_servers, "connections.max.idle.ms": 0}
    with FaultProxy(config["bootstrap.servers"]) as proxy:  # type: ignore[arg-type]
        config["bootstrap.servers"] = proxy.bootstrap_servers
        with BlockingCluster({**config, "send.buffer.bytes": 65_536, "receive.buffer.bytes": 65_536}) as cluster:
            for _ in range(3):
                cluster.connect()
        assert proxy.passed[Way.REQUEST, ApiKey.API_VERSIONS] >= 3


def test_a_broker_that_is_not_there_is_named() -> None:
    with BlockingCluster({"bootstrap.servers": "127.0.0.1:1"}) as cluster:
        with pytest.raises(Disconnected, match=r"127\.0\.0\.1:1"):
            cluster.connect()
        with pytest.raises(RequestTimedOut, match=r"gave up after 300 ms.*127\.0\.0\.1:1"):
            cluster.request_retrying(FindCoordinatorRequest(key="x", coordinator_keys=["x"]), timeout_ms=300)


def test_a_version_the_broker_does_not_serve_is_refused_before_it_is_sent(session_broker: Broker) -> None:
    config = {"bootstrap.servers": session_broker.bootstrap_servers}
    wanted = pytest.raises(UnsupportedVersion, match="FindCoordinator version 99")
    with BlockingCluster(config) as cluster, wanted:
        cluster.request(None, FindCoordinatorRequest(key="x"), version=99)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "localhost",
        "localhost:port",
        ":9092",
        "[]:9092",
        "::1",
        "::1:9092",
        "localhost:0",
        "localhost:65536",  # the system would take it for port 0
        "localhost:²",
        "http://localhost:9092",
        "SASL_SSL://localhost:9092",
    ],
)
def test_an_address_that_is_none_is_refused_at_once(address: str) -> None:
    with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
        BlockingCluster({"bootstrap.servers": address})


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        # Read as a length, these are most of a gigabyte.
        b"<!DOCTYPE HTML>",
        b"-ERR unknown command\r\n",
        b"\x00\x00\x00\x04\x00\x00\x00\x63",
        b"\x00\x00\x00\x03\0\0\0",
    ],
)
def test_what_is_not_a_kafka_broker_is_found_out(reply: bytes) -> None:
    async def talk() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            for start in range(0, len(reply), 5):
                writer.write(reply[start : start + 5])
                await writer.drain()
            await reader.read()  # it does not hang up
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        async with asyncio.timeout(20), Cluster({"bootstrap.servers": f"{host}:{port}"}) as cluster:
            with pytest.raises(Disconnected, match=f"{host}:{port}.*is it a Kafka broker"):
                await cluster.connect()
        server.close()

    tracemalloc.start()
    try:
        asyncio.run(talk())
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


def test_answers_are_matched_in_order_whatever_pieces_they_come_in() -> None:
    async def run() -> list[bytes]:
        connection = Connection("test:1")

        class Transport(asyncio.Transport):
            def writelines(self, list_of_data: object) -> None:
                return None

            def abort(self) -> None:
                return None

        connection.connection_made(Transport())
        sizes = [4, 100_000, 10, 300_000, 4]
        answers = [connection.send([b""], number) for number in range(5)]
        stream = b"".join(
            size.to_bytes(4, "big") + number.to_bytes(4, "big") + b"x" * (size - 4) for number, size in enumerate(sizes)
        )
        position, step = 0, 1
        while position < len(stream):
            buffer = connection.get_buffer(-1)
            part = stream[position : position + min(step, len(buffer))]
            buffer[: len(part)] = part
            connection.buffer_updated(len(part))
            position += len(part)
            step = step * 2 + 1
        return [bytes((await answer)[:4]) for answer in answers]

    assert asyncio.run(run()) == [number.to_bytes(4, "big") for number in range(5)]


def test_a_closed_face_says_so(session_broker: Broker) -> None:
    cluster = BlockingCluster({"bootstrap.servers": session_broker.bootstrap_servers})
    cluster.close()
    cluster.close()
    with pytest.raises(Misuse, match="closed"):
        cluster.connect()
