"""One broker of a `semel.Cluster`: a process that is killed, frozen, stopped and started again."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from semel.testing.network import ZOOKEEPER, Network, Relay
from semel.testing.watchdog import Watchdog

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 40.0


class BrokerProcess:
    """One broker; its directory and port stay the same over its lives."""

    def __init__(self, number: int, place: Path, port: int, watchdog: Watchdog) -> None:
        self.number = number
        self._watchdog = watchdog
        self.port = port
        self.directory = place / f"broker-{number}"
        self._output = place / f"broker-{number}.log"
        self._said_before = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._is_paused = False
        self._own: dict[str, object] = {}
        #: Held by whoever stops or restarts it: of two who restart it at once, the second waits for the first.
        self.changing = threading.RLock()
        #: Held for a moment only, where a process begins, and where the end of one is written down.
        self._lock = threading.Lock()
        self._is_over = False
        #: In front of the listener that brokers use among themselves.
        self._relay: Relay | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def answers(self) -> bool:
        """Whether it can be asked."""
        return self.is_running and not self._is_paused

    def pause(self) -> None:
        self.signal(signal.SIGSTOP)
        self._is_paused = True

    def resume(self) -> None:
        self.signal(signal.SIGCONT)
        self._is_paused = False

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def output(self) -> str:
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def prepare(self, zookeeper: str, settings: Mapping[str, object], network: Network | None) -> None:
        """Decide what it is started with, in all its lives."""
        self._own = {
            **settings,
            "node.id": self.number,
            "listeners": f"PLAINTEXT://{self.address}",
            "log.dirs": self.directory,
            "zookeeper.connect": zookeeper,
        }
        if network is not None:
            (inside,) = free_ports(1)
            self._relay = network.relay(self.number, "127.0.0.1", inside)
            reached = f"127.0.0.1:{self._relay.port}"
            self._own |= {
                "listeners": f"CLIENTS://{self.address},BROKERS://127.0.0.1:{inside}",
                "advertised.listeners": f"CLIENTS://{self.address},BROKERS://{reached}",
                "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
                "inter.broker.listener.name": "BROKERS",
                "zookeeper.connect": _through_relays(zookeeper, self.number, network),
            }

    def launch(self) -> None:
        with self._lock:
            if self._is_over:
                raise RuntimeError("the cluster was stopped")
            self._launch()

    def _launch(self) -> None:
        if self._relay is not None:
            self._relay.open()
        words = [sys.executable, "-m", "semel", "broker", "start"]
        for name, value in self._own.items():
            words += ("--set", f"{name}={','.join(map(str, value)) if isinstance(value, (list, tuple)) else value}")
        self._said_before = len(self.output())
        self._is_paused = False
        with self._output.open("ab") as out:
            # A session of its own: Ctrl-C is for the program that started the cluster, which stops it in order.
            self._process = subprocess.Popen(
                words, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
            )
        self._watchdog.watch(self._process.pid)

    def wait(self) -> None:
        """Until it has said that it is ready: it is registered then."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while "broker ready on" not in (said := self.output()[self._said_before :]):
            if not self.is_running:
                ended = self._process.returncode if self._process is not None else None
                raise RuntimeError(f"broker {self.number} did not start, it ended with {ended}:\n{said[-2000:]}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"broker {self.number} was not ready within {START_TIMEOUT_S:g} s:\n{said[-2000:]}")
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        if self._process is not None and self.is_running:
            self._process.send_signal(number)

    def stop(self) -> None:
        """Ask the process to end in order."""
        self.resume()
        self.signal(signal.SIGTERM)

    def stop_for_good(self) -> None:
        """The same, and no other process begins."""
        with self._lock:
            self._is_over = True
            self.stop()

    def kill(self) -> None:
        process = self._process
        if process is not None:
            process.kill()
            process.wait(STOP_TIMEOUT_S)
            self._has_ended(process)

    def end(self) -> None:
        """Wait for the process to end by itself, and end it if it does not."""
        process = self._process
        if process is None:
            return
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_TIMEOUT_S)
        self._has_ended(process)

    def _has_ended(self, process: subprocess.Popen[bytes]) -> None:
        with self._lock:
            if process is not self._process:
                return  # another one has begun meanwhile: what follows would be done to that
            self._watchdog.forget(process.pid)
            if self._relay is not None:
                self._relay.shut()

    def asked_for_leader(self, topic: str, partition: int) -> int | None:
        """Who leads a partition, as this broker knows it; None if it does not answer or does not know the topic."""
        from semel.wire.apis import ApiKey
        from semel.wire.frames import parse_response, request_frame
        from semel.wire.messages.metadata import MetadataRequest

        wanted = MetadataRequest(
            topics=[MetadataRequest.MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False
        )
        try:
            with socket.create_connection(("127.0.0.1", self.port), 2) as connection:
                connection.sendall(b"".join(request_frame(ApiKey.METADATA, 9, 1, "semel-cluster", wanted)))
                with connection.makefile("rb") as stream:
                    size = int.from_bytes(stream.read(4), "big")
                    answer = parse_response(ApiKey.METADATA, 9, stream.read(size))[1]
        except (OSError, ValueError, LookupError):
            return None
        for row in answer.topics[0].partitions:
            if row.partition_index == partition:
                return int(row.leader_id)
        return None


def _through_relays(zookeeper: str, broker: int, network: Network) -> str:
    """`zookeeper.connect` with a relay of this broker in front of each server."""
    _, slash, chroot = zookeeper.partition("/")
    relays = [
        network.relay(ZOOKEEPER, host, port, only_from=broker) for host, port in zookeeper_servers(zookeeper)
    ]
    return ",".join(f"127.0.0.1:{relay.port}" for relay in relays) + slash + chroot


def zookeeper_servers(connect: str) -> list[tuple[str, int]]:
    """What `zookeeper.connect` names. An empty one would be no cluster: each broker would be alone."""
    if not isinstance(connect, str):
        raise TypeError(f"zookeeper is HOST:PORT, several with commas, and a chroot; not {type(connect).__name__}")
    servers = []
    for server in connect.partition("/")[0].split(","):
        host, colon, port = server.strip().rpartition(":")
        host, port = (host, port) if colon else (port, "2181")
        if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
            raise ValueError(f"zookeeper={connect!r}: expected for example 127.0.0.1:2181, or None for a built-in one")
        servers.append((host, int(port)))
    return servers


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on. All are held until each is chosen, so that none is chosen twice.

    While a broker is away nobody else gets its port: systems give connections theirs from 32768 on.
    """
    held: list[socket.socket] = []
    try:
        while len(held) < count:
            one = socket.socket()
            try:
                one.bind(("127.0.0.1", random.randrange(12_000, 32_000)))
            except OSError:
                one.close()
            else:
                held.append(one)
        return [int(one.getsockname()[1]) for one in held]
    finally:
        for one in held:
            one.close()
