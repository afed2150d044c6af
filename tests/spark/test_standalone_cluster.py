"""docs/spark-cluster.md on a real standalone cluster: a master and two workers, each a process of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import semel
from tests.spark.stage import Stage
from tests.support.pages import blocks_of
from tests.support.processes import Process, free_port
from tests.support.requirements import CHECKOUT, require_spark

pytestmark = [pytest.mark.spark, pytest.mark.soak, pytest.mark.timeout(1800)]

PAGE = CHECKOUT / "docs" / "spark-cluster.md"
SMALL = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"


def spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The master's address, when two workers have registered."""
    require_spark()
    environment = {"SPARK_HOME": str(spark_home()), "SPARK_DAEMON_JAVA_OPTS": SMALL, "SPARK_LOCAL_IP": "127.0.0.1"}
    spark_class = str(spark_home() / "bin" / "spark-class")
    port = free_port()
    with ExitStack() as stack:
        command = [spark_class, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port),
                   "--webui-port", "0"]  # fmt: skip
        running = stack.enter_context(Process(command, name="master", environment=environment, directory=tmp_path))
        running.wait_for_line("I have been elected leader", within_s=120)
        for number in range(2):
            place = tmp_path / f"worker-{number}"
            place.mkdir()
            command = [spark_class, "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--cores", "1",
                       "--memory", "1g", "--webui-port", "0", "--work-dir", str(place),
                       f"spark://127.0.0.1:{port}"]  # fmt: skip
            worker = Process(command, name=f"worker-{number}", environment=environment, directory=place)
            stack.enter_context(worker).wait_for_line("Successfully registered with master", within_s=120)
        yield f"spark://127.0.0.1:{port}"


@pytest.fixture
def environment_archive(tmp_path: Path) -> Path:
    """What the page's commands make: a packed environment with Semel's wheel in it."""
    commands = [block.text for block in blocks_of(PAGE) if "venv-pack -p" in block.text]
    place = tmp_path / "sources"
    leave_out = shutil.ignore_patterns("*.so", "*.c", "*.egg-info", "__pycache__")
    shutil.copytree(CHECKOUT / "src", place / "src", ignore=leave_out)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, place)
    # The executors have PySpark from their Spark, and the package of today is not in any index.
    script = (
        commands[0].replace("'semel[spark]'", f"{place} pyarrow 'pandas<3'").replace("python3 ", f"{sys.executable} ")
    )
    run(script, tmp_path)
    checked = run(f"environment/bin/python {CHECKOUT}/scripts/check-wheel", tmp_path)
    assert "compiled, and a transaction was read back" in checked
    return tmp_path / "environment.tar.gz"


def run(script: str, directory: Path, **environment: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYSPARK_PYTHON")}
    done = subprocess.run(
        ["bash", "-euc", script], cwd=directory, capture_output=True, text=True, timeout=900,
        env={**kept, "SPARK_HOME": str(spark_home()), **environment},
    )  # fmt: skip
    assert done.returncode == 0, f"{script}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout + done.stderr


def test_the_job_of_the_page_runs_on_two_workers_packed_and_without_a_compiler(
    master: str, environment_archive: Path, semel_broker: semel.Broker, tmp_path: Path
) -> None:
    stage = Stage(None, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=4, ledger=4)
    program = next(block for block in blocks_of(PAGE) if block.file_name == "ledger.py")
    (tmp_path / "ledger.py").write_text(program.text)
    submit = next(block.text for block in blocks_of(PAGE) if "--master spark://" in block.text)
    submit = submit.replace("spark://master:7077", master).replace("7099", str(free_port()))
    submit = submit.replace("localhost:9092", stage.bootstrap_servers)
    submit = submit.replace("/data/checkpoints/ledger", stage.checkpoint)
    submit = submit.replace("spark-submit ", f"{spark_home()}/bin/spark-submit --conf spark.driver.host=127.0.0.1 ")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    driver = {"PATH": path, "PYSPARK_DRIVER_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}

    values = stage.put_numbers(400)
    said = run(submit, tmp_path, **driver)
    assert "plain Python" not in said
    assert sorted(stage.values()) == values
    assert len(executors_of(tmp_path)) == 2, "both workers had a part in it"

    # The driver is started again, and this time the executors' Semel was installed without a compiler.
    more = [b"more %04d" % number for number in range(100)]
    stage.put("payments", [(value, value) for value in more])
    for compiled in (tmp_path / "environment").rglob("_speedups*.so"):
        compiled.unlink()
    bare = re.sub(r"--archives \S+ ", "", submit[submit.index("cd environment.d") :])
    bare = bare.replace("./environment/bin/python", str(tmp_path / "environment" / "bin" / "python"))
    said = run(bare, tmp_path, **driver)
    assert said.count("runs the record loops in plain Python") == 1, said[-3000:]
    assert sorted(stage.values()) == sorted([*values, *(value.upper() for value in more)])


def executors_of(folder: Path) -> set[str]:
    """The workers in whose folders an application has left something."""
    return {path.parts[-3] for path in folder.glob("worker-*/app-*/*")}
