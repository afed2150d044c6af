"""One Spark session for all the tests of a process: starting one takes longer than most tests."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.requirements import CHECKOUT, connector_jars, require_spark

#: No test takes this long, and none has given up by then: a query is waited for 150 s.
_TOO_LONG_S = 120


@pytest.fixture(autouse=True)
def a_hang_names_itself() -> Iterator[None]:
    """After two minutes the stacks of every thread, here and in the JVM, are in the test's captured output."""
    faulthandler.dump_traceback_later(_TOO_LONG_S, file=2)
    timer = threading.Timer(_TOO_LONG_S, _print_stacks_of_the_jvm)
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()
    faulthandler.cancel_dump_traceback_later()


def _print_stacks_of_the_jvm() -> None:
    context = sys.modules["pyspark"].SparkContext if "pyspark" in sys.modules else None
    if context is not None and context._gateway is not None and context._gateway.proc is not None:
        os.kill(context._gateway.proc.pid, signal.SIGQUIT)  # a JVM prints its stacks at this, and runs on


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A local session with two cores and the semel source registered."""
    require_spark()
    from pyspark.sql import SparkSession

    from semel.spark import register

    os.environ["PYSPARK_PYTHON"] = sys.executable
    source = str(CHECKOUT / "src")  # the tasks' interpreters must find the code under test too
    os.environ["PYTHONPATH"] = os.pathsep.join(part for part in (source, os.environ.get("PYTHONPATH")) if part)
    session = (
        SparkSession.builder.master("local[2]")
        .appName("semel-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        # On a busy machine a worker may take longer than 15 s to be let in.
        .config("spark.python.authenticate.socketTimeout", "120s")
        # Short runs gain nothing from the second compiler, and two cores have better things to do.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        # Spark's own Kafka connector, for the tests that put it beside ours.
        .config("spark.jars", ",".join(map(str, connector_jars())))
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    session.stop()
