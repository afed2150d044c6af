"""A cluster of processes whose clients and brokers show who they are: certificates, users and settings for it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from semel.config.broker import STANDARD_AUTHORIZER
from semel.security.development import DevelopmentAuthority
from tests.support.cluster import SESSION_TIMEOUT_MS, ClusterBroker
from tests.support.processes import lasting_port
from tests.support.zookeeper import ZooKeeper

PASSWORDS = {"root": "root-secret", "alice": "wonderland", "broker": "among-brokers"}
#: How brokers log in to each other by SCRAM.
LOGIN = (
    'org.apache.kafka.common.security.scram.ScramLoginModule required username="broker" '
    f'password="{PASSWORDS["broker"]}";'
)


class SecuredBroker(ClusterBroker):
    """Clients come by SASL_SSL with SCRAM, brokers by a listener of their own, which speaks `between`."""

    def __init__(
        self, number: int, place: Path, connect: str, certificates: Path, between: str, settings: dict[str, object]
    ) -> None:
        self.broker_port = lasting_port()
        own: dict[str, object] = {
            "listener.security.protocol.map": f"CLIENTS:SASL_SSL,BROKERS:{between}",
            "inter.broker.listener.name": "BROKERS",
            "ssl.keystore.location": certificates / f"broker-{number}.pem",
            "ssl.truststore.location": certificates / "authority.pem",
            "ssl.client.auth": "required",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": "User:root;User:broker;" + ";".join(f"User:CN=broker-{one}" for one in range(1, 4)),
            "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS,
            "default.replication.factor": 3,
            "min.insync.replicas": 2,
        }
        if between.startswith("SASL_"):
            own["sasl.mechanism.inter.broker.protocol"] = "SCRAM-SHA-512"
            own["listener.name.brokers.scram-sha-512.sasl.jaas.config"] = LOGIN
        super().__init__(number, place, connect, {**own, **settings})
        self._settings["listeners"] = f"CLIENTS://127.0.0.1:{self.port},BROKERS://127.0.0.1:{self.broker_port}"

    def change(self, **settings: object) -> None:
        """For its next life; None takes a setting away."""
        for name, value in settings.items():
            self._settings.pop(name, None)
            if value is not None:
                self._settings[name] = value


class SecuredCluster:
    """Brokers from 1 on, and what a client needs to come in."""

    def __init__(
        self, place: Path, zookeeper: ZooKeeper, between: str, brokers: int, settings: dict[str, object]
    ) -> None:
        self.place = place
        self.zookeeper = zookeeper
        self.certificates = place
        self.brokers = {
            number: SecuredBroker(number, place, zookeeper.connect, self.certificates, between, dict(settings))
            for number in range(1, brokers + 1)
        }

    def __getitem__(self, number: int) -> SecuredBroker:
        return self.brokers[number]

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(broker.address for broker in self.brokers.values())

    def make_user(self, name: str, *options: object) -> None:
        """In ZooKeeper itself, as the first users of a cluster are made."""
        where = options or ("--zookeeper", self.zookeeper.connect)
        words = ["user", "create", name, "--password-env", "PASSWORD", *where]
        subprocess.run(
            [sys.executable, "-m", "semel", *map(str, words)], check=True, capture_output=True, timeout=120,
            env={"PASSWORD": PASSWORDS[name], "PATH": ""},
        )

    def client(self, user: str, at: int | None = None, password: str | None = None) -> dict[str, Any]:
        """Settings of confluent-kafka, which Semel's own clients take as well."""
        return {
            "bootstrap.servers": self.bootstrap_servers if at is None else self[at].address,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.certificates / "authority.pem"),
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": password or PASSWORDS[user],
        }

    def properties(self, user: str) -> Path:
        """The same for Kafka's tools."""
        path = self.place / f"{user}.properties"
        path.write_text(
            "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self.certificates / 'authority.pem'}\n"
            "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required "
            f'username="{user}" password="{PASSWORDS[user]}";\n'
        )
        return path

    def start(self) -> None:
        for broker in self.brokers.values():
            broker.launch()
        for broker in self.brokers.values():
            broker.wait()

    def close(self) -> None:
        for broker in self.brokers.values():
            broker.close()


#: How brokers come to a ZooKeeper with TLS, where nobody else may change what they write.
ZOOKEEPER_IDENTITY = "brokers:known-to-zookeeper"


@contextmanager
def secured_cluster(
    between: str, brokers: int = 3, *, secured_zookeeper: bool = False, **settings: object
) -> Iterator[SecuredCluster]:
    """A cluster with the users root and broker, whose brokers speak `between` among themselves."""
    place = Path(tempfile.mkdtemp(prefix="secured-"))
    authority = DevelopmentAuthority()
    (place / "authority.pem").write_text(authority.certificate_pem)
    for name in ("mallory", "zookeeper", *(f"broker-{number}" for number in range(1, brokers + 1))):
        authority.issue(name, hosts=("127.0.0.1", "localhost")).write(place, name)
    zookeeper = ZooKeeper()
    secured_address = zookeeper.secure(place) if secured_zookeeper else None
    cluster: SecuredCluster | None = None
    try:
        zookeeper.start()
        given = {name.replace("_", "."): value for name, value in settings.items()}
        where: tuple[object, ...] = ()
        if secured_address is not None:
            given |= {
                "zookeeper.connect": f"{secured_address}/kept",
                "zookeeper.ssl.client.enable": "true",
                "zookeeper.ssl.truststore.location": place / "authority.pem",
                "zookeeper.ssl.keystore.location": place / "broker-1.pem",
                "zookeeper.set.acl": "true",
                "semel.zookeeper.digest": ZOOKEEPER_IDENTITY,
            }
            file = place / "to-zookeeper.properties"
            file.write_text("".join(f"{name}={value}\n" for name, value in given.items() if "zookeeper" in name))
            where = ("--config", file)
        cluster = SecuredCluster(place, zookeeper, between, brokers, given)
        cluster.make_user("root", *where)
        cluster.make_user("broker", *where)
        cluster.start()
        yield cluster
    finally:
        if cluster is not None:
            cluster.close()
        zookeeper.close()
        shutil.rmtree(place, ignore_errors=True)
