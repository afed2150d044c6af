"""An Apache Kafka with every lock that we have keys for: TLS, mutual TLS, and SASL by each mechanism."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from semel.broker.embedded import Broker
from semel.machines.security.scram import salted_password
from semel.security.development import DevelopmentAuthority
from semel.wire.messages.security import AlterUserScramCredentialsRequest
from tests.security.token_brokers import TokenBroker, kafka_with_tokens, semel_with_tokens
from tests.support.apache_kafka import ApacheKafka
from tests.support.processes import free_port
from tests.support.requirements import require_kafka

USER, PASSWORD = "alice", "al1ce's \"secret\", with=signs"
LISTENERS = ("SSL", "SASL_PLAINTEXT", "SASL_SSL", "MUTUAL")
PROTOCOLS = {"SSL": "SSL", "SASL_PLAINTEXT": "SASL_PLAINTEXT", "SASL_SSL": "SASL_SSL", "MUTUAL": "SSL"}


@dataclass
class Locks:
    """A broker behind locks: where each listener is, and the files that open them."""

    folder: Path
    plaintext: str = ""
    ports: dict[str, int] = field(default_factory=dict)
    #: Where it is our own.
    broker: Broker | None = None

    def __post_init__(self) -> None:
        self.authority = DevelopmentAuthority()
        self.authority_file = self.folder / "authority.pem"
        self.authority_file.write_text(self.authority.certificate_pem)
        broker = self.authority.issue("broker", hosts=["localhost", "127.0.0.1"])
        self.broker_file, _ = broker.write(self.folder, "broker")
        self.client = self.authority.issue("client")
        self.client_file, _ = self.client.write(self.folder, "client")
        self.ports = {name: free_port() for name in LISTENERS}

    def address(self, listener: str) -> str:
        return f"localhost:{self.ports[listener]}"

    def settings(self, listener: str, mechanism: str | None = None, **more: object) -> dict[str, object]:
        """What a client needs for one listener, in Kafka's own words."""
        found: dict[str, object] = {
            "bootstrap.servers": self.address(listener),
            "security.protocol": PROTOCOLS[listener],
        }
        if "SSL" in PROTOCOLS[listener]:
            found["ssl.truststore.location"] = str(self.authority_file)
            found["ssl.truststore.type"] = "PEM"
        if listener == "MUTUAL":
            found["ssl.keystore.location"] = str(self.client_file)
            found["ssl.keystore.type"] = "PEM"
        if mechanism is not None:
            found["sasl.mechanism"] = mechanism
            if mechanism == "OAUTHBEARER":
                found["sasl.oauthbearer.token.provider"] = unsecured_token
            else:
                found |= {"sasl.username": USER, "sasl.password": PASSWORD}
        return {**found, **{name.replace("_", "."): value for name, value in more.items()}}


def unsecured_token(subject: str = USER, lifetime_s: float = 3600) -> str:
    """A JWT that nobody signed, which Kafka takes where it is not told otherwise."""
    now = time.time()

    def part(content: dict[str, object]) -> str:
        return base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()

    return f"{part({'alg': 'none'})}.{part({'sub': subject, 'iat': now - 1, 'exp': now + lifetime_s})}."


def scram_user(name: str, mechanism: str) -> AlterUserScramCredentialsRequest:
    row = AlterUserScramCredentialsRequest.ScramCredentialUpsertion
    salt, iterations = b"0123456789abcdef", 4096
    return AlterUserScramCredentialsRequest(
        upsertions=[
            row(
                name=name,
                mechanism={"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}[mechanism],
                iterations=iterations,
                salt=salt,
                salted_password=salted_password(mechanism, PASSWORD, salt, iterations),
            )
        ]
    )


def escaped(text: str) -> str:
    """As a JAAS option in a properties file."""
    return text.replace("\\", "\\\\").replace('"', '\\\\"')


def lock_settings(locks: Locks, mechanisms: str) -> dict[str, object]:
    """What a broker is given for its locks: the same for Apache Kafka and for Semel."""
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    bearer = (
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        'unsecuredLoginStringClaim_sub="broker";'
    )
    settings: dict[str, object] = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": locks.broker_file,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": locks.authority_file,
        "listener.name.mutual.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": mechanisms,
    }
    for name in ("sasl_plaintext", "sasl_ssl"):
        settings |= {
            f"listener.name.{name}.plain.sasl.jaas.config": f'{plain} user_{USER}="{escaped(PASSWORD)}" '
            'user_bob="b0b";',
            f"listener.name.{name}.scram-sha-256.sasl.jaas.config": scram,
            f"listener.name.{name}.scram-sha-512.sasl.jaas.config": scram,
            f"listener.name.{name}.oauthbearer.sasl.jaas.config": bearer,
        }
    settings["listener.name.sasl_ssl.connections.max.reauth.ms"] = 3000
    settings["listener.name.sasl_plaintext.plain.connections.max.reauth.ms"] = 60_000
    return settings


async def make_scram_users(plaintext: str) -> None:
    from semel.client.cluster.cluster import Cluster

    async with Cluster({"bootstrap.servers": plaintext}) as cluster:
        for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512"):
            answer = await cluster.request(None, scram_user(USER, mechanism))
            assert [row.error_code for row in answer.results] == [0]


@pytest.fixture(scope="session")
def locked_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locks]:
    require_kafka()
    locks = Locks(tmp_path_factory.mktemp("locks"))
    settings = lock_settings(locks, "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER")
    kafka = ApacheKafka(settings=settings)
    listeners = ",".join(f"{name}://127.0.0.1:{port}" for name, port in locks.ports.items())
    told = ",".join(f"{name}://localhost:{port}" for name, port in locks.ports.items())
    kafka.set_properties(
        {
            "listeners": f"PLAINTEXT://127.0.0.1:{kafka.port},CONTROLLER://127.0.0.1:{kafka.controller_port},"
            + listeners,
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{kafka.port},{told}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
            + ",".join(f"{name}:{protocol}" for name, protocol in PROTOCOLS.items()),
        }
    )
    with kafka:
        locks.plaintext = kafka.bootstrap_servers
        asyncio.run(make_scram_users(kafka.bootstrap_servers))
        yield locks


@pytest.fixture(scope="session")
def locked_semel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locks]:
    """The same locks on our own broker, with the same settings."""
    locks = Locks(tmp_path_factory.mktemp("semel-locks"))
    # As a properties file is read.
    settings = {
        name: value.replace("\\\\", "\\") if isinstance(value, str) else str(value)
        for name, value in lock_settings(locks, "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512").items()
        if "oauthbearer" not in name
    }
    settings["listeners"] = "PLAINTEXT://127.0.0.1:0," + ",".join(
        f"{name}://127.0.0.1:{port}" for name, port in locks.ports.items()
    )
    settings["advertised.listeners"] = ",".join(f"{name}://localhost:{port}" for name, port in locks.ports.items())
    settings["listener.security.protocol.map"] = "PLAINTEXT:PLAINTEXT," + ",".join(
        f"{name}:{protocol}" for name, protocol in PROTOCOLS.items()
    )
    with Broker(settings=settings) as broker:
        locks.plaintext = broker.bootstrap_servers
        asyncio.run(make_scram_users(locks.plaintext))
        locks.broker = broker
        yield locks


@pytest.fixture(scope="session")
def token_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenBroker]:
    """Apache Kafka with bearer tokens that it checks, and delegation tokens."""
    require_kafka()
    kafka, where = kafka_with_tokens(tmp_path_factory.mktemp("token-kafka"))
    with kafka:
        yield where


@pytest.fixture(scope="session")
def token_semel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenBroker]:
    """The same on our own broker, with the same settings."""
    semel, where = semel_with_tokens(tmp_path_factory.mktemp("token-semel"))
    with semel:
        yield where
