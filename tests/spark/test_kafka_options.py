"""The settings on their way to driver and tasks: what they let through, and what they never show."""

from __future__ import annotations

import pickle
import re

import pytest

from semel.config import CONSUMER, PRODUCER, ConfigError
from semel.spark.kafka_options import (
    _NOT_OF_A_SINK,
    DEFAULT_PRODUCER,
    ClientSettings,
    ProducerOptions,
    redaction_pattern,
    secret_names,
    sink_settings,
    source_settings,
)

cloudpickle = pytest.importorskip("pyspark.cloudpickle")

SECRETS = (
    "ssl.keystore.password", "ssl.keystore.key", "ssl.keystore.certificate.chain", "ssl.key.password",
    "ssl.truststore.password", "ssl.truststore.certificates", "sasl.jaas.config", "sasl.password",
    "sasl.oauthbearer.client.secret", "ssl.ca.pem", "ssl.certificate.pem", "ssl.key.pem",
    "sasl.oauthbearer.client.credentials.client.secret",
)  # fmt: skip


def test_no_secret_is_in_the_text_of_settings() -> None:
    text = repr(ClientSettings({"sasl.username": "alice", **dict.fromkeys(SECRETS, "pssst")}))
    assert "pssst" not in text
    assert "sasl.username=alice" in text and "ssl.ca.pem=[hidden]" in text


def test_every_secret_in_every_spelling_is_hidden_by_spark_and_nothing_else() -> None:
    assert secret_names() == set(SECRETS)
    pattern = re.compile(redaction_pattern())
    assert all(pattern.search(f"kafka.{name}") for name in SECRETS)
    assert not any(pattern.search(name) for name in ("kafka.sasl.username", "subscribe", "kafka.ssl.key.location"))


def test_settings_with_a_function_are_the_same_after_a_way_to_a_task() -> None:
    """Else a Python worker would open new connections for each of its tasks."""
    word = "token"
    settings = ClientSettings({"bootstrap.servers": "h:1", "sasl.oauthbearer.token.provider": lambda: word})
    first, second = (pickle.loads(cloudpickle.dumps(settings)) for _ in range(2))
    assert first == second == settings
    assert hash(first) == hash(second)
    assert dict(first)["sasl.oauthbearer.token.provider"]() == "token"
    assert first != ClientSettings({"bootstrap.servers": "h:1", "sasl.oauthbearer.token.provider": lambda: word})


def test_settings_of_the_connection_and_of_the_producer_are_told_apart() -> None:
    settings, producer = sink_settings(
        "h:1",
        {
            "sasl.mechanisms": "PLAIN", "sasl.password": "x", "request.timeout.ms": 7, "batch.size": 5000,
            "acks": "all", "max.request.size": 9000, "buffer.memory": 1 << 20, "delivery.timeout.ms": 11,
            "max.block.ms": 13, "compression.type": "zstd", "compression.zstd.level": 19,
            "compression.gzip.level": 9,
        },
        "till",
        None,
    )  # fmt: skip
    assert dict(settings) == {
        "bootstrap.servers": "h:1", "client.id": "till", "sasl.mechanisms": "PLAIN", "sasl.password": "x",
        "request.timeout.ms": 7,
    }  # fmt: skip
    assert producer == ProducerOptions(4, 19, 5000, 9000, 1 << 20, 11, 13)
    assert sink_settings("h:1", {}, "till", "zstd")[1] == ProducerOptions(codec=4)
    assert sink_settings("h:1", {}, "till", None)[1] == DEFAULT_PRODUCER


def test_every_setting_of_a_producer_has_an_effect_or_is_refused() -> None:
    """A setting that is taken changes what goes to the connection, or to the producers."""
    # What every transaction has, and what every batch keeps to.
    values = {"acks": "all", "enable.idempotence": True, "linger.ms": 20}
    for row in PRODUCER:
        given = values.get(row.name, _another_value(row.name))
        codecs = {"compression.type": row.name.split(".")[1]} if row.name.endswith(".level") else {}
        if row.name in _NOT_OF_A_SINK:
            with pytest.raises(ConfigError, match=f"^{re.escape(row.name)}: "):
                sink_settings("h:1", {row.name: given}, "till", None)
            continue
        found = sink_settings("h:1", {**codecs, row.name: given}, "till", None)
        assert found != sink_settings("h:1", codecs, "till", None) or row.name in values, row.name


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("partitioner.class", "give the rows a column 'partition' instead"),
        ("metric.reporters", "the figures are in lastProgress"),
        ("client.dns.lookup", "every address of a name is tried: leave it out"),
        ("queue.buffering.max.ms", "its name in Kafka is linger.ms"),
        ("message.max.bytes", "its name in Kafka is max.request.size"),
    ],
)
def test_what_other_clients_have_is_refused_with_what_to_do_here(name: str, says: str) -> None:
    """Not as an unknown name, with another one that is written alike."""
    with pytest.raises(ConfigError, match=f"^{re.escape(name)}: .*{says}"):
        sink_settings("h:1", {name: "x"}, "till", None)
    with pytest.raises(ConfigError, match=f"^{re.escape(name)}: .*{says}"):
        source_settings({"bootstrap.servers": "h:1", name: "x"}, "till")


@pytest.mark.parametrize("name", ["delivery.timeout.ms", "max.block.ms", "request.timeout.ms"])
def test_no_time_at_all_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}=0: nothing is done in no time"):
        sink_settings("h:1", {name: "0"}, "till", None)


def _another_value(name: str) -> object:
    row = PRODUCER[name]
    if row.kind in ("int", "long"):
        return 7
    if row.kind == "bool":
        return not row.default
    if row.kind == "callable":
        return "module:function"
    others = [choice for choice in row.choices if choice and choice != row.default]
    return others[0] if others else "another"


def test_a_source_takes_what_a_consumer_takes() -> None:
    settings, values = source_settings({"bootstrap.servers": "h:1", "ssl.ca.location": "ca.pem"}, "till")
    assert values["ssl.truststore.location"] == "ca.pem"
    assert dict(settings)["client.id"] == "till"
    for name in ("auto.offset.reset", "enable.auto.commit"):
        with pytest.raises(ConfigError, match="has no meaning here"):
            source_settings({"bootstrap.servers": "h:1", name: str(CONSUMER[name].default)}, "till")
