"""Three brokers that log in to each other by PLAIN: each knows all brokers' passwords from its own file."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.requirements import require_zookeeper
from tests.support.secured_cluster import SecuredCluster, secured_cluster
from tests.support.waiting import until

pytestmark = [pytest.mark.java, pytest.mark.timeout(180)]
JAAS = "listener.name.brokers.plain.sasl.jaas.config"
LOGIN = (
    'org.apache.kafka.common.security.plain.PlainLoginModule required username="broker" password="among" '
    'user_broker="among" user_other="secret";'
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[SecuredCluster]:
    require_zookeeper()
    with secured_cluster(
        "SASL_SSL",
        3,
        sasl_mechanism_inter_broker_protocol="PLAIN",
        listener_name_brokers_sasl_enabled_mechanisms="PLAIN",
        listener_name_brokers_plain_sasl_jaas_config=LOGIN,
    ) as running:
        admin = AdminClient(running.client("root"))
        admin.create_topics([NewTopic("payments", 3, 3)])["payments"].result(60)
        yield running


def all_in_sync(cluster: SecuredCluster) -> bool:
    topics = AdminClient(cluster.client("root")).list_topics(timeout=30).topics
    return all(len(one.isrs) == 3 for topic in topics.values() for one in topic.partitions.values())


def transact(cluster: SecuredCluster) -> None:
    """Markers go from the coordinator to the leaders of all partitions."""
    producer = Producer({**cluster.client("root"), "transactional.id": "till"})
    producer.init_transactions(60)
    producer.begin_transaction()
    for partition in range(3):
        producer.produce("payments", b"in a transaction", partition=partition)
    producer.commit_transaction(60)


def test_records_and_markers_go_between_brokers_also_after_one_was_killed(cluster: SecuredCluster) -> None:
    transact(cluster)
    cluster[2].kill9()
    transact(cluster)
    cluster[2].start()
    until(lambda: all_in_sync(cluster), within_s=60, what="all replicas to be in sync")
    for broker in cluster.brokers.values():
        assert "does not let us in" not in broker.running.output() + broker.running.errors()


def test_a_broker_with_a_password_that_the_others_do_not_know_does_not_start(cluster: SecuredCluster) -> None:
    broker = cluster[3]
    broker.kill9()
    try:
        broker.change(**{JAAS: LOGIN.replace("among", "not-this-one")})
        broker.launch()
        assert broker.running.wait(within_s=60) != 0
        said = broker.running.output() + broker.running.errors()
        assert "listener BROKERS, between brokers: broker 1 does not let us in" in said
        assert f"check {JAAS}" in said and "not-this-one" not in said
    finally:
        broker.change(**{JAAS: LOGIN})
    broker.start()
    until(lambda: all_in_sync(cluster), within_s=60, what="all replicas to be in sync")
    transact(cluster)
