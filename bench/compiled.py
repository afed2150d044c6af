"""`python -m bench.compiled`: what compiling brings, in CPU seconds of the broker; kept in `bench/results/compiled.md`.

The same broker is started with its compiled loops and with their Python twins, in turn. CPU time bears other work on
the machine better than rates do, but not much of it: compare the rounds before you believe a ratio near 1.
"""

from __future__ import annotations

import json
import shutil
import socket
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from bench.clients import create_topic, first_acknowledged, transactional_producer
from bench.harness import RESULTS, Server, machine
from bench.start import settled_megabytes
from semel.records.building import build
from semel.wire.frames import parse_response, request_frame
from semel.wire.messages.consumer_groups import ConsumerGroupHeartbeatRequest
from semel.wire.messages.produce import ProduceRequest
from tests.support.processes import BrokerProcess

MODULES = {"compiled": "semel", "in Python": "bench.in_python"}
ROUNDS = 3
TRANSACTIONS = 3_000
CONNECTIONS = 100
TINY_BATCHES_PER_S, TINY_FOR_S = 1_000, 5
GROUPS, MEMBERS_PER_GROUP = 1_000, 10

START = "start of process to first acknowledged record"
MEMORY = "resident memory, idle"
TINY = f"broker CPU per tiny batch, {TINY_BATCHES_PER_S:,}/s from {CONNECTIONS} connections"
HEARTBEAT = f"broker CPU per heartbeat of {GROUPS * MEMBERS_PER_GROUP:,} members"
UNITS = {START: "s", MEMORY: "MB", TINY: "ms", HEARTBEAT: "ms"}


def per_transaction(producers: int) -> str:
    return f"broker CPU per transaction, {producers} producers"


def rate(producers: int) -> str:
    return f"transactions/s, {producers} producers"


for _producers in (10, 50):
    UNITS |= {per_transaction(_producers): "ms", rate(_producers): "1/s"}


class Line:
    """A connection that sends requests one after another without waiting, and then reads the answers."""

    def __init__(self, server: Server) -> None:
        host, _, port = server.bootstrap_servers.partition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        self._asked: list[tuple[int, int]] = []

    def send(self, api_key: int, version: int, messages: Iterable[Any]) -> None:
        frames = [b"".join(request_frame(api_key, version, 0, "bench", message)) for message in messages]
        self._asked += [(api_key, version)] * len(frames)
        self._socket.sendall(b"".join(frames))

    def answers(self) -> list[Any]:
        asked, self._asked = self._asked, []
        return [parse_response(*each, self._read(struct.unpack(">i", self._read(4))[0]))[1] for each in asked]

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            assert more, "the broker closed the connection"
            data += more
        return data

    def close(self) -> None:
        self._socket.close()


def transactions(server: Server, count: int) -> dict[str, float]:
    """CPU of the broker for each transaction of one record, by so many producers at once."""
    producers = [transactional_producer(server, f"compiled-{count}-{number}") for number in range(count)]
    begin = threading.Barrier(count + 1)

    def work(producer: Any) -> None:
        for number in range(3 + TRANSACTIONS // count):
            if number == 3:  # metadata and connections are there
                begin.wait()
                begin.wait()
            producer.begin_transaction()
            producer.produce("orders", b"x" * 100)
            producer.commit_transaction(60)

    threads = [threading.Thread(target=work, args=(producer,)) for producer in producers]
    for thread in threads:
        thread.start()
    begin.wait()
    used, began = server.process.cpu_s(), time.perf_counter()
    begin.wait()
    for thread in threads:
        thread.join()
    done = TRANSACTIONS // count * count
    return {
        per_transaction(count): (server.process.cpu_s() - used) * 1000 / done,
        rate(count): done / (time.perf_counter() - began),
    }


def tiny_batches(server: Server) -> float:
    """CPU of the broker for each batch of one record, in milliseconds."""
    batch = build([(b"key", b"value")], timestamp_ms=int(time.time() * 1000))
    part = ProduceRequest.PartitionProduceData(index=0, records=batch)
    topic = ProduceRequest.TopicProduceData(name="orders", partition_data=[part])
    request = ProduceRequest(acks=-1, timeout_ms=30_000, topic_data=[topic])
    lines = [Line(server) for _ in range(CONNECTIONS)]
    turns = TINY_BATCHES_PER_S * TINY_FOR_S // CONNECTIONS
    used, began = server.process.cpu_s(), time.monotonic()
    for turn in range(turns):
        for line in lines:
            line.send(0, 9, [request])
        for line in lines:
            (answer,) = line.answers()
            assert answer.responses[0].partition_responses[0].error_code == 0, answer
        time.sleep(max(0.0, began + (turn + 1) * CONNECTIONS / TINY_BATCHES_PER_S - time.monotonic()))
    spent = server.process.cpu_s() - used
    for line in lines:
        line.close()
    return spent * 1000 / (turns * CONNECTIONS)


def heartbeats(server: Server) -> float:
    """CPU of the broker for each heartbeat of a group that does not change, in milliseconds."""
    lines = [Line(server) for _ in range(CONNECTIONS)]
    members = [
        [(group, member) for group in range(first, GROUPS, CONNECTIONS) for member in range(MEMBERS_PER_GROUP)]
        for first in range(CONNECTIONS)
    ]
    epochs = {(group, member): 0 for group in range(GROUPS) for member in range(MEMBERS_PER_GROUP)}

    def beat() -> bool:
        """One heartbeat of every member; whether all of them were told nothing new."""
        calm = True
        for line, mine in zip(lines, members, strict=True):
            line.send(68, 1, [_heartbeat(*key, epochs[key]) for key in mine])
            for key, answer in zip(mine, line.answers(), strict=True):
                assert answer.error_code == 0, answer
                calm = calm and answer.member_epoch == epochs[key] and answer.assignment is None
                epochs[key] = answer.member_epoch
        return calm

    for _ in range(10):
        if beat():
            break
    else:
        raise AssertionError("the groups do not come to rest")
    used = server.process.cpu_s()
    beat()
    spent = server.process.cpu_s() - used
    for line in lines:
        line.close()
    return spent * 1000 / len(epochs)


def _heartbeat(group: int, member: int, epoch: int) -> ConsumerGroupHeartbeatRequest:
    member_id = f"m-{group}-{member}"
    request = ConsumerGroupHeartbeatRequest(group_id=f"group-{group}", member_id=member_id, member_epoch=epoch)
    if epoch == 0:
        request.rebalance_timeout_ms = 300_000
        request.subscribed_topic_names = ["orders"]
        request.topic_partitions = []
    return request


def measure(module: str) -> dict[str, float]:
    directory = Path(tempfile.mkdtemp(prefix="bench-compiled-"))
    broker = BrokerProcess(directory / "data", module=module)
    server = Server("semel", semel=broker)
    try:
        began = time.perf_counter()
        server.launch()
        first_acknowledged(server, "first")
        figures = {START: time.perf_counter() - began, MEMORY: settled_megabytes(server)}
        create_topic(server, "orders")
        figures |= transactions(server, 10)
        figures |= transactions(server, 50)
        figures[TINY] = tiny_batches(server)
        figures[HEARTBEAT] = heartbeats(server)
        return figures
    finally:
        broker.close()
        shutil.rmtree(directory, ignore_errors=True)


def main() -> int:
    found: dict[str, dict[str, list[float]]] = {name: {row: [] for row in UNITS} for name in MODULES}
    for number in range(ROUNDS):
        names = list(MODULES)
        for name in names if number % 2 == 0 else reversed(names):
            figures = measure(MODULES[name])
            print(f"round {number + 1}, {name}: {figures}", flush=True)
            for row, figure in figures.items():
                found[name][row].append(figure)
    lines = [f"| measured | unit | {' | '.join(MODULES)} | ratio |", "|---|---|--:|--:|--:|"]
    for row, unit in UNITS.items():
        compiled, plain = (statistics.median(found[name][row]) for name in MODULES)
        lines.append(f"| {row} | {unit} | {compiled:.3g} | {plain:.3g} | {compiled / plain:.3g} |")
    about = {key: value for key, value in machine().items() if key not in ("kafka", "java")}
    described = "\n".join(f"- {key}: {value}" for key, value in about.items())
    path = RESULTS / "compiled.md"
    path.with_suffix(".json").write_text(json.dumps({"machine": about, "rounds": found}, indent=1) + "\n")
    path.write_text(
        "# Bench: the compiled loops beside their Python twins\n\n"
        + "\n".join(lines)
        + f"\n\nMade by `python -m bench.compiled`. Each figure is the median of {ROUNDS} rounds.\n\n{described}\n"
    )
    print(path.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
