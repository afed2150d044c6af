"""One broker per file for Kafka's own tools. `SEMEL_TEST_AGAINST=kafka` runs the same tests against Apache Kafka,
which is how a test shows that it asks for what Kafka does."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.apache_kafka import ApacheKafka
from tests.support.processes import BrokerProcess
from tests.support.requirements import require_kafka


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess | ApacheKafka]:
    require_kafka()
    if os.environ.get("SEMEL_TEST_AGAINST") == "kafka":
        with ApacheKafka() as kafka:
            yield kafka
        return
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data") as semel:
        yield semel
