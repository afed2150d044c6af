"""The client behind Apache Kafka's locks: each mechanism, over TLS and plain, and each way to get it wrong."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from typing import Any

import pytest

import semel
from semel.client.cluster.broker_connections import BrokerConnections
from semel.errors import AuthenticationFailed, TlsFailed
from tests.security.conftest import PASSWORD, USER, Locks, unsecured_token
from tests.support.waiting import until

pytestmark = pytest.mark.java

WAYS = [
    ("SSL", None),
    ("MUTUAL", None),
    *((listener, mechanism)
      for listener in ("SASL_PLAINTEXT", "SASL_SSL")
      for mechanism in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")),
]


@pytest.fixture
def topic(locked_kafka: Locks) -> str:
    name = f"locked-{uuid.uuid4().hex[:8]}"
    with semel.Admin({"bootstrap.servers": locked_kafka.plaintext}) as admin:
        admin.create_topics([semel.NewTopic(name, 2)])
    return name


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_a_transaction_goes_through_every_lock(
    locked_kafka: Locks, topic: str, listener: str, mechanism: str | None
) -> None:
    settings = locked_kafka.settings(listener, mechanism)
    with semel.Producer({**settings, "transactional.id": f"id-{topic}"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        for number in range(10):
            producer.send(topic, key=b"k", value=b"%d" % number)
        producer.commit_transaction()
    group = {"group.id": f"group-{topic}", "auto.offset.reset": "earliest"}
    with semel.Consumer({**settings, **group}) as consumer:
        consumer.subscribe([topic])
        found: list[bytes | None] = []
        deadline = time.monotonic() + 30
        while len(found) < 10 and time.monotonic() < deadline:
            found += [record.value for record in consumer.poll(1000)]
        consumer.commit()
    assert found == [b"%d" % number for number in range(10)]


def seconds_of(call: object, error: type[Exception]) -> tuple[float, str]:
    began = time.monotonic()
    with pytest.raises(error) as raised:
        call()  # type: ignore[operator]
    return time.monotonic() - began, str(raised.value)


def ask(settings: dict[str, object]) -> None:
    with semel.Admin({"default.api.timeout.ms": 40_000, **settings}) as admin:
        admin.list_topics()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_wrong_password_is_told_at_once_and_not_repeated(locked_kafka: Locks, mechanism: str) -> None:
    took_s, text = seconds_of(
        lambda: ask(locked_kafka.settings("SASL_PLAINTEXT", mechanism, sasl_password="wrong-secret")),
        AuthenticationFailed,
    )
    assert took_s < 30  # far from the 50 s that it may take
    assert "SASL_AUTHENTICATION_FAILED" in text
    assert "wrong-secret" not in text


def test_a_token_that_has_expired_is_told_with_the_brokers_reason(locked_kafka: Locks) -> None:
    settings = locked_kafka.settings("SASL_PLAINTEXT", "OAUTHBEARER")
    settings["sasl.oauthbearer.token.provider"] = lambda: unsecured_token(lifetime_s=-100)
    _, text = seconds_of(lambda: ask(settings), AuthenticationFailed)
    assert "refuses the token" in text


def test_a_provider_that_fails_or_returns_nonsense_is_told_as_itself(locked_kafka: Locks) -> None:
    settings = locked_kafka.settings("SASL_PLAINTEXT", "OAUTHBEARER")

    def broken() -> str:
        raise RuntimeError("no key for the signer")

    for provider, expected in ((broken, "RuntimeError: no key for the signer"), (lambda: None, "returned no token")):
        settings["sasl.oauthbearer.token.provider"] = provider
        _, text = seconds_of(lambda: ask(settings), AuthenticationFailed)
        assert expected in text


def test_a_certificate_that_we_do_not_trust_is_told_at_once(locked_kafka: Locks) -> None:
    settings = locked_kafka.settings("SSL")
    del settings["ssl.truststore.location"], settings["ssl.truststore.type"]
    _, text = seconds_of(lambda: ask(settings), TlsFailed)
    assert "is not one of those we trust" in text
    ask({**settings, "enable.ssl.certificate.verification": False})


def test_a_broker_that_asks_for_our_certificate_is_told_at_once(locked_kafka: Locks) -> None:
    settings = locked_kafka.settings("MUTUAL")
    del settings["ssl.keystore.location"], settings["ssl.keystore.type"]
    _, text = seconds_of(lambda: ask(settings), TlsFailed)
    assert "certificate" in text


def test_credentials_that_nobody_asks_for_are_told_at_once(locked_kafka: Locks) -> None:
    settings = {**locked_kafka.settings("SASL_PLAINTEXT", "PLAIN"), "bootstrap.servers": locked_kafka.plaintext}
    _, text = seconds_of(lambda: ask(settings), AuthenticationFailed)
    assert "asks nobody to authenticate" in text


def test_plaintext_on_a_tls_port_is_told_what_to_set(locked_kafka: Locks) -> None:
    _, text = seconds_of(lambda: ask({"bootstrap.servers": locked_kafka.address("SSL")}), TlsFailed)
    assert "speaks TLS: set security.protocol to SSL or SASL_SSL" in text


@pytest.mark.parametrize(("listener", "protocol"), [("SASL_PLAINTEXT", "PLAINTEXT"), ("SASL_SSL", "SSL")])
def test_no_credentials_where_they_are_asked_for_are_told_at_once(
    locked_kafka: Locks, listener: str, protocol: str
) -> None:
    settings = {**locked_kafka.settings(listener), "security.protocol": protocol}
    took_s, text = seconds_of(lambda: ask(settings), AuthenticationFailed)
    assert took_s < 30
    assert f"set it to {listener}" in text


def test_tls_on_a_plaintext_port_is_told_what_to_look_at(locked_kafka: Locks) -> None:
    settings = {**locked_kafka.settings("SSL"), "bootstrap.servers": locked_kafka.plaintext}
    _, text = seconds_of(lambda: ask({**settings, "default.api.timeout.ms": 3000}), Exception)
    assert "security.protocol" in text


def test_a_producer_that_may_not_come_in_fails_its_records_at_once(locked_kafka: Locks, topic: str) -> None:
    settings = locked_kafka.settings("SASL_SSL", "PLAIN", sasl_password="wrong-secret")
    began = time.monotonic()
    with pytest.raises(AuthenticationFailed), semel.Producer(settings) as producer:
        producer.send(topic, value=b"1").result(50)
    assert time.monotonic() - began < 30
    with pytest.raises(AuthenticationFailed), semel.Consumer({**settings, "group.id": "g"}) as consumer:
        consumer.subscribe([topic])
        while time.monotonic() - began < 60:
            consumer.poll(1000)


def test_a_session_is_renewed_before_it_ends(
    locked_kafka: Locks, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener's sessions last three seconds; Kafka closes a connection that goes on without a new one."""
    renew, renewed = BrokerConnections._renew, Counter[int]()

    async def counted(self: BrokerConnections, slot: Any, node_id: int, lane: str) -> None:
        await renew(self, slot, node_id, lane)
        renewed[id(slot.connection)] += 1

    monkeypatch.setattr(BrokerConnections, "_renew", counted)
    settings = locked_kafka.settings("SASL_SSL", "SCRAM-SHA-256")
    number = 0
    with semel.Producer(settings) as producer:

        def is_renewed_twice() -> bool:
            nonlocal number
            producer.send(topic, value=b"%d" % number, partition=0).result(20)
            number += 1
            return max(renewed.values(), default=0) >= 2

        until(is_renewed_twice, within_s=50, what="two renewals", every_s=0.05)
    with semel.Admin(locked_kafka.settings("SASL_SSL", "SCRAM-SHA-256")) as admin:
        place = semel.TopicPartition(topic, 0)
        assert admin.list_offsets({place: -1})[place].offset == number


@pytest.mark.parametrize("spelling", ["java", "librdkafka"])
def test_both_spellings_open_the_same_lock(locked_kafka: Locks, topic: str, spelling: str) -> None:
    common = {"bootstrap.servers": locked_kafka.address("SASL_SSL")}
    jaas = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="{}" password="{}";'
    quoted = PASSWORD.replace('"', '\\"')
    settings: dict[str, object] = {
        "java": {
            "security.protocol": "SASL_SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": locked_kafka.authority.certificate_pem,
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": jaas.format(USER, quoted),
        },
        "librdkafka": {
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": str(locked_kafka.authority_file),
            "sasl.mechanisms": "SCRAM-SHA-512",
            "sasl.username": USER,
            "sasl.password": PASSWORD,
        },
    }[spelling]
    with semel.Producer({**common, **settings}) as producer:
        producer.send(topic, value=b"x").result(20)
