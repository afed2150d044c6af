"""Child processes of tests and benches: their output is kept, their end is certain, and they can be killed hard.

A process is started in its own session and ended with its whole group, so nothing is left running whatever a test
does. Output goes to a file, so that a child never waits for a reader.
"""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.requirements import CHECKOUT
from tests.support.waiting import until

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


#: Ports that were given away: none is given twice, also if its server has not begun to listen.
_given: set[int] = set()


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listened on a moment ago."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in _given:
            _given.add(port)
            return port


def lasting_port(count: int = 1) -> int:
    """A port of 127.0.0.1 for a server that may be away for a while: no connection gets it as its own meanwhile.

    Linux takes those from 32768 on, and so `free_port` does. With `count` it is the first of so many.
    """
    while True:
        first = random.randrange(12_000, 32_000)
        ports = range(first, first + count)
        if _given.isdisjoint(ports) and all(map(_is_free, ports)):
            _given.update(ports)
            return first


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Process:
    """A running child with its output in a file."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        name: str,
        environment: Mapping[str, str] | None = None,
        output: Path | None = None,
        directory: Path | None = None,
        stdin: bytes | None = None,
        separate_stderr: bool = False,
    ) -> None:
        self.name = name
        self.command = list(command)
        if output is None:
            handle, path = tempfile.mkstemp(prefix=f"{name}-", suffix=".log")
            os.close(handle)
            output = Path(path)
            self._owns_output = True
        else:
            self._owns_output = False
        self.output_path = output
        self.error_path = output.with_name(output.name + ".err") if separate_stderr else output
        self.started_at = time.monotonic()
        with output.open("ab") as out, self.error_path.open("ab") as err:
            self.popen = subprocess.Popen(
                self.command,
                stdout=out,
                stderr=err if separate_stderr else subprocess.STDOUT,
                stdin=subprocess.PIPE if stdin is not None else subprocess.DEVNULL,
                env={**os.environ, **(environment or {})},
                cwd=directory,
                start_new_session=True,
            )
        if stdin is not None:
            assert self.popen.stdin is not None
            self.popen.stdin.write(stdin)
            self.popen.stdin.close()

    @property
    def process_id(self) -> int:
        return self.popen.pid

    def running(self) -> bool:
        return self.popen.poll() is None

    def output(self) -> str:
        return self.output_path.read_text(errors="replace")

    def errors(self) -> str:
        return self.error_path.read_text(errors="replace")

    def lines(self) -> list[str]:
        return self.output().splitlines()

    def wait_for_line(self, pattern: str, *, within_s: float = 30.0) -> str:
        """The first line of output that `pattern` is found in; fails at once when the process ends without it."""
        search = re.compile(pattern).search

        def found() -> str | None:
            alive = self.running()
            match = next((line for line in self.lines() if search(line)), None)
            if match is None and not alive:
                raise AssertionError(f"{self.name} ended with {self.popen.returncode}:\n{self._last_words()}")
            return match

        try:
            line = until(found, within_s=within_s, what=f"{self.name} to say {pattern!r}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._last_words()}") from None
        assert line is not None
        return line

    def wait(self, *, within_s: float = 60.0) -> int:
        try:
            return self.popen.wait(within_s)
        except subprocess.TimeoutExpired:
            self.kill9()
            raise AssertionError(f"{self.name} still ran after {within_s:g} s:\n{self._last_words()}") from None

    def signal(self, number: int) -> None:
        if self.running():
            os.killpg(self.popen.pid, number)

    def kill9(self) -> None:
        """The whole group, at once, without a word: what a power cut does to a process."""
        self.signal(signal.SIGKILL)
        self.popen.wait(30)

    def terminate(self, *, within_s: float = 30.0) -> int:
        self.signal(signal.SIGTERM)
        return self.wait(within_s=within_s)

    def close(self) -> None:
        if self.running():
            self.signal(signal.SIGTERM)
            try:
                self.popen.wait(5)
            except subprocess.TimeoutExpired:
                self.kill9()
        if self._owns_output:
            self.output_path.unlink(missing_ok=True)
            self.error_path.unlink(missing_ok=True)

    def cpu_s(self) -> float:
        """CPU seconds used so far, user and system (Linux)."""
        fields = Path(f"/proc/{self.process_id}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S

    def resident_bytes(self) -> int:
        fields = Path(f"/proc/{self.process_id}/statm").read_text().split()
        return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")

    def _last_words(self) -> str:
        words = self.output()
        if self.error_path != self.output_path:
            words += self.errors()
        return words[-4000:]

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BrokerProcess:
    """A Semel broker in a process of its own: start, kill -9, start again on the same data and port."""

    def __init__(
        self,
        data: Path,
        *,
        settings: Mapping[str, object] | None = None,
        port: int | None = None,
        module: str = "semel",
        log_level: str = "warning",
    ) -> None:
        self.data = data
        self.log_level = log_level
        self.module = module
        self.settings = dict(settings or {})
        self.port = port or free_port()
        self.process: Process | None = None
        self.log_path = data.parent / f"{data.name}.broker.log"

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def running(self) -> Process:
        assert self.process is not None, "the broker was not started"
        return self.process

    def start(self, *, within_s: float = 30.0) -> BrokerProcess:
        """Returns when the broker has said that it is ready."""
        self.launch()
        self.running.wait_for_line(re.escape(self.bootstrap_servers), within_s=within_s)
        return self

    def launch(self) -> Process:
        """Starts the process and does not wait for it."""
        assert self.process is None or not self.process.running(), "already running"
        self.data.mkdir(parents=True, exist_ok=True)
        if self.log_path.exists():
            self.log_path.rename(self.log_path.with_suffix(f".{time.time_ns()}.log"))
        options = [option for name, value in self.settings.items() for option in ("--set", f"{name}={value}")]
        command = [sys.executable, "-m", self.module, "broker", "start"]
        if "listeners" not in self.settings:
            command += ["--listen", self.bootstrap_servers]
        command += ["--data", str(self.data), "--log-level", self.log_level, *options]
        source = str(CHECKOUT / "src")
        path = os.pathsep.join(part for part in (source, str(CHECKOUT), os.environ.get("PYTHONPATH")) if part)
        environment = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
        self.process = Process(command, name="semel-broker", environment=environment, output=self.log_path)
        return self.process

    def kill9(self) -> None:
        self.running.kill9()

    def stop(self) -> int:
        """A clean stop; the exit code."""
        return self.running.terminate()

    def restart(self) -> BrokerProcess:
        if self.process is not None and self.process.running():
            self.stop()
        return self.start()

    def close(self) -> None:
        if self.process is not None:
            self.process.close()

    def __enter__(self) -> BrokerProcess:
        if self.process is None:
            try:
                self.start()
            except BaseException:
                self.close()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
