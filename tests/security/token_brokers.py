"""Two brokers with the same settings, one of them Apache Kafka: they check bearer tokens and have delegation tokens."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from semel.broker.embedded import Broker
from tests.support.apache_kafka import SMALL_JVM, ApacheKafka
from tests.support.processes import free_port
from tests.support.token_issuer import SigningKey

USERS = {"alice": "al1ce", "bob": "b0b", "carol": "c4rol"}
LISTENERS = {"CLIENTS": "SASL_PLAINTEXT", "SHORT": "SASL_PLAINTEXT", "STRICT": "SASL_PLAINTEXT"}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
VALIDATOR = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
LOGIN = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
#: The issuer's keys: one for each algorithm.
KEYS = {name: SigningKey(name.lower(), name) for name in ("RS256", "ES256", "ES384", "ES512", "PS256")}
AUDIENCE, ISSUER = "kafka", "https://issuer.example"


@dataclass
class TokenBroker:
    """Where a broker's listeners are."""

    plaintext: str
    ports: dict[str, int]

    def address(self, listener: str = "CLIENTS") -> str:
        return f"127.0.0.1:{self.ports[listener]}"


def jwks_file(folder: Path) -> Path:
    path = folder / "keys.json"
    path.write_text(json.dumps({"keys": [key.jwk() for key in KEYS.values()]}))
    return path


def token_settings(folder: Path, ports: dict[str, int], plaintext_port: int, *, controller: str = "") -> dict[str, str]:
    """The settings of both. CLIENTS has no limit of a session, SHORT has one of three seconds, STRICT wants an audience
    and an issuer."""
    plain = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    users = " ".join(f'user_{name}="{password}"' for name, password in USERS.items())
    settings = {
        "listeners": f"PLAINTEXT://127.0.0.1:{plaintext_port},{controller}"
        + ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{plaintext_port},"
        + ",".join(f"{name}://127.0.0.1:{port}" for name, port in ports.items()),
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        + ",".join(f"{name}:{protocol}" for name, protocol in LISTENERS.items()),
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.oauthbearer.jwks.endpoint.url": jwks_file(folder).as_uri(),
        "delegation.token.secret.key": "the key of all tokens",
        "delegation.token.max.lifetime.ms": "600000",
        "delegation.token.expiry.time.ms": "60000",
        "delegation.token.expiry.check.interval.ms": "1000",
    }
    for name in LISTENERS:
        start = f"listener.name.{name.lower()}"
        settings |= {
            f"{start}.plain.sasl.jaas.config": f"{plain} {users};",
            f"{start}.oauthbearer.sasl.jaas.config": f"{LOGIN} required;",
            f"{start}.oauthbearer.sasl.server.callback.handler.class": VALIDATOR,
        }
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            settings[f"{start}.{mechanism}.sasl.jaas.config"] = (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            )
    settings["listener.name.short.connections.max.reauth.ms"] = "3000"
    settings["listener.name.strict.oauthbearer.sasl.oauthbearer.expected.audience"] = f"other,{AUDIENCE}"
    settings["listener.name.strict.oauthbearer.sasl.oauthbearer.expected.issuer"] = ISSUER
    settings["listener.name.strict.oauthbearer.sasl.oauthbearer.sub.claim.name"] = "preferred_username"
    settings["listener.name.strict.oauthbearer.sasl.oauthbearer.scope.claim.name"] = "scp"
    settings["listener.name.strict.oauthbearer.sasl.oauthbearer.clock.skew.seconds"] = "0"
    return settings


def kafka_with_tokens(folder: Path) -> tuple[ApacheKafka, TokenBroker]:
    """Apache Kafka, not started yet."""
    urls = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={(folder / 'keys.json').as_uri()}"
    kafka = ApacheKafka(jvm=(*SMALL_JVM, urls))
    ports = {name: free_port() for name in LISTENERS}
    controller = f"CONTROLLER://127.0.0.1:{kafka.controller_port},"
    kafka.set_properties(token_settings(folder, ports, kafka.port, controller=controller))
    return kafka, TokenBroker(kafka.bootstrap_servers, ports)


def semel_with_tokens(folder: Path) -> tuple[Broker, TokenBroker]:
    """Our own broker, not started yet."""
    ports = {name: free_port() for name in LISTENERS}
    plaintext_port = free_port()
    settings = token_settings(folder, ports, plaintext_port)
    return Broker(settings=settings), TokenBroker(f"127.0.0.1:{plaintext_port}", ports)
