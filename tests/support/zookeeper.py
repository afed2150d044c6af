"""Apache ZooKeeper itself, one node or several, for tests that compare with it and for clusters of real processes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.network import HERE, Machine
from tests.support.processes import Process, lasting_port
from tests.support.requirements import zookeeper_jars
from tests.support.waiting import until

#: Small and quick to start: a test's ZooKeeper holds a few nodes for a few seconds.
JVM = ("-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Dzookeeper.forceSync=no")


class ZooKeeperNode:
    """One server process. It may be killed, frozen and started again on the same data and port."""

    def __init__(self, number: int, directory: Path, machine: Machine = HERE) -> None:
        self.number = number
        self.directory = directory
        self.machine = machine
        self.port = lasting_port()
        self.peer_port = lasting_port()
        self.election_port = lasting_port()
        self.process: Process | None = None

    def launch(self) -> None:
        """Starts the process and does not wait for it."""
        assert self.process is None or not self.process.running(), "already running"
        classes = os.pathsep.join(map(str, zookeeper_jars()))
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        command = [*self.machine.prefix, "java", *JVM, "-cp", classes, main, str(self.directory / "zoo.cfg")]
        self.process = Process(command, name=f"zookeeper-{self.number}", output=self.directory / "server.log")

    def mode(self) -> str:
        """"standalone", "leader" or "follower"; empty while it does not serve."""
        try:
            with socket.create_connection((self.machine.address, self.port), timeout=2) as connection:
                connection.sendall(b"srvr")
                said = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
        except OSError:
            return ""
        return next((line.split()[1] for line in said.splitlines() if line.startswith("Mode:")), "")

    @property
    def running(self) -> Process:
        assert self.process is not None, "ZooKeeper was not started"
        return self.process

    def kill9(self) -> None:
        self.running.kill9()

    def freeze(self) -> None:
        self.running.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.running.signal(signal.SIGCONT)

    def close(self) -> None:
        if self.process is not None:
            if self.process.running():
                self.process.kill9()
            self.process.close()


class ZooKeeper:
    """An ensemble of `nodes` servers on free ports of 127.0.0.1, or one on each machine; its directory goes."""

    def __init__(self, nodes: int = 1, *, tick_ms: int = 500, machines: Sequence[Machine] = ()) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="zookeeper-"))
        self.nodes = [
            ZooKeeperNode(number, self.directory / str(number), machine)
            for number, machine in enumerate(machines or [HERE] * nodes, 1)
        ]
        ensemble = "".join(
            f"server.{node.number}={node.machine.address}:{node.peer_port}:{node.election_port}\n"
            for node in self.nodes
        )
        for node in self.nodes:
            node.directory.mkdir()
            (node.directory / "myid").write_text(str(node.number))
            (node.directory / "zoo.cfg").write_text(
                f"tickTime={tick_ms}\ninitLimit=40\nsyncLimit=20\ndataDir={node.directory}\n"
                f"clientPort={node.port}\nclientPortAddress={node.machine.address}\nmaxClientCnxns=0\n"
                f"admin.enableServer=false\n{ensemble if len(self.nodes) > 1 else ''}"
            )

    @property
    def connect(self) -> str:
        """What `zookeeper.connect` would say."""
        return ",".join(f"{node.machine.address}:{node.port}" for node in self.nodes)

    def secure(self, certificates: Path) -> str:
        """Let it listen for TLS as well, before it starts, with zookeeper.pem and authority.pem: it asks for
        certificates. Returns what `zookeeper.connect` would say."""
        addresses = []
        for node in self.nodes:
            port = lasting_port()
            addresses.append(f"{node.machine.address}:{port}")
            with (node.directory / "zoo.cfg").open("a") as file:
                file.write(
                    f"secureClientPort={port}\nsecureClientPortAddress={node.machine.address}\n"
                    "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
                    "authProvider.x509=org.apache.zookeeper.server.auth.X509AuthenticationProvider\n"
                    f"ssl.keyStore.location={certificates / 'zookeeper.pem'}\nssl.keyStore.type=PEM\n"
                    f"ssl.trustStore.location={certificates / 'authority.pem'}\nssl.trustStore.type=PEM\n"
                )
        return ",".join(addresses)

    def start(self, *, within_s: float = 90.0) -> ZooKeeper:
        try:
            for node in self.nodes:
                node.launch()
            self.wait(within_s=within_s)
        except BaseException:
            self.close()
            raise
        return self

    def wait(self, *, within_s: float = 90.0) -> None:
        """Until every node that runs serves."""

        def all_serve() -> bool:
            return all(node.mode() for node in self.nodes if node.process is not None and node.process.running())

        try:
            until(all_serve, within_s=within_s, every_s=0.1, what="ZooKeeper to serve")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.nodes[0].running.output()[-3000:]}") from None

    def close(self) -> None:
        for node in self.nodes:
            node.close()
        shutil.rmtree(self.directory, ignore_errors=True)


@contextmanager
def running_zookeeper(nodes: int = 1) -> Iterator[ZooKeeper]:
    zookeeper = ZooKeeper(nodes).start()
    try:
        yield zookeeper
    finally:
        zookeeper.close()
