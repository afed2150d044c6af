"""A Spark session for tests, and for the drivers that tests run in processes of their own and kill."""

from __future__ import annotations

import os
import sys
from typing import Any

from tests.support.requirements import CHECKOUT

#: Made by `make test`: a JVM that finds Spark's classes there starts in half the time.
CLASSES = CHECKOUT / ".cache" / "spark-classes.jsa"
#: On the path of a Python that starts for Spark: it has a `sitecustomize`, which says what for.
QUICK_START = CHECKOUT / "tests" / "spark" / "quick_start"


def java_options() -> str:
    # Short runs gain nothing from the second compiler, and two cores have better things to do.
    options = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    return f"{options} -XX:SharedArchiveFile={CLASSES} -Xlog:cds=off" if CLASSES.exists() else options


def path_of_the_code() -> str:
    """PYTHONPATH for a process that needs the code under test, and these tests."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    parts = (str(CHECKOUT / "src"), str(CHECKOUT), str(QUICK_START), *given)
    return os.pathsep.join(dict.fromkeys(part for part in parts if part))


def open_session(master: str = "local[2]", **configuration: str) -> Any:
    """A session with the semel source registered; names in `configuration` have underscores for dots."""
    from pyspark.sql import SparkSession

    from semel.spark import register

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = path_of_the_code()  # the tasks' interpreters must find the code under test too
    builder = (
        SparkSession.builder.master(master)
        .appName("semel-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        # On a busy machine a worker may take longer than 15 s to be let in.
        .config("spark.python.authenticate.socketTimeout", "120s")
        .config("spark.driver.extraJavaOptions", java_options())
        .config("spark.python.unix.domain.socket.enabled", "true")  # 40 ms less for each task, see docs/spark.md
    )
    for name, value in configuration.items():
        builder = builder.config(name.replace("_", "."), value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    register(session)
    return session
