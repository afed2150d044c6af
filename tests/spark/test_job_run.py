"""`semel pipeline run` as a process: killed, told to stop, fenced, started again; and what a supervisor sees of it."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import semel
from tests.spark.driver import Driver
from tests.spark.session import path_of_the_code
from tests.spark.stage import Stage
from tests.support.processes import Process
from tests.support.requirements import require_spark
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.timeout(500)]

FILE = """\
transactional_id = "pipeline"
checkpoint = "checkpoint"
[kafka]
bootstrap.servers = "{broker}"
[source.payments]
subscribe = "payments"
startingOffsets = "earliest"
maxOffsetsPerTrigger = 20
[transform]
function = "shout:shout"
[output.ledger]
[trigger]
{trigger}
[spark]
master = "local[2]"
sql.shuffle.partitions = 2
python.authenticate.socketTimeout = "120s"
driver.extraJavaOptions = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""
TRANSFORM = "def shout(payments):\n    return payments.selectExpr('key', 'value')\n"
ALL_THERE_IS, FOR_EVER = "available_now = true", 'processing_time = "100 milliseconds"'


class Runs:
    """Processes of `semel pipeline run` on one file."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self._all: list[Process] = []
        (stage.folder / "shout.py").write_text(TRANSFORM)

    def start(self, trigger: str, broker: str | None = None) -> Process:
        path = self.stage.folder / "pipeline.toml"
        path.write_text(FILE.format(broker=broker or self.stage.bootstrap_servers, trigger=trigger))
        command = [sys.executable, "-m", "semel", "pipeline", "run", str(path)]
        environment = {"PYTHONPATH": path_of_the_code()}
        self._all.append(Process(command, name="pipeline-run", environment=environment, separate_stderr=True))
        return self._all[-1]

    def close(self) -> None:
        for process in self._all:
            process.__exit__(None, None, None)


@pytest.fixture
def runs(semel_broker: semel.Broker, tmp_path: Path) -> Iterator[Runs]:
    require_spark()
    stage = Stage(None, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=1, ledger=1)
    made = Runs(stage)
    yield made
    made.close()


def test_killed_in_the_middle_then_told_to_stop_then_started_again_it_writes_each_row_once(runs: Runs) -> None:
    values = runs.stage.put_numbers(400)
    first = runs.start(ALL_THERE_IS)
    first.wait_for_line(r"batch 2 committed", within_s=150)
    first.kill9()
    second = runs.start(FOR_EVER)
    second.wait_for_line(r"batch [4-9] committed", within_s=150)
    os.kill(second.process_id, signal.SIGTERM)
    assert second.wait(within_s=100) == 0, second.output() + second.errors()
    lines = second.lines()
    assert "stopping after this micro-batch" in second.output()
    # A Python worker of Spark's may complain that the JVM has left before it. Nothing of ours does.
    assert " stopped: " in lines[-1]
    assert not re.search(r"/semel/(spark|client|cli)/", second.errors()), second.errors()
    third = runs.start(ALL_THERE_IS)
    assert third.wait(within_s=150) == 0, third.output() + third.errors()
    assert " done: " in third.lines()[-1]
    batches = [line for line in third.lines() if "committed" in line]
    assert "lag 0" in batches[-1] and "20 rows in" in batches[-1] and "commit " in batches[-1]
    assert sorted(runs.stage.values()) == values, "no row is lost, none is there twice"
    stopped_at = sum("committed" in line or "skipped" in line for line in lines)
    assert stopped_at > 0 and not any("skipped" in line for line in third.lines()), (
        "a clean stop leaves nothing to redo"
    )


def test_it_stops_at_once_at_the_second_signal_and_leaves_no_process(runs: Runs) -> None:
    (runs.stage.folder / "shout.py").write_text(
        "import time\n"
        "from pyspark.sql.functions import udf\n"
        "@udf('binary')\ndef slowly(value):\n    time.sleep(60)\n    return value\n"
        "def shout(payments):\n    return payments.select('key', slowly('value').alias('value'))\n"
    )
    runs.stage.put_numbers(10)
    process = runs.start(FOR_EVER)
    process.wait_for_line("pipeline runs:", within_s=150)
    until(lambda: (runs.stage.folder / "checkpoint" / "offsets" / "0").exists(), within_s=100, what="a micro-batch")
    os.kill(process.process_id, signal.SIGINT)
    process.wait_for_line("a second signal stops at once", within_s=30)
    os.kill(process.process_id, signal.SIGTERM)
    assert process.wait(within_s=20) == 128 + signal.SIGTERM
    assert runs.stage.values() == []


def test_a_successor_ends_it_with_a_code_of_its_own(runs: Runs) -> None:
    runs.stage.put_numbers(20)
    process = runs.start(FOR_EVER)
    process.wait_for_line("batch 0 committed", within_s=150)
    successor = Driver(runs.stage.bootstrap_servers)
    try:
        successor.begin()
        runs.stage.put_numbers(20)
        assert process.wait(within_s=100) == 3, process.output() + process.errors()
    finally:
        successor.close()
    assert "fenced: batch 1: another driver has taken over" in process.lines()[-1]


def test_a_broker_that_is_away_ends_it_with_the_code_for_another_try(runs: Runs) -> None:
    process = runs.start(ALL_THERE_IS, broker="127.0.0.1:1")
    assert process.wait(within_s=200) == 1, process.output()
    assert "127.0.0.1:1" in process.lines()[-1] and len(process.lines()[-1]) < 600


def test_a_mistake_in_the_transform_is_one_line_and_no_stack_trace(runs: Runs) -> None:
    (runs.stage.folder / "shout.py").write_text("def shout(payments):\n    return payments.selectExpr('keys')\n")
    process = runs.start(ALL_THERE_IS)
    assert process.wait(within_s=200) == 2, process.output() + process.errors()
    assert "`keys` cannot be resolved" in process.lines()[-1]
    assert "cannot be resolved" not in process.errors()


def test_a_row_that_can_never_be_written_and_a_foreign_checkpoint_need_a_person(runs: Runs) -> None:
    shout = "payments.selectExpr('key', 'value', 'int(string(value)) as partition')"
    (runs.stage.folder / "shout.py").write_text(f"def shout(payments):\n    return {shout}\n")
    runs.stage.put("payments", [(b"k", b"0"), (b"k", b"7")])
    process = runs.start(ALL_THERE_IS)
    assert process.wait(within_s=200) == 4, process.output() + process.errors()
    assert "stuck: the column 'partition' says 7, and topic 'ledger' has partitions 0 to 0" in process.lines()[-1]


def test_a_row_that_the_transform_cannot_take_needs_a_person_too(runs: Runs) -> None:
    (runs.stage.folder / "shout.py").write_text(
        "from pyspark.sql.functions import udf\n"
        "@udf('string')\ndef divide(value):\n    return str(7 // int(value))\n"
        "def shout(payments):\n    return payments.select('key', divide('value').alias('value'))\n"
    )
    runs.stage.put("payments", [(b"k", b"7"), (b"k", b"0")])
    process = runs.start(ALL_THERE_IS)
    assert process.wait(within_s=200) == 4, process.output() + process.errors()
    said = "stuck: the query's own code raised ZeroDivisionError: integer division or modulo by zero (shout.py:4)"
    assert said in process.lines()[-1]
    assert runs.stage.values() == []


def test_on_a_terminal_the_line_of_the_running_micro_batch_is_replaced(runs: Runs) -> None:
    runs.stage.put_numbers(20)
    path = runs.stage.folder / "pipeline.toml"
    path.write_text(FILE.format(broker=runs.stage.bootstrap_servers, trigger=ALL_THERE_IS))
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "semel", "pipeline", "run", str(path)]
    environment = {**os.environ, "PYTHONPATH": path_of_the_code()}
    process = subprocess.Popen(
        command, stdout=theirs, stderr=subprocess.DEVNULL, stdin=theirs, env=environment, start_new_session=True
    )
    os.close(theirs)
    said = b""
    try:
        while True:
            try:
                piece = os.read(ours, 4096)
            except OSError:  # a terminal without anybody at its other end
                break
            if not piece:
                break
            said += piece
        assert process.wait(30) == 0
    finally:
        os.close(ours)
        process.kill()
        process.wait()
    text = said.decode()
    assert "\r\x1b[2Kbatch 0: writing" in text and "\r\x1b[2Kbatch 0 committed: 20 rows in" in text
