"""What a coordinator remembers, many transactional ids and many groups: how long a restart takes, what each costs."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator

from bench.clients import create_topic, first_acknowledged, transactional_producer
from bench.harness import Family, Row, Server
from bench.start import settled_megabytes
from semel.errors import ErrorCode
from semel.wire.apis import ApiKey
from semel.wire.frames import parse_response, request_frame
from semel.wire.messages.offsets import OffsetCommitRequest
from semel.wire.messages.transactions import InitProducerIdRequest

TRANSACTIONAL_IDS = 100_000
GROUPS = 10_000
IDS_RESTART = "restart with 100,000 transactional ids"
IDS_MEMORY = "memory for each transactional id"
GROUPS_RESTART = "restart with 10,000 groups"
GROUPS_MEMORY = "memory for each group"
IN_FLIGHT = 200


def pipelined(server: Server, api_key: int, version: int, requests: Iterable[object]) -> Iterator[object]:
    """The answers to many requests over one connection, with a few hundred on their way at a time."""
    host, _, port = server.bootstrap_servers.rpartition(":")
    with socket.create_connection((host, int(port)), 30) as connection, connection.makefile("rb") as answers:
        waiting = 0

        def answer() -> object:
            (size,) = struct.unpack(">i", answers.read(4))
            return parse_response(api_key, version, memoryview(answers.read(size)))[1]

        for number, request in enumerate(requests):
            connection.sendall(b"".join(request_frame(api_key, version, number, "bench", request)))
            waiting += 1
            if waiting == IN_FLIGHT:
                yield answer()
                waiting -= 1
        while waiting:
            yield answer()
            waiting -= 1


def know_transactional_ids(server: Server, count: int) -> None:
    requests = (
        InitProducerIdRequest(transactional_id=f"known-{number}", transaction_timeout_ms=60_000)
        for number in range(count)
    )
    codes = {answer.error_code for answer in pipelined(server, ApiKey.INIT_PRODUCER_ID, 4, requests)}  # type: ignore[attr-defined]
    assert codes == {ErrorCode.NONE}, codes


def know_groups(server: Server, count: int) -> None:

    def request(number: int) -> OffsetCommitRequest:
        partition = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=0, committed_offset=number)
        topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="orders", partitions=[partition])
        return OffsetCommitRequest(group_id=f"group-{number}", topics=[topic])

    requests = (request(number) for number in range(count))
    codes = {
        partition.error_code
        for answer in pipelined(server, ApiKey.OFFSET_COMMIT, 8, requests)
        for topic in answer.topics  # type: ignore[attr-defined]
        for partition in topic.partitions
    }
    assert codes == {ErrorCode.NONE}, codes


def restarted(server: Server, known: int, fill: Callable[[Server, int], None]) -> tuple[float, float]:
    """Seconds until a restarted broker serves records and transactions again, and bytes of memory for each entry.

    The server knows one entry on the one side of the comparison and all of them on the other, so that only the entries
    make the difference, and not the code that is loaded for the first.
    """
    broker = server.semel
    assert broker is not None
    broker.start()
    serve(server)
    create_topic(server, "orders")
    fill(server, 1)
    broker.restart()
    serve(server)
    before = settled_megabytes(server)
    fill(server, known)
    broker.stop()
    began = time.perf_counter()
    broker.launch()
    serve(server)
    took = time.perf_counter() - began
    return took, (settled_megabytes(server) - before) * 1e6 / known


def serve(server: Server) -> None:
    first_acknowledged(server, "probe")
    transactional_producer(server, "probe")


def measure_transactional_ids(server: Server) -> dict[str, float]:
    took, each = restarted(server, TRANSACTIONAL_IDS, know_transactional_ids)
    return {IDS_RESTART: took, IDS_MEMORY: each}


def measure_groups(server: Server) -> dict[str, float]:
    took, each = restarted(server, GROUPS, know_groups)
    return {GROUPS_RESTART: took, GROUPS_MEMORY: each}


FAMILIES = [
    Family(
        "transactional-ids",
        (
            Row(IDS_RESTART, "s", 5, higher_is_better=False, alone=True),
            Row(IDS_MEMORY, "B", 1024, higher_is_better=False, alone=True),
        ),
        measure_transactional_ids,
        starts_itself=True,
        semel_alone=True,
    ),
    Family(
        "groups",
        (
            Row(GROUPS_RESTART, "s", 5, higher_is_better=False, alone=True),
            Row(GROUPS_MEMORY, "B", 1024, higher_is_better=False, alone=True),
        ),
        measure_groups,
        starts_itself=True,
        semel_alone=True,
    ),
]
