"""Time, chance, ids, threads and files come from outside: no code but these few asks the operating system itself.

Otherwise the simulation (`semel.simulation`) could not decide them, and what it proves would not hold for that code.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "semel"

#: Rooms that are not simulated: commands, the pipeline on Spark, test tools, and the simulation itself.
NOT_SIMULATED = ("cli", "spark", "testing", "simulation")
#: Files that may, and why.
MAY: dict[str, str] = {
    "environment.py": "the one place",
    "log/files.py": "the disk",
    "broker/embedded.py": "a broker in another program: a real thread, a real directory",
    "broker/embedded_security.py": "the same",
    "client/finalizers.py": "waits for threads when a program ends",
    "client/blocking/loop_thread.py": "the thread of a blocking client",
    "client/producer/delivery.py": "a blocking wait on another thread",
    "security/token_endpoint.py": "a blocking request to a server of tokens, on a thread",
    "broker/security/key_source.py": "keys of issuers: another server, asked on a thread; a file that others write",
    "broker/security/plain.py": "a file of passwords that others write",
    "broker/tls_listeners.py": "certificates that others write",
    "security/tls.py": "certificates that others write",
    "security/development.py": "certificates for trying things out",
}
#: What is not to be called, by the name that it has in the code.
FORBIDDEN = {
    "time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns",
    "time.sleep", "uuid.uuid1", "uuid.uuid4", "os.urandom", "open", "os.open", "os.stat", "os.listdir", "os.scandir",
    "os.replace", "os.rename", "os.unlink", "os.fsync", "os.makedirs", "shutil.rmtree", "shutil.disk_usage",
    "datetime.now", "datetime.utcnow", "ThreadPoolExecutor", "Thread", "threading.Thread",
}
FORBIDDEN_OF_RANDOM = "random."
#: Methods of paths that touch the disk.
OF_PATHS = {
    "exists", "iterdir", "mkdir", "glob", "rglob", "read_bytes", "read_text", "write_bytes", "write_text", "is_dir",
    "is_file", "unlink", "touch",
}
#: What those that are given are called.
FILES_GIVEN = ("files.", "self._files.", "self.files.", "log.files.", "self._logs.files.", "broker.files.")
FILES = sorted(
    path for path in SOURCE.glob("**/*.py") if path.relative_to(SOURCE).parts[0] not in NOT_SIMULATED
)


def uses(path: Path) -> Iterator[tuple[int, str]]:
    """Every forbidden use in a file."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in FORBIDDEN or called.startswith(FORBIDDEN_OF_RANDOM):
                yield node.lineno, called
            method = called.rpartition(".")[2]
            of_files = called.startswith(FILES_GIVEN)
            of_znodes = called.endswith("session.exists")  # a session with ZooKeeper, which is given too
            if isinstance(node.func, ast.Attribute) and method in OF_PATHS and not of_files | of_znodes:
                yield node.lineno, called
        elif isinstance(node, ast.ImportFrom) and node.module in ("random", "time", "secrets", "uuid"):
            for alias in node.names:
                if alias.name not in ("UUID", "Random"):
                    yield node.lineno, f"{node.module}.{alias.name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_no_code_asks_the_operating_system_for_time_chance_ids_or_files(path: Path) -> None:
    if str(path.relative_to(SOURCE)) not in MAY:
        found = [f"line {line}: {what}" for line, what in uses(path)]
        assert found == [], "take it from the `Environment` or the `Files` that this code is given"


def test_every_exception_is_still_needed() -> None:
    unused = [name for name in MAY if not any(uses(SOURCE / name))]
    assert unused == []
