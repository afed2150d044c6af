"""One Spark session for all the tests of a process: starting one takes longer than most tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.requirements import CHECKOUT, require_spark


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
        # Short runs gain nothing from the second compiler, and two cores have better things to do.
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    register(session)
    yield session
    session.stop()
