"""What a test needs from the machine. Under continuous integration a missing need is a failure, never a skip."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
from pathlib import Path
from typing import NoReturn

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


def kafka_libs() -> Path:
    """The directory of Apache Kafka's jars; `SEMEL_KAFKA_LIBS` names another one."""
    return Path(os.environ.get("SEMEL_KAFKA_LIBS") or CHECKOUT / ".cache" / "kafka-libs")


def class_archive() -> Path:
    """Classes of Apache Kafka in the form that a JVM maps (`tests/support/shared_classes.py`); it may be missing."""
    return kafka_libs() / "classes.jsa"


def connector_jars() -> list[Path]:
    """The jars of Spark's own Kafka connector; `SEMEL_SPARK_CONNECTOR` names another directory."""
    folder = Path(os.environ.get("SEMEL_SPARK_CONNECTOR") or CHECKOUT / ".cache" / "spark-connector")
    return sorted(folder.glob("*.jar"))


def zookeeper_jars() -> list[Path]:
    """ZooKeeper's jars; `SEMEL_ZOOKEEPER_LIBS` names another directory."""
    folder = Path(os.environ.get("SEMEL_ZOOKEEPER_LIBS") or CHECKOUT / ".cache" / "zookeeper-libs")
    return sorted(folder.glob("*.jar"))


def kafka39_jars() -> list[Path]:
    """The jars of the last Apache Kafka that runs on ZooKeeper; `SEMEL_KAFKA39_LIBS` names another directory."""
    folder = Path(os.environ.get("SEMEL_KAFKA39_LIBS") or CHECKOUT / ".cache" / "kafka39-libs")
    return sorted(folder.glob("*.jar"))


def missing(why: str) -> NoReturn:
    if os.environ.get("CI", "").lower() in ("1", "true"):
        pytest.fail(why, pytrace=False)
    pytest.skip(why)


def has_c_compiler() -> bool:
    """Whether an extension of Python could be compiled here. Semel can do without: the compiler is optional."""
    compilers = (os.environ.get("CC", "").split(" ")[0], "cc", "gcc", "clang")
    headers = Path(sysconfig.get_path("include"), "Python.h").exists()
    return headers and any(name and shutil.which(name) for name in compilers)


def require_java() -> None:
    if os.environ.get("SEMEL_TESTS_WITHOUT_JAVA"):
        pytest.skip("make quick leaves out what needs Java; make test runs it")
    if shutil.which("java") is None:
        missing("Java is not on PATH: make java")


def require_kafka() -> None:
    require_java()
    if not any(kafka_libs().glob("kafka_2.13-*.jar")):
        missing(f"Apache Kafka's jars are not in {kafka_libs()}: make kafka")


def require_zookeeper() -> None:
    require_java()
    if not zookeeper_jars():
        missing("Apache ZooKeeper's jars are not in .cache/zookeeper-libs: make zookeeper")


def require_kafka39() -> None:
    require_zookeeper()
    if not kafka39_jars():
        missing("the jars of Apache Kafka 3.9 are not in .cache/kafka39-libs: make kafka39")


def require_spark() -> None:
    require_java()
    if importlib.util.find_spec("pyspark") is None:
        missing("PySpark is not installed: make setup")


def require_connector() -> None:
    """Spark's own Kafka connector, for what is compared with it."""
    require_spark()
    if not connector_jars():
        missing("the jars of Spark's Kafka connector are not in .cache/spark-connector: make connector")


def require_go() -> None:
    if shutil.which("go") is None:
        missing("Go is not on PATH: make go")
