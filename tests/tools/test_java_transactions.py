"""The Java client 4.3.1, which speaks the second version of the transaction protocol: the same as the Python clients
in tests/broker/test_client_matrix.py, told by a Java program."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from semel.broker.embedded import Broker
from semel.broker.handlers import versions
from tests.support import java_tools
from tests.support.apache_kafka import ApacheKafka
from tests.support.processes import BrokerProcess
from tests.support.requirements import require_kafka
from tests.support.sequences import refuse_first_further_batch

pytestmark = [pytest.mark.java, pytest.mark.timeout(120)]

SOURCE = Path(__file__).parent / "java" / "Transactions.java"
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess | ApacheKafka]:
    require_kafka()
    settings = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": 100}
    if os.environ.get("SEMEL_TEST_AGAINST") == "kafka":
        with ApacheKafka(settings=settings) as kafka:
            yield kafka
        return
    with BrokerProcess(tmp_path_factory.mktemp("broker") / "data", settings=settings) as running:
        yield running


def told(broker: Broker | BrokerProcess | ApacheKafka, *what: str) -> dict[str, str]:
    """What the program saw. Java runs a single source file where it expects the name of a class."""
    said = java_tools.run(str(SOURCE), broker.bootstrap_servers, *what, timeout_s=100).stdout
    return dict(line.split("=", 1) for line in said.splitlines())


def java_list(*values: str) -> str:
    return f"[{', '.join(values)}]"


def test_transactions_over_two_topics_with_every_codec_are_kept_or_dropped_whole(broker) -> None:
    everything = java_list(*(value for codec in CODECS for value in (codec, f"dropped-{codec}")))
    assert told(broker, "codecs") == {
        "one.committed": java_list(*CODECS),
        "one.everything": everything,
        "two.committed": java_list(*CODECS),
        "two.everything": everything,
    }


def test_a_second_instance_with_the_same_id_fences_the_first(broker) -> None:
    assert told(broker, "fencing") == {
        "first": "ProducerFencedException",
        "committed": "[second]",
        "everything": "[zombie, second]",
    }


def test_a_transaction_over_its_timeout_is_aborted_and_its_producer_cannot_commit_it(broker) -> None:
    assert told(broker, "timeout") == {
        "slow": "InvalidTxnStateException",
        "committed": "[]",
        "everything": "[late]",
        "later": "[again]",
    }


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_records_are_consumed_transformed_and_produced_once_with_their_offsets(broker, protocol: str) -> None:
    seen = told(broker, "copying", protocol)
    assert int(seen.pop("everything")) > 60, "an aborted part is there for who reads everything"
    assert seen == {"offset": "60", "committed": java_list(*map(str, range(60)))}


def test_a_java_producer_of_the_old_protocol_aborts_and_goes_on_when_a_reused_sequence_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No Java producer uses a sequence again, so the refusal is made, as the partition makes it."""
    require_kafka()
    monkeypatch.setitem(versions.FEATURES, "transaction.version", (0, 2, 1))
    epochs = refuse_first_further_batch(monkeypatch)
    with Broker(tmp_path) as semel:
        assert told(semel, "refused") == {
            "second": "UnknownProducerIdException",
            "commit": "refused",
            "committed": "[third]",
        }
    assert epochs[-1] > epochs[0], "it went on under a new epoch"
