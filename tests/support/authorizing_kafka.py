"""Apache Kafka with an authorizer. Whoever comes to its PLAINTEXT listener is ANONYMOUS and needs rules; its
administrator comes with a password and is a super user."""

from __future__ import annotations

from semel.wire.messages.security import SaslAuthenticateRequest, SaslHandshakeRequest
from tests.broker.raw import Raw
from tests.support.apache_kafka import ApacheKafka
from tests.support.processes import free_port

AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
ADMIN, PASSWORD = "admin", "secret"
_LOGIN = (
    "org.apache.kafka.common.security.plain.PlainLoginModule required "
    f'username="{ADMIN}" password="{PASSWORD}" user_{ADMIN}="{PASSWORD}";'
)


class AuthorizingKafka(ApacheKafka):
    """Use it as `ApacheKafka`. `bootstrap_servers` is for ANONYMOUS, `admin_servers` for the administrator."""

    def __init__(self, settings: dict[str, object] | None = None) -> None:
        super().__init__(
            settings={
                "authorizer.class.name": AUTHORIZER,
                "super.users": f"User:{ADMIN}",
                "sasl.enabled.mechanisms": "PLAIN",
                "sasl.mechanism.inter.broker.protocol": "PLAIN",
                "sasl.mechanism.controller.protocol": "PLAIN",
                "inter.broker.listener.name": "ADMIN",
                "listener.name.admin.plain.sasl.jaas.config": _LOGIN,
                "listener.name.controller.plain.sasl.jaas.config": _LOGIN,
                **(settings or {}),
            }
        )
        self.admin_servers = f"127.0.0.1:{free_port()}"
        clients = f"PLAINTEXT://{self.bootstrap_servers},ADMIN://{self.admin_servers}"
        self.set_properties(
            {
                "listeners": f"{clients},CONTROLLER://127.0.0.1:{self.controller_port}",
                "advertised.listeners": clients,
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,ADMIN:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
            }
        )

    def as_admin(self) -> Raw:
        """A connection of the administrator."""
        raw = Raw(self.admin_servers)
        assert raw.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
        proof = f"\0{ADMIN}\0{PASSWORD}".encode()
        assert raw.ask(SaslAuthenticateRequest(auth_bytes=proof)).error_code == 0
        return raw

    def as_anonymous(self) -> Raw:
        """A connection of nobody in particular."""
        return Raw(self.bootstrap_servers)
