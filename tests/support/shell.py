"""A shell session of the documentation, run as it is written.

Two things are changed, and nothing else: a broker listens on a free port where the page says 9092, and what is printed
has 9092 again. The broker of a session ends with it.
"""

from __future__ import annotations

import doctest
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.pages import Block
from tests.support.processes import free_port
from tests.support.requirements import CHECKOUT
from tests.support.waiting import until

WRITTEN_PORT = "9092"
COMMAND_S = 90.0
_DONE = "--done--"
_MATCH = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
#: What bash says of a command that was killed: `bash:  4711 Killed     python half.py`.
_KILLED = re.compile(r"^\S*bash:(?: line \d+:)? +\d+ Killed +(.*)$")
#: Said by a Semel without its compiled loops; it changes nothing else.
_NOT_COMPILED = "the record loops run in Python"

_SEMEL = """\
#!{python}
import sys
from semel.cli import main
arguments = sys.argv[1:]
of_a_directory = arguments[:1] == ["user"] and "--data" in arguments
if {{"--config", "--command-config"}} & set(arguments) or of_a_directory:
    pass  # the file names the address, or there is none
elif arguments[:2] == ["broker", "start"] and "--listen" not in arguments:
    arguments += ["--listen", "127.0.0.1:{port}"]
elif arguments[:2] == ["pipeline", "init"]:
    from semel.spark.job import template
    template._FILE = template._FILE.replace(":9092", ":{port}")
elif arguments[:2] in (["pipeline", "check"], ["pipeline", "run"]):
    pass  # the file names the broker
elif arguments and arguments[0] in ("topic", "group", "txn", "pipeline") and "--bootstrap" not in arguments:
    arguments += ["--bootstrap", "127.0.0.1:{port}"]
main(arguments)
"""


class ShellSession:
    """One bash, its commands given one by one."""

    def __init__(self, directory: Path, tools: Path, source: Path = CHECKOUT / "src") -> None:
        self.directory = directory
        self.port = str(free_port())
        tools.mkdir()
        self._output = tools / "output"
        semel = tools / "semel"
        semel.write_text(_SEMEL.format(python=sys.executable, port=self.port))
        semel.chmod(0o755)
        path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(source), "PYTHONUNBUFFERED": "1"}
        with self._output.open("wb") as output:
            self._bash = subprocess.Popen(
                ["bash", "--norc"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=directory,
                env=environment,
                start_new_session=True,
            )
        self._commands = 0
        self._in_background: list[str] = []

    def save(self, block: Block) -> None:
        assert block.file_name is not None
        (self.directory / block.file_name).write_text(self._with_free_port(block.text))

    def run(self, block: Block) -> None:
        for command, expected in steps(block.text):
            self._run(command, expected, block.line)

    def _run(self, command: str, expected: str, line: int) -> None:
        start = self._output.stat().st_size
        self._commands += 1
        done = re.compile(rf"^{_DONE} {self._commands} (\d+)\n", re.MULTILINE)
        self._say(f"{self._with_free_port(command)}\necho {_DONE} {self._commands} $?\n")
        printed = ""

        def finished() -> re.Match[str] | None:
            nonlocal printed
            assert self._bash.poll() is None, f"line {line}: {command} ended the shell"
            printed = self._output.read_bytes()[start:].decode(errors="replace")
            return done.search(printed)

        what = f"line {line}: {command}"
        match = until(finished, within_s=COMMAND_S, what=what)
        assert match is not None
        if command.endswith("&"):
            self._in_background.append(command.removesuffix("&").strip())
            until(
                lambda: finished() and _matches(expected, self._as_written(done.sub("", printed))),
                within_s=COMMAND_S,
                what=f"{what} to print\n{expected}",
            )
            return
        printed = self._as_written(done.sub("", printed))
        if expected:
            assert _matches(expected, printed), f"{what}\nexpected:\n{expected}\nprinted:\n{printed}"
        code = 137 if expected.endswith("Killed\n") else 0
        assert int(match[1]) == code, f"{what} ended with {match[1]}:\n{printed}"

    def _say(self, text: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(text.encode())
        self._bash.stdin.flush()

    def _with_free_port(self, text: str) -> str:
        return text.replace(f":{WRITTEN_PORT}", f":{self.port}")

    def _as_written(self, printed: str) -> str:
        lines = []
        for line in printed.replace(f":{self.port}", f":{WRITTEN_PORT}").splitlines():
            killed = _KILLED.match(line)
            if killed and any(killed[1].startswith(command.split(" >")[0]) for command in self._in_background):
                continue
            if _NOT_COMPILED not in line:
                lines.append("Killed" if killed else line)
        return "".join(line + "\n" for line in lines)

    def close(self) -> None:
        """End whatever the session has started: its process group is its own."""
        try:
            os.killpg(self._bash.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._bash.wait(30)
        if self._bash.stdin is not None:
            self._bash.stdin.close()

    def __enter__(self) -> ShellSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _matches(expected: str, printed: str) -> bool:
    return doctest.OutputChecker().check_output(expected, printed, _MATCH)


def steps(session: str) -> list[tuple[str, str]]:
    """The commands of a session, each with what it is said to print."""
    found: list[tuple[str, str]] = []
    for line in session.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif found[-1][0].endswith("\\"):
            found[-1] = (f"{found[-1][0]}\n{line}", "")
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
    return found


def apply_diff(root: Path, diff: str) -> None:
    """Apply a change. A hunk is found by its text, wherever its lines are by now; `--- /dev/null` is a new file."""
    for part in re.split(r"^--- ", diff, flags=re.MULTILINE)[1:]:
        old_name, new_name = part.splitlines()[0].strip(), part.splitlines()[1].removeprefix("+++ ").strip()
        path = root / new_name.removeprefix("b/")
        hunks = re.split(r"^@@.*\n", part, flags=re.MULTILINE)[1:]
        if old_name == "/dev/null":
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(_side(hunk, "+") for hunk in hunks))
            continue
        text = path.read_text()
        for hunk in hunks:
            before = _side(hunk, "-")
            assert text.count(before) == 1, f"{new_name} has {text.count(before)} times:\n{before}"
            text = text.replace(before, _side(hunk, "+"))
        path.write_text(text)


def _side(hunk: str, sign: str) -> str:
    """The lines of a hunk before the change (`-`) or after it (`+`)."""
    return "".join(line[1:] + "\n" for line in hunk.splitlines() if line[:1] in (sign, " ", ""))
