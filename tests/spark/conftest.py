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

from tests.spark.session import java_options, open_session, path_of_the_code
from tests.support.requirements import connector_jars, require_spark

#: No test takes this long, and none has given up by then: a query is waited for 150 s.
_TOO_LONG_S = 120


@pytest.fixture(scope="session", autouse=True)
def every_driver_starts_quickly() -> Iterator[None]:
    """Also a driver in a process of its own, whatever program started it.

    Spark gives the options to its JVM, and the path to its Python workers.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_SUBMIT_OPTS", java_options())
        patch.setenv("PYTHONPATH", path_of_the_code())
        yield


@pytest.fixture(autouse=True)
def a_hang_names_itself(request: pytest.FixtureRequest) -> Iterator[None]:
    """After two minutes the stacks of every thread, here and in the JVM, are in the test's captured output."""
    if request.node.get_closest_marker("soak"):
        yield
        return
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
    # Spark's own Kafka connector is for the tests that put it beside ours.
    session = open_session(spark_jars=",".join(map(str, connector_jars())))
    yield session
    session.stop()
