"""Fixtures that any room's tests may ask for. `semel_broker` itself comes from the product, as users get it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.apache_kafka import ApacheKafka
from tests.support.long_files import LONG_FILES
from tests.support.processes import BrokerProcess
from tests.support.requirements import require_kafka

# Tests share the machine: how long an example takes, or takes to be made up, says nothing about the code.
settings.register_profile("semel", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("semel")

# A shell without job control starts what runs in the background with SIGINT ignored, and children inherit that: tests
# that interrupt a child would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

#: Seconds for a test that starts a JVM, where it does not say so itself: on a busy machine each one takes its time.
JVM_TIMEOUT_S = 240


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONG_FILES)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        needs_jvm = item.get_closest_marker("java") or {"apache_kafka", "kafka_jars"} & set(fixtures)
        if needs_jvm and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(JVM_TIMEOUT_S))


#: Where `scripts/run_tests.py` wants the names of the tests that failed. Taken away, or a pytest that is started by a
#: test would write there too.
_FAILED_TESTS = os.environ.pop("SEMEL_FAILED_TESTS", None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which tests failed, and what each of them said last."""
    if _FAILED_TESTS:
        found = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
        with Path(_FAILED_TESTS).open("a") as file:
            for report in found:
                crash = getattr(report.longrepr, "reprcrash", None)
                why = str(getattr(crash, "message", report.longrepr)).strip().partition("\n")[0]
                file.write(f"FAILED {report.nodeid}: {why[:200]}\n")


@pytest.fixture(scope="session")
def apache_kafka() -> Iterator[ApacheKafka]:
    """Apache Kafka 4.3.1, one broker, started once."""
    require_kafka()
    with ApacheKafka() as kafka:
        yield kafka


@pytest.fixture
def kafka_jars() -> None:
    """For tests that run Apache Kafka's tools: skips, or fails under continuous integration, where they are missing."""
    require_kafka()


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A Semel broker in a process of its own, started and ready; it may be killed and started again."""
    with BrokerProcess(tmp_path / "data") as broker:
        yield broker
