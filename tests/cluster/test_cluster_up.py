"""`semel cluster up` with Apache ZooKeeper: what was there is there again the next time."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

import semel
from tests.support.processes import Process, free_port
from tests.support.requirements import require_zookeeper, zookeeper_jars
from tests.support.waiting import until

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]


def up(port: int, data: Path, libs: Path) -> Process:
    options = ("--brokers", "1", "--port", str(port), "--data", str(data), "--zookeeper-libs", str(libs))
    process = Process([sys.executable, "-m", "semel", "cluster", "up", *options], name="cluster-up")
    try:
        process.wait_for_line(f"bootstrap.servers=127.0.0.1:{port}", within_s=90)
    except BaseException:
        process.close()
        raise
    return process


def test_topics_and_records_are_there_again_after_ctrl_c(tmp_path: Path) -> None:
    require_zookeeper()
    port, libs = free_port(), zookeeper_jars()[0].parent
    for offset in (0, 1):
        process = up(port, tmp_path / "data", libs)
        try:
            with semel.Producer({"bootstrap.servers": f"127.0.0.1:{port}"}) as producer:
                assert producer.send("kept", b"1").result(60).offset == offset
            process.signal(signal.SIGINT)
            assert process.wait(within_s=60) == 0, process.output()
        finally:
            process.close()


def processes_of(place: Path) -> list[int]:
    """The processes, other than the command itself, whose command line names a directory."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue  # it has ended meanwhile
        if str(place).encode() in words and b"\0up\0" not in words:
            found.append(int(entry.name))
    return found


def test_a_command_that_is_killed_leaves_nothing_running(tmp_path: Path) -> None:
    require_zookeeper()
    port, libs = free_port(), zookeeper_jars()[0].parent
    process = up(port, tmp_path / "data", libs)
    try:
        assert len(processes_of(tmp_path)) == 2, "a broker and ZooKeeper"
        process.popen.kill()
        until(lambda: not processes_of(tmp_path), within_s=60, what="the broker and ZooKeeper to end")
    finally:
        process.close()
