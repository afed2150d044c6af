"""A broker that takes bearer tokens: where its keys come from, what it does without them, and our clients before it."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import semel
import semel.client.consumer.consumer as aio
from semel.broker.embedded import Broker
from semel.config import ConfigError
from semel.errors import AuthenticationFailed, RequestTimedOut
from semel.security.development import DevelopmentAuthority
from semel.wire.messages.configs import IncrementalAlterConfigsRequest
from semel.wire.messages.metadata import MetadataRequest
from tests.broker.raw import Raw
from tests.security.conftest import unsecured_token
from tests.security.sasl_talk import CLOSED, Talk
from tests.security.test_bearer_beside_kafka import bearer
from tests.support.processes import free_port
from tests.support.token_issuer import SigningKey, TokenIssuer, claims, token
from tests.support.waiting import until

INVALID = b'{"status":"invalid_token"}'
FIRST, SECOND, STRANGER = SigningKey("first"), SigningKey("second", "ES256"), SigningKey("first")
URL = "sasl.oauthbearer.jwks.endpoint.url"


def settings(port: int, **more: object) -> dict[str, object]:
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:{port}",
        "advertised.listeners": f"CLIENTS://127.0.0.1:{port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CLIENTS:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        **{name.replace("__", "-").replace("_", "."): value for name, value in more.items()},
    }


@contextmanager
def running(url: str, **more: object) -> Iterator[str]:
    """A broker with keys from this address; where its listener is."""
    port = free_port()
    with Broker(settings=settings(port, sasl_oauthbearer_jwks_endpoint_url=url, **more)):
        yield f"127.0.0.1:{port}"


def login(address: str, text: str) -> Any:
    """True if a token is taken, else what the client is told."""
    with Talk(address) as talk:
        talk.handshake("OAUTHBEARER")
        answer = talk.authenticate(bearer(text))
        if answer.auth_bytes or answer.error_code:
            return bytes(answer.auth_bytes) or answer.error_code
        return talk.tell(MetadataRequest(topics=[])) != CLOSED


@pytest.fixture
def issuer() -> Iterator[TokenIssuer]:
    with TokenIssuer([FIRST]) as found:
        yield found


# Keys


def test_keys_are_fetched_from_the_issuer_before_a_client_comes(issuer: TokenIssuer) -> None:
    with running(issuer.jwks_url) as address:
        until(lambda: issuer.asked == ["/keys"], within_s=10, what="a fetch at the start")
        assert login(address, token(FIRST)) is True
        assert login(address, token(STRANGER)) == INVALID
        assert issuer.asked == ["/keys"]


def test_a_new_key_of_the_issuer_is_found_when_a_token_names_it(issuer: TokenIssuer) -> None:
    with running(issuer.jwks_url, sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms=50) as address:
        assert login(address, token(FIRST)) is True
        issuer.keys = [SECOND]
        until(lambda: login(address, token(SECOND)) is True, within_s=10, what="the new key")
        assert login(address, token(FIRST)) == INVALID  # the issuer took it back


def test_clients_that_make_up_names_of_keys_cause_no_more_than_one_fetch_in_a_while(issuer: TokenIssuer) -> None:
    with running(issuer.jwks_url, sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms=60_000) as address:
        assert login(address, token(FIRST)) is True
        for number in range(20):
            assert login(address, token(FIRST, kid=f"made-up-{number}")) == INVALID
        assert issuer.asked == ["/keys"]


def test_keys_that_have_become_old_are_fetched_again(issuer: TokenIssuer) -> None:
    with running(issuer.jwks_url, sasl_oauthbearer_jwks_endpoint_refresh_ms=100) as address:
        assert login(address, token(FIRST)) is True
        issuer.keys = [SECOND]
        until(lambda: login(address, token(FIRST)) == INVALID, within_s=10, what="the end of the old key")


@pytest.mark.parametrize(
    "answer", [(500, b"no"), (200, b"no"), (200, b'{"keys":[]}'), (302, b""), (200, b"x" * (2 << 20))],
    ids=["error", "no JSON", "no keys", "elsewhere", "too large"],
)
def test_the_keys_stay_as_they_were_if_the_issuer_gives_none(
    issuer: TokenIssuer, caplog: pytest.LogCaptureFixture, answer: tuple[int, bytes]
) -> None:
    with running(issuer.jwks_url, sasl_oauthbearer_jwks_endpoint_refresh_ms=50) as address:
        assert login(address, token(FIRST)) is True
        asked = len(issuer.asked)
        issuer.answer = lambda: answer
        until(lambda: login(address, token(FIRST)) is True and len(issuer.asked) > asked, within_s=10, what="a fetch")
        assert login(address, token(FIRST)) is True
        assert login(address, token(STRANGER)) == INVALID
        assert f"no keys from {issuer.jwks_url}, 1 keys are kept" in caplog.text


def test_without_keys_no_token_is_taken_until_they_are_there(
    issuer: TokenIssuer, caplog: pytest.LogCaptureFixture
) -> None:
    issuer.answer = lambda: (503, b"")
    with running(issuer.jwks_url, sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms=100) as address:
        assert login(address, token(FIRST)) == INVALID
        assert "no token can be checked" in caplog.text
        issuer.answer = lambda: (200, issuer.jwks())
        until(lambda: login(address, token(FIRST)) is True, within_s=10, what="the keys")


def test_an_issuer_that_does_not_answer_keeps_nobody_else_waiting(issuer: TokenIssuer) -> None:
    answered = threading.Event()

    def slow() -> tuple[int, bytes]:
        answered.wait(20)
        return 200, issuer.jwks()

    issuer.answer = slow
    port = free_port()
    with Broker(settings=settings(port, sasl_oauthbearer_jwks_endpoint_url=issuer.jwks_url)) as broker:
        waiting = [Talk(f"127.0.0.1:{port}") for _ in range(5)]
        for talk in waiting:
            talk.handshake("OAUTHBEARER")
            talk.send(SASL(bearer(token(FIRST))))
        began_s = time.monotonic()
        with Raw(broker) as other:
            for _ in range(20):
                other.ask(MetadataRequest(topics=[]))
        assert time.monotonic() - began_s < 5
        answered.set()
        for talk in waiting:
            assert talk.receive_frame()
            talk.socket.close()


def SASL(data: bytes) -> Any:
    from semel.wire.messages.security import SaslAuthenticateRequest

    return SaslAuthenticateRequest(auth_bytes=data)


def test_keys_of_a_file_are_read_again_when_it_changes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys of the issuer.json"

    def write(*keys: SigningKey) -> None:
        beside = tmp_path / "new"
        beside.write_text(json.dumps({"keys": [key.jwk() for key in keys]}))
        beside.rename(path)

    write(FIRST)
    with running(path.as_uri()) as address:
        assert login(address, token(FIRST)) is True
        assert login(address, token(SECOND)) == INVALID
        write(SECOND)
        assert login(address, token(SECOND)) is True
        assert login(address, token(FIRST)) == INVALID
        (tmp_path / "new").write_text("nonsense")
        (tmp_path / "new").rename(path)
        assert login(address, token(SECOND)) is True
        assert "the keys stay as they were" in caplog.text
        path.unlink()
        assert login(address, token(SECOND)) is True


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, f"{URL}: OAUTHBEARER is enabled, and nobody would check the tokens"),
        ({URL: "ftp://x/y"}, "must begin with https://"),
        ({URL: "https://"}, "must begin with https://"),
        ({URL: "/etc/keys.json"}, "must begin with https://"),
        ({URL: "file:///nowhere/keys.json"}, "cannot use /nowhere/keys.json"),
        ({URL: "file:///etc/hostname"}, "cannot use /etc/hostname"),
        ({URL: "http://x", "semel.sasl.oauthbearer.unsecured": "true"}, "give one of them"),
        ({URL: "http://x", "sasl.server.callback.handler.class": "com.example.Mine"}, "must be one of"),
        ({URL: "http://x", "sasl.oauthbearer.jwt.validator.class": "com.example.Mine"}, "Java class"),
        ({URL: "http://x", "sasl.oauthbearer.expected.audiance": "kafka"}, "did you mean"),
        ({URL: "http://x", "listener.name.clients.oauthbearer.sasl.oauthbearer.expected.isuer": "x"}, "unknown"),
        ({URL: "http://x", "listener.name.clients.sasl.oauthbearer.expected.isuer": "x"}, "unknown"),
        ({URL: "http://x", "sasl.oauthbearer.clock.skew.seconds": "-1"}, "at least 0"),
        ({URL: ""}, "is empty"),
    ],
)
def test_a_broker_that_could_not_check_tokens_does_not_start(given: dict[str, object], told: str) -> None:
    with pytest.raises(ConfigError) as refused, Broker(settings={**settings(free_port()), **given}):
        pass
    assert told in str(refused.value)


def test_tokens_that_nobody_signed_are_taken_only_where_that_is_asked_for(
    issuer: TokenIssuer, caplog: pytest.LogCaptureFixture
) -> None:
    with running(issuer.jwks_url) as address:
        assert login(address, unsecured_token()) == INVALID
    port = free_port()
    with Broker(settings=settings(port, semel_sasl_oauthbearer_unsecured=True)):
        assert "anybody can be anybody" in caplog.text
        assert login(f"127.0.0.1:{port}", unsecured_token()) is True
        assert login(f"127.0.0.1:{port}", unsecured_token(lifetime_s=-100)) == INVALID
        assert login(f"127.0.0.1:{port}", token(FIRST)) == INVALID


def test_a_refused_token_is_in_the_audit_log_once_and_never_itself(
    issuer: TokenIssuer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    wrong = token(STRANGER)

    def lines() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.name == "semel.audit"]

    with running(issuer.jwks_url) as address:
        with Talk(address) as talk:
            talk.handshake("OAUTHBEARER")
            talk.authenticate(bearer(wrong))
            assert talk.authenticate(b"\x01").error_code == 58
        until(lambda: len(lines()) == 1, within_s=10, what="the line")
        assert login(address, wrong) == INVALID  # it goes away without its last message
        until(lambda: len(lines()) == 2, within_s=10, what="the second line")
    for line in lines():
        assert json.loads(line)["why"] == "the token's signature is wrong"
    assert wrong.split(".")[2] not in caplog.text
    assert wrong.split(".")[1] not in caplog.text


def test_no_client_can_name_a_file_an_address_or_a_class_that_the_broker_loads(
    issuer: TokenIssuer, tmp_path: Path
) -> None:
    """CVE-2025-27817, CVE-2025-27818: settings of others that read files, ask addresses or load classes."""
    port = free_port()
    given = settings(port, sasl_oauthbearer_jwks_endpoint_url=issuer.jwks_url)
    config = IncrementalAlterConfigsRequest.AlterableConfig
    own = "listener.name.clients.oauthbearer."
    with TokenIssuer([STRANGER]) as other:
        with Broker(tmp_path, settings=given) as broker, Raw(broker) as raw:
            for name, value in (
                (f"{own}{URL}", other.jwks_url),
                (URL, other.jwks_url),
                (f"{own}{URL}", "file:///etc/passwd"),
                ("semel.sasl.oauthbearer.unsecured", "true"),
                (f"{own}sasl.jaas.config", f'com.sun.security.auth.module.JndiLoginModule required u="{other.url}";'),
                (f"{own}sasl.server.callback.handler.class", "com.example.Mine"),
            ):
                row = IncrementalAlterConfigsRequest.AlterConfigsResource(
                    resource_type=4, resource_name="1", configs=[config(name=name, config_operation=0, value=value)]
                )
                raw.ask(IncrementalAlterConfigsRequest(resources=[row]))
            # Nor can a token.
            for header in ({"jku": other.jwks_url}, {"x5u": other.url}, {"jwk": STRANGER.jwk()}):
                assert login(f"127.0.0.1:{port}", token(STRANGER, **header)) == INVALID
            assert login(f"127.0.0.1:{port}", token(FIRST)) is True
        with Broker(tmp_path, settings=given):
            assert login(f"127.0.0.1:{port}", token(FIRST)) is True
            assert login(f"127.0.0.1:{port}", token(STRANGER)) == INVALID
            assert login(f"127.0.0.1:{port}", unsecured_token()) == INVALID
        assert other.asked == []


# Our clients


def a_token() -> str:
    """For `sasl.oauthbearer.token.provider` by its name."""
    return token(FIRST, claims("carol"))


WAYS: dict[str, Callable[[TokenIssuer], dict[str, object]]] = {
    "function": lambda issuer: {"sasl.oauthbearer.token.provider": lambda: token(FIRST)},
    "with its end": lambda issuer: {"sasl.oauthbearer.token.provider": lambda: (token(FIRST), time.time() + 60)},
    "by its name": lambda issuer: {"sasl.oauthbearer.token.provider": f"{__name__}:a_token"},
    "client credentials": lambda issuer: {
        "sasl.oauthbearer.token.endpoint.url": issuer.token_url,
        "sasl.oauthbearer.client.id": "my service",
        "sasl.oauthbearer.client.secret": "s3cret",
        "sasl.oauthbearer.scope": "kafka",
    },
    "as librdkafka": lambda issuer: {
        "sasl.oauthbearer.method": "oidc",
        "sasl.oauthbearer.token.endpoint.url": issuer.token_url,
        "sasl.oauthbearer.client.id": "other",
        "sasl.oauthbearer.client.secret": "s3cret",
        "sasl.oauthbearer.extensions": "traceId=7",
    },
}


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TokenIssuer, dict[str, dict[str, object]]]]:
    """A broker with TLS and without, and what a client needs for each."""
    folder = tmp_path_factory.mktemp("bearer")
    authority = DevelopmentAuthority()
    certificate, _ = authority.issue("broker", hosts=["localhost", "127.0.0.1"]).write(folder, "broker")
    plain_port, tls_port = free_port(), free_port()
    common = {"sasl.mechanism": "OAUTHBEARER"}
    with TokenIssuer([FIRST]) as issuer:
        given = {
            **settings(plain_port, sasl_oauthbearer_jwks_endpoint_url=issuer.jwks_url),
            "listeners": f"CLIENTS://127.0.0.1:{plain_port},TLS://127.0.0.1:{tls_port}",
            "advertised.listeners": f"CLIENTS://127.0.0.1:{plain_port},TLS://localhost:{tls_port}",
            "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,TLS:SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificate),
        }
        with Broker(settings=given):
            yield issuer, {
                "plain": {
                    **common, "bootstrap.servers": f"127.0.0.1:{plain_port}", "security.protocol": "SASL_PLAINTEXT"
                },
                "tls": {
                    **common, "bootstrap.servers": f"localhost:{tls_port}", "security.protocol": "SASL_SSL",
                    "ssl.truststore.certificates": authority.certificate_pem, "ssl.truststore.type": "PEM",
                },
            }


@pytest.mark.parametrize("listener", ["plain", "tls"])
@pytest.mark.parametrize("way", WAYS)
def test_our_client_comes_in_with_a_token(protected: Any, way: str, listener: str) -> None:
    issuer, known = protected
    client = {**known[listener], **WAYS[way](issuer)}
    topic = f"{way}-{listener}".replace(" ", "-")
    with semel.Producer(client) as producer:
        producer.send(topic, value=b"blocking").result(20)

    async def consume() -> list[bytes | None]:
        found: list[bytes | None] = []
        async with aio.AsyncConsumer({**client, "group.id": topic, "auto.offset.reset": "earliest"}) as consumer:
            await consumer.subscribe([topic])
            until_s = time.monotonic() + 30
            while not found and time.monotonic() < until_s:
                found += [record.value for record in await consumer.poll(1000)]
        return found

    assert asyncio.run(consume()) == [b"blocking"]


def test_a_wrong_secret_is_told_without_the_secret(protected: Any) -> None:
    issuer, known = protected
    client = {**known["plain"], **WAYS["client credentials"](issuer), "sasl.oauthbearer.client.secret": "wr0ng"}
    with pytest.raises(AuthenticationFailed) as refused, semel.Admin(client) as admin:
        admin.list_topics()
    assert "401" in str(refused.value)
    assert "wr0ng" not in str(refused.value)


def test_a_token_that_the_broker_refuses_is_told_at_once(protected: Any) -> None:
    _, known = protected
    client = {**known["plain"], "sasl.oauthbearer.token.provider": lambda: token(STRANGER)}
    with pytest.raises(AuthenticationFailed, match="refuses the token") as refused, semel.Admin(client) as admin:
        admin.list_topics()
    assert "invalid_token" in str(refused.value)


def test_a_token_endpoint_that_is_away_is_named_and_not_taken_for_the_broker(protected: Any) -> None:
    issuer, known = protected
    client = {
        **known["plain"], **WAYS["client credentials"](issuer), "default.api.timeout.ms": 2000,
        "sasl.oauthbearer.token.endpoint.url": f"http://127.0.0.1:{free_port()}/token",
    }
    with pytest.raises(RequestTimedOut, match="the token endpoint http://127") as told, semel.Admin(client) as admin:
        admin.list_topics()
    assert "closed the connection" not in str(told.value)
