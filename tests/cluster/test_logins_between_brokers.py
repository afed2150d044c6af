"""Brokers that log in to each other by SCRAM over TLS, and to a real ZooKeeper by TLS and with an identity.

What nobody else may do there, and what is said where a password is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from tests.support.requirements import require_zookeeper
from tests.support.secured_cluster import (
    LOGIN,
    PASSWORDS,
    ZOOKEEPER_IDENTITY,
    SecuredBroker,
    SecuredCluster,
    secured_cluster,
)
from tests.support.waiting import until

pytestmark = [pytest.mark.java, pytest.mark.timeout(180), pytest.mark.usefixtures("everybody_lives")]
JAAS = "listener.name.brokers.scram-sha-512.sasl.jaas.config"


@pytest.fixture(scope="module")
def cluster() -> Iterator[SecuredCluster]:
    require_zookeeper()
    with secured_cluster(
        "SASL_SSL", 2, secured_zookeeper=True, default_replication_factor=2, min_insync_replicas=1,
        connections_max_reauth_ms=5000, super_users="User:root",
    ) as running:
        admin = AdminClient(running.client("root"))
        # All that brokers need: they are no super users here.
        needed = AclBinding(
            ResourceType.BROKER, "kafka-cluster", ResourcePatternType.LITERAL, "User:broker", "*",
            AclOperation.CLUSTER_ACTION, AclPermissionType.ALLOW,
        )
        admin.create_acls([needed])[needed].result(60)
        admin.create_topics([NewTopic("payments", 2, 2)])["payments"].result(60)
        yield running


@pytest.fixture
def anybody(cluster: SecuredCluster) -> Iterator[KazooClient]:
    """Somebody who reaches ZooKeeper and shows nothing."""
    client = KazooClient(f"{cluster.zookeeper.connect}/kept")
    client.start(30)
    yield client
    client.stop()
    client.close()


def written(cluster: SecuredCluster, partition: int, value: bytes) -> KafkaError | None:
    outcome: list[KafkaError | None] = []
    producer = Producer({**cluster.client("root"), "acks": "all", "message.timeout.ms": 60_000})
    producer.produce("payments", value, partition=partition, on_delivery=lambda error, _: outcome.append(error))
    producer.flush(90)
    (error,) = outcome
    return error


def all_in_sync(cluster: SecuredCluster) -> bool:
    topics = AdminClient(cluster.client("root")).list_topics("payments", timeout=30).topics
    return all(len(one.isrs) == 2 for one in topics["payments"].partitions.values())


def set_password(cluster: SecuredCluster, password: str) -> None:
    keys = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    wanted = UserScramCredentialUpsertion("broker", keys, password.encode())
    admin = AdminClient(cluster.client("root", 1))  # one that nobody holds is closed
    admin.alter_user_scram_credentials([wanted])["broker"].result(60)


def refused_start(broker: SecuredBroker, **settings: object) -> str:
    """What a broker says that does not start with these settings."""
    broker.change(**settings)
    broker.launch()
    assert broker.running.wait(within_s=60) != 0
    return broker.running.output() + broker.running.errors()


def test_records_are_replicated_also_after_logins_have_ended(cluster: SecuredCluster) -> None:
    """`connections.max.reauth.ms` holds among brokers as well: they log in again in time."""
    began = time.monotonic()
    while time.monotonic() - began < 8:
        assert written(cluster, 0, b"on") is None and written(cluster, 1, b"and on") is None
    until(lambda: all_in_sync(cluster), within_s=60, what="both replicas in sync")
    for broker in cluster.brokers.values():
        assert "its session has ended" not in broker.running.output() + broker.running.errors()


def test_a_transaction_is_ended_on_all_brokers_by_cluster_action_alone(cluster: SecuredCluster) -> None:
    producer = Producer({**cluster.client("root"), "transactional.id": "till"})
    producer.init_transactions(60)
    producer.begin_transaction()
    for partition in range(2):
        producer.produce("payments", b"in a transaction", partition=partition)
    producer.commit_transaction(60)
    for broker in cluster.brokers.values():
        assert '"event": "denied", "principal": "User:broker"' not in broker.running.output() + broker.running.errors()


def test_nobody_else_changes_what_brokers_have_written_or_reads_secrets(
    cluster: SecuredCluster, anybody: KazooClient
) -> None:
    for path in ("/config/users/broker", "/semel/scram_secret"):
        with pytest.raises(NoAuthError):
            anybody.get(path)
    assert anybody.get("/brokers/ids/1")[0]
    for path in ("/brokers/ids/1", "/controller", "/brokers/topics/payments", "/config/users/broker"):
        with pytest.raises(NoAuthError):
            anybody.set(path, b"{}")
    for folder in ("/config/users", "/kafka-acl/Topic", "/brokers/topics"):
        with pytest.raises(NoAuthError):
            anybody.create(f"{folder}/mine", b"{}")
    anybody.add_auth("digest", ZOOKEEPER_IDENTITY)
    assert b"SCRAM-SHA-512" in anybody.get("/config/users/broker")[0]


def test_a_broker_that_would_not_let_itself_in_does_not_start_and_says_why(cluster: SecuredCluster) -> None:
    broker = cluster[2]
    broker.kill9()
    try:
        said = refused_start(broker, **{JAAS: LOGIN.replace(PASSWORDS["broker"], "not-this-one")})
        assert "listener BROKERS, between brokers: this broker would not let itself in" in said
        assert JAAS in said and "not-this-one" not in said
        said = refused_start(broker, **{JAAS: None})
        assert f"{JAAS}: brokers log in to each other by SCRAM-SHA-512" in said
    finally:
        broker.change(**{JAAS: LOGIN})
    broker.start()
    until(lambda: all_in_sync(cluster), within_s=60, what="both replicas in sync")


def test_a_zookeeper_that_is_not_trusted_is_told_in_words(cluster: SecuredCluster) -> None:
    broker = cluster[2]
    broker.kill9()
    trust = "zookeeper.ssl.truststore.location"
    try:
        said = refused_start(
            broker, **{trust: cluster.place / "mallory-certificate.pem", "zookeeper.connection.timeout.ms": 3000}
        )
        assert "its certificate is not accepted" in said and trust in said
    finally:
        broker.change(**{trust: cluster.place / "authority.pem", "zookeeper.connection.timeout.ms": None})
    broker.start()
    until(lambda: all_in_sync(cluster), within_s=60, what="both replicas in sync")


def test_a_broker_that_is_not_let_in_any_more_says_so_in_its_log_and_goes_on_once_it_is(
    cluster: SecuredCluster,
) -> None:
    """Somebody changes the password of the brokers, which have the old one."""
    def some_broker_says(words: str) -> bool:
        """One that follows: only followers ask the other broker."""
        return any(words in broker.running.output() + broker.running.errors() for broker in cluster.brokers.values())

    set_password(cluster, "another-password")
    try:
        until(
            lambda: some_broker_says("does not let us in, so nothing is replicated between us"),
            within_s=60, what="a broker to say that it is not let in",
        )
    finally:
        set_password(cluster, PASSWORDS["broker"])
    until(lambda: some_broker_says("lets us in again"), within_s=60, what="a broker to be let in again")
    assert not some_broker_says(PASSWORDS["broker"])
    assert written(cluster, 0, b"afterwards") is None and written(cluster, 1, b"afterwards") is None
    until(lambda: all_in_sync(cluster), within_s=60, what="both replicas in sync")
