"""What `semel broker start` does to its process so that no thread keeps the interpreter from the loop for long.

And what it says if it cannot start.
"""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from semel.cli.broker import take_turns_often, tidy_memory
from semel.log.checkpoints import CLEAN_SHUTDOWN

#: A collection stops every thread for as long as it looks: some milliseconds for so many objects.
MOST_LOOKED_AT = 50_000


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    thresholds, interval_s = gc.get_threshold(), sys.getswitchinterval()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    sys.setswitchinterval(interval_s)


def test_no_look_for_garbage_takes_in_all_objects_of_a_large_request() -> None:
    looked_at: list[int] = []

    def look(phase: str, info: dict[str, Any]) -> None:
        if phase == "start":
            generations = range(info["generation"] + 1)
            looked_at.append(sum(len(gc.get_objects(generation=number)) for number in generations))

    tidy_memory()
    gc.callbacks.append(look)
    try:
        # As many as the 99,000 elements of a request and of its answer are made of.
        kept = [[number] for number in range(600_000)]
    finally:
        gc.callbacks.remove(look)
    assert len(kept) == 600_000
    assert len(looked_at) > 10, "young garbage is found"
    assert max(looked_at) < MOST_LOOKED_AT


def test_a_busy_thread_gives_the_interpreter_back_soon() -> None:
    take_turns_often()
    assert sys.getswitchinterval() <= 0.001


#: Runs a broker, and says how its process was set up when it ends.
RUN = """
import gc, os, sys
from semel.cli.broker import run

def told(code, end=os._exit):
    print("set up:", sys.getswitchinterval(), *gc.get_threshold(), gc.get_freeze_count(), flush=True)
    end(code)

os._exit = told
run("127.0.0.1:0", sys.argv[1], None, [], "warning")
"""


def test_a_broker_that_runs_has_done_both_to_its_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", RUN, str(tmp_path / "data")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)[0].split("set up:")[1].split()
    take_turns_often()
    tidy_memory()
    assert float(said[0]) == sys.getswitchinterval()
    assert tuple(map(int, said[1:4])) == gc.get_threshold()
    assert int(said[4]) > 1000, "what is there at the start is not looked at again"


@pytest.mark.parametrize(
    ("option", "given", "why"),
    [
        ("--config", "{}/none.properties", "--config: cannot read {}/none.properties: No such file or directory;"),
        ("--config", "{}", "--config: cannot read {}: Is a directory; name a properties file"),
        ("--data", "", "--data is empty: give it a value, or leave it out"),
        ("--listen", "", "--listen is empty: give it a value, or leave it out"),
        ("--data", "/proc/none", "/proc/none cannot be the data directory: it cannot be made or written"),
    ],
)
def test_a_start_that_cannot_use_a_file_names_the_option_and_what_to_do(
    option: str, given: str, why: str, tmp_path: Path
) -> None:
    options = {"--data": str(tmp_path / "data"), "--listen": "127.0.0.1:0", option: given.format(tmp_path)}
    command = [sys.executable, "-m", "semel", "broker", "start", *(word for pair in options.items() for word in pair)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.startswith("semel broker: " + why.format(tmp_path)) and "Errno" not in ended.stderr


@pytest.mark.parametrize("prefix", [[], ["nohup"]], ids=["terminal", "nohup"])
def test_a_terminal_that_closes_stops_a_broker_cleanly_unless_nohup_started_it(
    prefix: list[str], tmp_path: Path
) -> None:
    command = [*prefix, sys.executable, "-m", "semel", "broker", "start"]
    options = ["--data", str(tmp_path), "--listen", "127.0.0.1:0"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "ready" in process.stdout.readline()
        process.send_signal(signal.SIGHUP)
        if prefix:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.3)
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert (tmp_path / CLEAN_SHUTDOWN).exists()


#: Runs a broker without a standard output, as where its caller has closed it, and stops it once it is ready.
WITHOUT_OUTPUT = """
import signal, sys
import semel.cli.broker as command

command._tell_about_security = lambda broker: signal.raise_signal(signal.SIGTERM)
sys.stdout = None
command.run("127.0.0.1:0", sys.argv[1], None, [], "warning")
"""
#: Runs a broker that is interrupted while it starts.
INTERRUPTED = """
import signal, sys
from semel.broker.server import BrokerServer
from semel.cli.broker import run

async def start(server):
    signal.raise_signal(signal.SIGINT)

BrokerServer.start = start
run("127.0.0.1:0", sys.argv[1], None, [], "warning")
"""


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [(WITHOUT_OUTPUT, 0, ""), (INTERRUPTED, 130, "semel broker: stopped before it was ready\n")],
    ids=["no output", "interrupted"],
)
def test_a_broker_ends_without_a_traceback(program: str, code: int, said: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", program, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (code, said)
