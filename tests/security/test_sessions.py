"""Sessions that end (KIP-368): clients that authenticate again go on, and those that do not are cut.

The listener's sessions last a second and a half. Clients of every kind work across several of them, by every mechanism.
"""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from kafka import KafkaProducer
from kafka.net.sasl.oauth import AbstractTokenProvider

import semel
from semel.broker.embedded import Broker
from semel.client.cluster import broker_connections
from semel.client.cluster.cluster import Cluster
from semel.errors import AuthenticationFailed, ErrorCode
from semel.wire.apis import ApiKey
from semel.wire.messages.metadata import MetadataRequest
from semel.wire.messages.tokens import CreateDelegationTokenRequest
from tests.security.conftest import PASSWORD, USER, make_scram_users
from tests.security.sasl_talk import CLOSED, Talk, plain
from tests.security.test_bearer_beside_kafka import bearer
from tests.support import java_tools
from tests.support.processes import free_port
from tests.support.requirements import require_kafka
from tests.support.token_issuer import SigningKey, TokenIssuer, claims, token
from tests.support.waiting import until

SESSION_MS = 1500
#: So often a client has to authenticate again while it works, and so long it may take for that.
RENEWALS, WORK_S = 2, 40.0
MECHANISMS = ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"]
REFUSED = ErrorCode.SASL_AUTHENTICATION_FAILED


class Place:
    def __init__(self, broker: Broker, port: int, issuer: TokenIssuer) -> None:
        self.broker, self.issuer = broker, issuer
        self.address = f"127.0.0.1:{port}"

    @property
    def metrics(self) -> Any:
        return self.broker.server.metrics

    def counted(self) -> tuple[int, int]:
        """How often somebody authenticated again on the same connection, and how many sessions were cut."""
        metrics = self.metrics
        return metrics.authentications["CLIENTS"] - metrics.connections_created, metrics.sessions_expired

    def settings(self, mechanism: str) -> dict[str, Any]:
        found: dict[str, Any] = {
            "bootstrap.servers": self.address, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism
        }
        if mechanism == "OAUTHBEARER":
            return {**found, "sasl.oauthbearer.token.provider": lambda: token(self.issuer.keys[0])}
        return {**found, "sasl.username": USER, "sasl.password": PASSWORD}


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    port = free_port()
    quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
    with TokenIssuer([SigningKey("first")]) as issuer:
        given = {
            "listeners": f"PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:{port}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "sasl.jaas.config": "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'user_{USER}="{quoted}" user_bob="b0b";',
            "sasl.oauthbearer.jwks.endpoint.url": issuer.jwks_url,
            "connections.max.reauth.ms": SESSION_MS,
            "delegation.token.secret.key": "key",
        }
        with Broker(settings=given) as broker:
            asyncio.run(make_scram_users(broker.bootstrap_servers))
            yield Place(broker, port, issuer)


def authenticate(place: Place, talk: Talk, mechanism: str, user: str = USER) -> Any:
    if mechanism == "PLAIN":
        talk.handshake(mechanism)
        return talk.authenticate(plain(user, PASSWORD if user == USER else "b0b"))
    if mechanism == "OAUTHBEARER":
        talk.handshake(mechanism)
        return talk.authenticate(bearer(token(place.issuer.keys[0], claims(user))))
    return talk.scram(mechanism, user, PASSWORD)


# One connection


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_session_that_is_not_renewed_is_cut_at_its_next_request(place: Place, mechanism: str) -> None:
    _, cut = place.counted()
    with Talk(place.address) as talk:
        began_s = time.monotonic()
        answer = authenticate(place, talk, mechanism)
        assert (answer.error_code, answer.session_lifetime_ms) == (0, SESSION_MS)
        assert talk.tell(MetadataRequest(topics=[])) != CLOSED
        until(lambda: talk.tell(MetadataRequest(topics=[])) == CLOSED, within_s=10, what="the end of the session")
        assert time.monotonic() - began_s > SESSION_MS / 1000 - 0.01
    assert place.counted()[1] == cut + 1


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_session_that_is_renewed_goes_on_also_after_its_end(place: Place, mechanism: str) -> None:
    with Talk(place.address) as talk:
        assert authenticate(place, talk, mechanism).error_code == 0
        for _ in range(2):
            ends_s = time.monotonic() + SESSION_MS / 1000 + 0.1
            until(lambda ends_s=ends_s: time.monotonic() > ends_s, within_s=5, what="the session's end")  # type: ignore[misc]
            # Only the handshake is taken from here on, as in Kafka.
            answer = authenticate(place, talk, mechanism)
            assert (answer.error_code, answer.session_lifetime_ms) == (0, SESSION_MS)
            assert talk.tell(MetadataRequest(topics=[])) != CLOSED


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_who_authenticates_again_stays_who_it_is(place: Place, mechanism: str) -> None:
    with Talk(place.address) as talk:
        assert authenticate(place, talk, mechanism).error_code == 0
        answer = authenticate(place, talk, mechanism, "bob")
        assert (answer.error_code, "Cannot change principals" in answer.error_message) == (REFUSED, True)
        assert talk.is_closed()


def test_a_token_of_another_owner_does_not_change_who_a_client_is(place: Place) -> None:
    with Talk(place.address) as bob:
        assert authenticate(place, bob, "PLAIN", "bob").error_code == 0
        made = bob.ask(CreateDelegationTokenRequest(max_lifetime_ms=-1))
    with Talk(place.address) as talk:
        assert authenticate(place, talk, "SCRAM-SHA-256").error_code == 0
        secret = base64.b64encode(made.hmac).decode()
        assert talk.scram("SCRAM-SHA-256", made.token_id, secret, is_token=True).error_code == REFUSED
        assert talk.is_closed()


def test_whoever_comes_again_by_a_token_may_ask_for_no_tokens_from_then_on(place: Place) -> None:
    with Talk(place.address) as alice:
        assert authenticate(place, alice, "PLAIN").error_code == 0
        made = alice.ask(CreateDelegationTokenRequest(max_lifetime_ms=-1))
    with Talk(place.address) as talk:
        assert authenticate(place, talk, "SCRAM-SHA-256").error_code == 0
        assert talk.ask(CreateDelegationTokenRequest(max_lifetime_ms=-1)).error_code == 0
        secret = base64.b64encode(made.hmac).decode()
        assert talk.scram("SCRAM-SHA-256", made.token_id, secret, is_token=True).error_code == 0
        code = talk.ask(CreateDelegationTokenRequest(max_lifetime_ms=-1)).error_code
        assert code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


# Clients


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_our_client_works_across_sessions_on_one_connection(place: Place, mechanism: str) -> None:
    topic = f"ours-{mechanism.lower()}"
    number = 0
    with semel.Producer(place.settings(mechanism)) as producer:

        def is_renewed_in_time() -> bool:
            """Two renewals and no cut. A busy machine may keep the client from its turn for longer than the margin."""
            nonlocal number
            before, cut = place.counted()
            while place.counted()[1] == cut and place.counted()[0] - before < RENEWALS:
                producer.send(topic, value=b"%d" % number, partition=0).result(20)
                number += 1
            return place.counted()[1] == cut

        until(is_renewed_in_time, within_s=WORK_S, what="a client that renews its session before it is cut")
    with semel.Admin(place.settings(mechanism)) as admin:
        where = semel.TopicPartition(topic, 0)
        assert admin.list_offsets({where: -1})[where].offset == number


def test_no_request_of_our_client_goes_into_the_midst_of_an_authentication(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka answers it with ILLEGAL_SASL_STATE and hangs up, and that looks like a wrong password."""
    sent: list[int] = []
    frame = broker_connections.request_frame

    def noted(key: int, *others: Any) -> Any:
        sent.append(key)
        return frame(key, *others)

    monkeypatch.setattr(broker_connections, "request_frame", noted)

    async def run() -> None:
        async with Cluster({**place.settings("SCRAM-SHA-512")}) as cluster:
            await cluster.request(None, MetadataRequest(topics=[]))

            async def ask() -> None:
                while sent.count(ApiKey.SASL_HANDSHAKE) < 4:
                    await cluster.request_retrying(MetadataRequest(topics=[]), to=None, timeout_ms=20_000)

            async with asyncio.timeout(WORK_S):
                await asyncio.gather(*(ask() for _ in range(8)))

    asyncio.run(run())
    first = [number for number, key in enumerate(sent) if key == ApiKey.SASL_HANDSHAKE]
    assert [sent[number + 1 : number + 3] for number in first] == [[ApiKey.SASL_AUTHENTICATE] * 2] * len(first)


def test_our_client_is_told_when_its_token_is_not_taken_again(place: Place) -> None:
    tokens = [token(place.issuer.keys[0])]
    settings = {**place.settings("OAUTHBEARER"), "sasl.oauthbearer.token.provider": lambda: tokens[0]}
    with pytest.raises(AuthenticationFailed, match="refuses the token"), semel.Producer(settings) as producer:
        producer.send("told", value=b"1").result(20)
        tokens[0] = token(SigningKey("first"))
        until(lambda: not producer.send("told", value=b"2").result(20), within_s=40, what="the end of the session")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_works_across_sessions(place: Place, mechanism: str) -> None:
    settings = place.settings(mechanism)
    errors: list[Any] = []
    if (provider := settings.pop("sasl.oauthbearer.token.provider", None)) is not None:
        settings["oauth_cb"] = lambda _: (provider(), time.time() + 3600)
    producer = confluent_kafka.Producer({**settings, "log_level": 0})
    topic = f"librdkafka-{mechanism.lower()}"
    delivered = 0

    def told(error: Any, _: Any) -> None:
        nonlocal delivered
        delivered += error is None
        errors.extend([error] if error else [])

    sent = 0
    before, _ = place.counted()

    def is_renewed() -> bool:
        nonlocal sent
        producer.produce(topic, b"%d" % sent, on_delivery=told)
        sent += 1
        producer.poll(0.02)
        return place.counted()[0] - before >= RENEWALS

    until(is_renewed, within_s=WORK_S, what="renewals of librdkafka's session", every_s=0.0)
    assert producer.flush(30) == 0
    assert (errors, delivered) == ([], sent)


class Tokens(AbstractTokenProvider):
    """For kafka-python."""

    def __init__(self, key: SigningKey) -> None:
        super().__init__()
        self.key = key

    def token(self) -> str:
        return token(self.key)


def test_kafka_python_comes_in_with_a_token(place: Place) -> None:
    producer = KafkaProducer(
        bootstrap_servers=place.address, security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER",
        sasl_oauth_token_provider=Tokens(place.issuer.keys[0]),
    )
    try:
        assert producer.send("kafka-python", b"1").get(20).offset >= 0
    finally:
        producer.close()


def test_aiokafka_comes_in_with_a_token(place: Place) -> None:
    import aiokafka.abc

    class Provider(aiokafka.abc.AbstractTokenProvider):
        async def token(self) -> str:
            return token(place.issuer.keys[0])

    async def produce() -> Any:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=place.address, security_protocol="SASL_PLAINTEXT", sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=Provider(),
        )
        await producer.start()
        try:
            return await producer.send_and_wait("aiokafka", b"1")
        finally:
            await producer.stop()

    assert asyncio.run(produce()).offset >= 0


@pytest.mark.java
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"])
def test_the_java_client_works_across_sessions(place: Place, tmp_path: Path, mechanism: str) -> None:
    require_kafka()
    config = tmp_path / "client.properties"
    common = f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
    jvm = java_tools.QUICK
    quoted = PASSWORD.replace("\\", "\\\\").replace('"', '\\\\"')
    if mechanism == "OAUTHBEARER":
        kind = "org.apache.kafka.common.security.oauthbearer"
        jvm = (*jvm, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={place.issuer.token_url}")
        config.write_text(
            f"{common}sasl.oauthbearer.token.endpoint.url={place.issuer.token_url}\n"
            f"sasl.login.callback.handler.class={kind}.OAuthBearerLoginCallbackHandler\n"
            f'sasl.jaas.config={kind}.OAuthBearerLoginModule required clientId="java" clientSecret="s3cret" '
            'extension_traceId="7";\n'
        )
    else:
        module = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
        config.write_text(
            f"{common}sasl.jaas.config=org.apache.kafka.common.security.{module} required "
            f'username="{USER}" password="{quoted}";\n'
        )
    before, _ = place.counted()
    with java_tools.start(
        "verifiable-producer", "--bootstrap-server", place.address, "--topic", f"java-{mechanism.lower()}",
        "--throughput", 40, "--command-config", config, jvm=jvm,
    ) as producer:
        until(lambda: place.counted()[0] - before >= RENEWALS, within_s=WORK_S, what="renewals of the Java client's")
        producer.terminate()
        summary = json.loads(next(line for line in producer.lines() if '"tool_data"' in line))
    assert summary["sent"] == summary["acked"] > 0
