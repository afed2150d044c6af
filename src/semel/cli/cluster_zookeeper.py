"""Apache ZooKeeper as a child process, for `semel cluster up` where Java and ZooKeeper's jars are there."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

import click

from semel.testing.watchdog import Watchdog

START_TIMEOUT_S = 60.0
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"


class JavaZooKeeper:
    """One node, with its data and log in a directory."""

    def __init__(self, java: str, jars: list[Path]) -> None:
        self._java = java
        self._jars = jars
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog = Watchdog()

    @classmethod
    def found(cls, libs: str | None) -> JavaZooKeeper | None:
        """None without jars. Jars without Java are an error: somebody asked for them."""
        if libs is None:
            return None
        jars = sorted(Path(libs).glob("*.jar"))
        if not any(jar.name.startswith("zookeeper-") for jar in jars):
            raise click.UsageError(f"--zookeeper-libs {libs}: there is no zookeeper-*.jar")
        java = shutil.which("java")
        if java is None:
            raise click.UsageError("--zookeeper-libs: Java is not on PATH")
        return cls(java, jars)

    def start(self, directory: Path) -> str:
        """Start it, and return what `zookeeper.connect` says once it serves."""
        directory.mkdir(parents=True, exist_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        config = directory / "zoo.cfg"
        config.write_text(
            f"tickTime=500\ndataDir={directory.resolve()}\nclientPort={port}\nclientPortAddress=127.0.0.1\n"
            "maxClientCnxns=0\nadmin.enableServer=false\n"
        )
        words = [self._java, "-Xmx128m", "-XX:+UseSerialGC", "-cp", os.pathsep.join(map(str, self._jars))]
        with (directory / "server.log").open("ab") as out:
            # A session of its own: Ctrl-C is for us, and we stop it after the brokers.
            self._process = subprocess.Popen(
                [*words, MAIN, str(config)], stdout=out, stderr=subprocess.STDOUT, start_new_session=True
            )
        self._watchdog.watch(self._process.pid)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _serves(port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise click.ClickException(f"ZooKeeper did not start: see {directory / 'server.log'}")
            time.sleep(0.1)
        return f"127.0.0.1:{port}"

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process is not None:
            self._watchdog.forget(self._process.pid)
        self._watchdog.close()


def _serves(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 2) as connection:
            connection.sendall(b"srvr")
            return b"Mode:" in b"".join(iter(lambda: connection.recv(4096), b""))
    except OSError:
        return False
