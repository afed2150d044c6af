"""A cluster that asks everybody who they are: clients by SASL_SSL, brokers by their certificates.

Users, rules and quotas are changed through any broker and hold on all, also while a broker is killed. The clients are
librdkafka and Kafka's own tools.
"""

from __future__ import annotations

import json
import socket
import ssl
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kazoo.client import KazooClient

import semel
from semel.errors import AuthenticationFailed, ErrorCode
from semel.wire.error_codes import error_codes
from semel.wire.messages.admin import (
    AlterPartitionReassignmentsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from semel.wire.messages.configs import (
    AlterClientQuotasRequest,
    DescribeClientQuotasRequest,
    IncrementalAlterConfigsRequest,
)
from semel.wire.messages.fetch import FetchRequest
from semel.wire.messages.metadata import MetadataRequest
from semel.wire.messages.security import (
    AlterUserScramCredentialsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    DescribeUserScramCredentialsRequest,
)
from semel.wire.messages.tokens import CreateDelegationTokenRequest
from semel.wire.messages.transactions import AddPartitionsToTxnRequest, WriteTxnMarkersRequest
from tests.broker.raw import Raw
from tests.support import java_tools
from tests.support.requirements import require_kafka, require_zookeeper
from tests.support.secured_cluster import PASSWORDS, SecuredCluster, secured_cluster
from tests.support.waiting import until

pytestmark = [pytest.mark.java, pytest.mark.timeout(180), pytest.mark.usefixtures("everybody_lives")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SecuredCluster]:
    require_zookeeper()
    with secured_cluster("SSL", delegation_token_secret_key="key", transaction_state_log_num_partitions=2,
                         offsets_topic_num_partitions=2) as running:
        until(lambda: has_controller(running), within_s=60, what="a controller")
        admin = AdminClient(running.client("root"))
        wait_for(admin.create_topics([NewTopic("payments", 3, 3)]), "payments")
        make_user(running, "alice", at=2)
        yield running


@pytest.fixture(scope="module")
def zookeeper(cluster: SecuredCluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster.zookeeper.connect)
    client.start(30)
    yield client
    client.stop()
    client.close()


def wait_for(futures: dict[Any, Any], key: Any) -> Any:
    return futures[key].result(60)


#: A client that nobody holds is closed, and its requests with it.
clients: dict[tuple[str, int | None], AdminClient] = {}


def admin_at(cluster: SecuredCluster, at: int | None = None, user: str = "root") -> AdminClient:
    return clients.setdefault((f"{user}{id(cluster)}", at), AdminClient(cluster.client(user, at)))


def has_controller(cluster: SecuredCluster, *, dead: int = 0) -> bool:
    """Whether each client knows a controller that lives. librdkafka remembers the one that it was told of, and waits
    for a dead one until its request times out, if nobody asks for metadata."""
    known = [admin_at(cluster, at).list_topics(timeout=20).controller_id for at in cluster.brokers if at != dead]
    return all(number > 0 and number != dead for number in known)


def make_user(cluster: SecuredCluster, name: str, at: int, password: str | None = None) -> None:
    keys = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    wanted = UserScramCredentialUpsertion(name, keys, (password or PASSWORDS[name]).encode())
    wait_for(admin_at(cluster, at).alter_user_scram_credentials([wanted]), name)


def rule(
    operation: AclOperation, name: str = "payments", who: str = "User:alice", kind: ResourceType = ResourceType.TOPIC,
    pattern: ResourcePatternType = ResourcePatternType.LITERAL,
) -> AclBinding:
    return AclBinding(kind, name, pattern, who, "*", operation, AclPermissionType.ALLOW)


def the_same(binding: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        binding.restype, binding.name, binding.resource_pattern_type, binding.principal, binding.host,
        binding.operation, binding.permission_type,
    )


def allow(cluster: SecuredCluster, at: int, *bindings: AclBinding) -> None:
    for future in admin_at(cluster, at).create_acls(list(bindings)).values():
        future.result(60)


def forbid(cluster: SecuredCluster, at: int, *bindings: AclBinding) -> None:
    for future in admin_at(cluster, at).delete_acls([the_same(one) for one in bindings]).values():
        assert len(future.result(60)) == 1


def rules_at(cluster: SecuredCluster, at: int, name: str) -> set[AclOperation]:
    anything = AclBindingFilter(
        ResourceType.TOPIC, name, ResourcePatternType.LITERAL, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    return {one.operation for one in admin_at(cluster, at).describe_acls(anything).result(60)}


def written(cluster: SecuredCluster, user: str, topic: str, value: bytes, at: int | None = None) -> KafkaError | None:
    """Why a record was not written."""
    outcome: list[KafkaError | None] = []
    producer = Producer({**cluster.client(user, at), "acks": "all", "message.timeout.ms": 60_000})
    producer.produce(topic, value, on_delivery=lambda error, _: outcome.append(error))
    producer.flush(90)
    (error,) = outcome
    return error


def everywhere(cluster: SecuredCluster, topic: str, *operations: AclOperation) -> None:
    until(
        lambda: all(rules_at(cluster, at, topic) == set(operations) for at in cluster.brokers),
        within_s=30, what=f"the rules about {topic} on all brokers",
    )


# Listeners


def test_every_broker_registers_its_endpoints_and_protocols_as_kafka_does(
    cluster: SecuredCluster, zookeeper: KazooClient
) -> None:
    for number, broker in cluster.brokers.items():
        value = json.loads(zookeeper.get(f"/brokers/ids/{number}")[0])
        assert value["endpoints"] == [
            f"CLIENTS://127.0.0.1:{broker.port}", f"BROKERS://127.0.0.1:{broker.broker_port}"
        ]
        assert value["listener_security_protocol_map"] == {"CLIENTS": "SASL_SSL", "BROKERS": "SSL"}
        assert (value["host"], value["port"]) == (None, -1)


def test_clients_are_told_the_addresses_of_the_listener_they_came_by(cluster: SecuredCluster) -> None:
    found = admin_at(cluster).list_topics(timeout=30).brokers
    assert {number: broker.port for number, broker in found.items()} == {
        number: broker.port for number, broker in cluster.brokers.items()
    }
    with as_broker(cluster, "broker-1") as raw:
        brokers = raw.ask(MetadataRequest(topics=[]), 9).brokers
    assert {row.node_id: row.port for row in brokers} == {
        number: broker.broker_port for number, broker in cluster.brokers.items()
    }


def test_nobody_comes_in_without_a_password_or_with_a_wrong_one(cluster: SecuredCluster) -> None:
    admin = AdminClient(cluster.client("root", password="wrong"))
    with pytest.raises(KafkaException) as refused:
        admin.list_topics(timeout=3)
    assert refused.value.args[0].code() in (KafkaError._TRANSPORT, KafkaError._AUTHENTICATION)
    for broker in cluster.brokers.values():
        if '"event": "authentication failed", "principal": "root"' in broker.running.output():
            break
    else:
        pytest.fail("no audit log has the failed login")


# Users and rules


def test_a_user_who_was_made_through_one_broker_comes_in_at_all_and_may_do_what_rules_say(
    cluster: SecuredCluster,
) -> None:
    denied = written(cluster, "alice", "payments", b"no")
    assert denied is not None and denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    allow(cluster, 3, rule(AclOperation.WRITE), rule(AclOperation.READ))
    everywhere(cluster, "payments", AclOperation.WRITE, AclOperation.READ)
    for at in cluster.brokers:
        assert written(cluster, "alice", "payments", b"yes", at) is None
    forbid(cluster, 2, rule(AclOperation.WRITE))
    everywhere(cluster, "payments", AclOperation.READ)  # CVE-2024-27309: the other one stays
    denied = written(cluster, "alice", "payments", b"no")
    assert denied is not None and denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    forbid(cluster, 1, rule(AclOperation.READ))
    everywhere(cluster, "payments")


def test_kafkas_own_tools_find_and_change_rules_and_users(cluster: SecuredCluster, zookeeper: KazooClient) -> None:
    require_kafka()
    at = ("--bootstrap-server", cluster.bootstrap_servers, "--command-config", cluster.properties("root"))
    java_tools.run(
        "acls", *at, "--add", "--allow-principal", "User:carol", "--producer", "--topic", "orders",
        "--resource-pattern-type", "prefixed",
    )
    listed = java_tools.run("acls", *at, "--list", "--principal", "User:carol").stdout
    assert "patternType=PREFIXED" in listed and "operation=WRITE" in listed
    value = json.loads(zookeeper.get("/kafka-acl-extended/prefixed/Topic/orders")[0])
    assert {one["operation"] for one in value["acls"]} == {"Write", "Describe", "Create"}
    java_tools.run(
        "configs", *at, "--alter", "--entity-type", "users", "--entity-name", "carol", "--add-config",
        "SCRAM-SHA-512=[iterations=4096,password=carols]",
    )
    java_tools.run(
        "configs", *at, "--alter", "--entity-type", "users", "--entity-name", "carol", "--add-config",
        "producer_byte_rate=1048576",
    )
    config = json.loads(zookeeper.get("/config/users/carol")[0])["config"]
    assert config["producer_byte_rate"] == "1048576" and config["SCRAM-SHA-512"].startswith("salt=")
    shown = java_tools.run("configs", *at, "--describe", "--entity-type", "users", "--entity-name", "carol").stdout
    assert "producer_byte_rate=1048576" in shown and "SCRAM-SHA-512=iterations=4096" in shown
    until(
        lambda: AdminClient(cluster.client("carol", 3, password="carols")).list_topics(timeout=20) is not None,
        what="carol to come in",
    )


def test_rules_and_users_are_changed_while_a_broker_is_killed_and_hold_on_it_when_it_is_back(
    cluster: SecuredCluster,
) -> None:
    allow(cluster, 1, rule(AclOperation.WRITE, "ledger"), rule(AclOperation.READ, "ledger"))
    wait_for(admin_at(cluster).create_topics([NewTopic("ledger", 3, 3)]), "ledger")
    everywhere(cluster, "ledger", AclOperation.WRITE, AclOperation.READ)
    cluster[3].kill9()
    until(lambda: has_controller(cluster, dead=3), within_s=60, what="a controller that lives")
    forbid(cluster, 1, rule(AclOperation.READ, "ledger"))
    make_user(cluster, "dave", 2, "daves")
    allow(cluster, 2, rule(AclOperation.WRITE, "ledger", "User:dave"))
    assert written(cluster, "alice", "ledger", b"while it is away") is None
    cluster[3].start()
    assert rules_at(cluster, 3, "ledger") == {AclOperation.WRITE}
    producer = Producer({**cluster.client("dave", 3, password="daves"), "acks": "all"})
    outcome: list[KafkaError | None] = []
    producer.produce("ledger", b"by dave", on_delivery=lambda error, _: outcome.append(error))
    producer.flush(60)
    assert outcome == [None]


def test_a_user_who_was_deleted_comes_in_nowhere(cluster: SecuredCluster) -> None:
    make_user(cluster, "eve", 1, "eves")
    comes_in = AdminClient(cluster.client("eve", 2, password="eves"))
    until(lambda: comes_in.list_topics(timeout=20) is not None, what="eve to come in")
    gone = UserScramCredentialDeletion("eve", ScramMechanism.SCRAM_SHA_512)
    wait_for(admin_at(cluster, 3).alter_user_scram_credentials([gone]), "eve")

    def is_out(at: int) -> bool:
        try:
            AdminClient(cluster.client("eve", at, password="eves")).list_topics(timeout=2)
        except KafkaException:
            return True
        return False

    until(lambda: all(is_out(at) for at in cluster.brokers), within_s=60, what="eve to be out everywhere")


def test_groups_and_transactions_work_with_rules_and_certificates_between_brokers(cluster: SecuredCluster) -> None:
    """Markers and verifications go from broker to broker, and need ClusterAction there."""
    allow(
        cluster, 1, rule(AclOperation.ALL, "orders"), rule(AclOperation.ALL, "readers", kind=ResourceType.GROUP),
        rule(AclOperation.ALL, "till-", kind=ResourceType.TRANSACTIONAL_ID, pattern=ResourcePatternType.PREFIXED),
    )
    wait_for(admin_at(cluster).create_topics([NewTopic("orders", 6, 3)]), "orders")
    everywhere(cluster, "orders", AclOperation.ALL)
    for number in range(4):
        producer = Producer({**cluster.client("alice"), "transactional.id": f"till-{number}"})
        producer.init_transactions(60)
        producer.begin_transaction()
        for partition in range(6):
            producer.produce("orders", b"%d" % number, partition=partition)
        if number == 3:
            producer.abort_transaction(60)
        else:
            producer.commit_transaction(60)
    consumer = Consumer(
        {**cluster.client("alice"), "group.id": "readers", "auto.offset.reset": "earliest",
         "isolation.level": "read_committed"}
    )
    consumer.subscribe(["orders"])
    values: list[bytes | None] = []

    def read() -> bool:
        values.extend(message.value() for message in consumer.consume(100, 1.0) if message.error() is None)
        return len(values) >= 18

    until(read, within_s=90, what="18 records")
    consumer.commit(asynchronous=False)
    consumer.close()
    assert sorted(values) == [b"0"] * 6 + [b"1"] * 6 + [b"2"] * 6


def test_a_token_that_one_broker_gave_lets_its_owner_in_at_another(cluster: SecuredCluster) -> None:
    with as_broker(cluster, "broker-1", at=1, client_id="workers") as raw:
        token = raw.ask(CreateDelegationTokenRequest(renewers=[], max_lifetime_ms=-1), 3)
    assert token.error_code == 0
    login = (
        "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{token.token_id}" password="{b64encode(bytes(token.hmac)).decode()}" tokenauth="true";'
    )
    settings = {key: value for key, value in cluster.client("root", 3).items() if "sasl.user" not in key}
    settings |= {"sasl.jaas.config": login}
    del settings["sasl.password"]

    def comes_in() -> bool:
        try:
            with semel.Admin(settings) as admin:
                return "payments" in admin.list_topics()
        except AuthenticationFailed:
            return False  # broker 3 is about to be told

    until(comes_in, within_s=30, what="the token to be known on broker 3")


# Quotas


def test_a_quota_that_was_set_through_one_broker_holds_on_the_others(cluster: SecuredCluster) -> None:
    allow(cluster, 1, rule(AclOperation.ALL, "slow"))
    wait_for(admin_at(cluster).create_topics([NewTopic("slow", 1, 3)]), "slow")
    everywhere(cluster, "slow", AclOperation.ALL)
    set_default_quotas(cluster, producer_byte_rate=20_000.0)
    try:
        throttled: list[float] = []
        producer = Producer(
            {
                **cluster.client("alice", 3),
                "acks": "all",
                "throttle_cb": lambda event: throttled.append(event.throttle_time),
            }
        )
        for _ in range(200):
            producer.produce("slow", bytes(20_000))
            assert producer.flush(60) == 0
            if throttled:
                break
        assert throttled
    finally:
        set_default_quotas(cluster, producer_byte_rate=None)


def set_default_quotas(cluster: SecuredCluster, **quotas: float | None) -> None:
    asked = AlterClientQuotasRequest
    operations = [asked.OpData(key=key, value=value or 0.0, remove=value is None) for key, value in quotas.items()]
    entity = [asked.EntityData(entity_type="user", entity_name=None)]
    with as_broker(cluster, "broker-1", at=1, client_id="admin") as raw:
        row = raw.ask(asked(entries=[asked.EntryData(entity=entity, ops=operations)]), 1).entries[0]
    assert row.error_code == 0, row.error_message


# What only brokers may do


def as_broker(cluster: SecuredCluster, who: str, at: int = 2, client_id: str = "semel-broker-1") -> Raw:
    """A connection to the listener of brokers, with somebody's certificate."""
    context = ssl.create_default_context(cafile=str(cluster.certificates / "authority.pem"))
    context.load_cert_chain(cluster.certificates / f"{who}.pem")
    raw = Raw(f"127.0.0.1:{cluster[at].broker_port}", client_id)
    raw.socket = context.wrap_socket(raw.socket, server_hostname="127.0.0.1")
    return raw


def marker(commit: bool) -> WriteTxnMarkersRequest:
    topic = WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="payments", partition_indexes=[0])
    row = WriteTxnMarkersRequest.WritableTxnMarker(
        producer_id=12345, producer_epoch=0, transaction_result=commit, topics=[topic], coordinator_epoch=0
    )
    return WriteTxnMarkersRequest(markers=[row])


def test_somebody_who_calls_himself_a_broker_is_none(cluster: SecuredCluster) -> None:
    """Mallory has a certificate of the same authority, the listener of brokers, and their client id."""
    with as_broker(cluster, "mallory") as raw:
        row = raw.ask(marker(True), 1).markers[0].topics[0].partitions[0]
        assert row.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        transaction = AddPartitionsToTxnRequest.AddPartitionsToTxnTransaction(
            transactional_id="till-1", producer_id=1, producer_epoch=0, verify_only=True, topics=[]
        )
        answer = raw.ask(AddPartitionsToTxnRequest(transactions=[transaction]), 5)
        assert answer.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        # CVE-2018-1288: a forged replica's fetch would move the high watermark.
        topic_id = topic_id_of(cluster, "payments")
        forged = FetchRequest(
            replica_state=FetchRequest.ReplicaState(replica_id=1, replica_epoch=0), max_wait_ms=0, min_bytes=0,
            max_bytes=1000, session_epoch=-1,
            topics=[FetchRequest.FetchTopic(topic_id=topic_id, partitions=[FetchRequest.FetchPartition(
                partition=0, fetch_offset=0, partition_max_bytes=1000)])],
        )
        fetched = raw.ask(forged, 17)
        assert fetched.responses[0].partitions[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_an_administrator_who_calls_himself_a_broker_stays_an_administrator(cluster: SecuredCluster) -> None:
    """Alter on the cluster ends hanging transactions. It does not make a commit that no coordinator has decided."""
    allowed = rule(AclOperation.ALTER, "kafka-cluster", "User:CN=mallory", ResourceType.BROKER)
    allow(cluster, 2, allowed)
    try:
        with as_broker(cluster, "mallory") as raw:

            def answer() -> int:
                return int(raw.ask(marker(True), 1).markers[0].topics[0].partitions[0].error_code)

            # The broker that is asked may hear of the rule a moment later than the one that made it.
            until(lambda: answer() != ErrorCode.CLUSTER_AUTHORIZATION_FAILED, what="the rule to be known here")
            assert answer() in (ErrorCode.INVALID_TXN_STATE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    finally:
        forbid(cluster, 2, allowed)


#: What an administrator asks, and what a cluster does by other ways than one broker.
FOR_ADMINISTRATORS = [
    CreateTopicsRequest(topics=[CreateTopicsRequest.CreatableTopic(name="x", num_partitions=1, replication_factor=1)]),
    DeleteTopicsRequest(topics=[DeleteTopicsRequest.DeleteTopicState(name="payments")]),
    CreatePartitionsRequest(topics=[CreatePartitionsRequest.CreatePartitionsTopic(name="payments", count=9)]),
    AlterPartitionReassignmentsRequest(
        topics=[
            AlterPartitionReassignmentsRequest.ReassignableTopic(
                name="payments",
                partitions=[AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=0, replicas=[1])],
            )
        ]
    ),
    ListPartitionReassignmentsRequest(topics=None),
    ElectLeadersRequest(topic_partitions=None),
    IncrementalAlterConfigsRequest(
        resources=[IncrementalAlterConfigsRequest.AlterConfigsResource(resource_type=4, resource_name="", configs=[])]
    ),
    AlterClientQuotasRequest(
        entries=[
            AlterClientQuotasRequest.EntryData(
                entity=[AlterClientQuotasRequest.EntityData(entity_type="user", entity_name=None)], ops=[]
            )
        ]
    ),
    DescribeClientQuotasRequest(components=[]),
    AlterUserScramCredentialsRequest(
        deletions=[AlterUserScramCredentialsRequest.ScramCredentialDeletion(name="root", mechanism=2)]
    ),
    DescribeUserScramCredentialsRequest(users=None),
    DescribeAclsRequest(
        resource_type_filter=1, pattern_type_filter=1, resource_name_filter=None, principal_filter=None,
        host_filter=None, operation=1, permission_type=1,
    ),
    DeleteAclsRequest(
        filters=[
            DeleteAclsRequest.DeleteAclsFilter(
                resource_type_filter=1, pattern_type_filter=1, resource_name_filter=None, principal_filter=None,
                host_filter=None, operation=1, permission_type=1,
            )
        ]
    ),
]
_DENIED = {
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
}


@pytest.mark.parametrize("asked", FOR_ADMINISTRATORS, ids=lambda asked: type(asked).__name__)
def test_who_has_no_rights_administers_nothing_on_any_broker(cluster: SecuredCluster, asked: Any) -> None:
    """A topic that may not even be seen is one that is not there."""
    for at in cluster.brokers:
        with as_broker(cluster, "mallory", at, client_id="mallory") as raw:
            codes = set(map(ErrorCode, error_codes(raw.ask(asked)))) - {ErrorCode.NONE}
            assert codes and codes <= _DENIED


# What ZooKeeper is needed for, and what not


def test_while_zookeeper_is_silent_users_come_in_and_rules_hold_and_nothing_can_be_changed(
    cluster: SecuredCluster,
) -> None:
    allow(cluster, 1, rule(AclOperation.ALL, "quiet"))
    wait_for(admin_at(cluster).create_topics([NewTopic("quiet", 1, 3)]), "quiet")
    everywhere(cluster, "quiet", AclOperation.ALL)
    assert written(cluster, "alice", "quiet", b"before") is None
    (node,) = cluster.zookeeper.nodes
    node.freeze()
    try:
        assert written(cluster, "alice", "quiet", b"meanwhile") is None
        denied = written(cluster, "alice", "payments", b"no")
        assert denied is not None and denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
        with pytest.raises(KafkaException):
            admin_at(cluster, 1).create_acls([rule(AclOperation.ALL, "elsewhere")], request_timeout=3)[
                rule(AclOperation.ALL, "elsewhere")
            ].result(30)
    finally:
        node.thaw()
    until(lambda: written(cluster, "alice", "quiet", b"after") is None, within_s=60, what="all to go on")


def test_a_listener_gets_another_certificate_by_kafkas_settings_while_it_runs(cluster: SecuredCluster) -> None:
    alter = IncrementalAlterConfigsRequest

    def change(value: str | None) -> None:
        config = alter.AlterableConfig(
            name="listener.name.clients.ssl.keystore.location", config_operation=0 if value else 1, value=value
        )
        resource = alter.AlterConfigsResource(resource_type=4, resource_name="2", configs=[config])
        with as_broker(cluster, "broker-1", at=2, client_id="admin") as raw:
            row = raw.ask(alter(resources=[resource]), 1).responses[0]
        assert row.error_code == 0, row.error_message

    assert shown_certificate(cluster, 2) == "broker-2"
    change(str(cluster.certificates / "broker-3.pem"))
    until(lambda: shown_certificate(cluster, 2) == "broker-3", what="broker 2 to show another certificate")
    change(None)
    until(lambda: shown_certificate(cluster, 2) == "broker-2", what="broker 2 to show its own again")


def shown_certificate(cluster: SecuredCluster, at: int) -> str:
    context = ssl.create_default_context(cafile=str(cluster.certificates / "authority.pem"))
    with (
        socket.create_connection(("127.0.0.1", cluster[at].port), 10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as connection,
    ):
        found = connection.getpeercert()
    assert found is not None
    return dict(part for (part,) in found["subject"])["commonName"]  # type: ignore[misc, index]


def topic_id_of(cluster: SecuredCluster, topic: str) -> Any:
    with as_broker(cluster, "broker-1") as raw:
        asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=topic)])
        return raw.ask(asked, 12).topics[0].topic_id


def test_a_certificate_that_nobody_trusts_is_turned_away_by_the_brokers_listener(cluster: SecuredCluster) -> None:
    context = ssl.create_default_context(cafile=str(cluster.certificates / "authority.pem"))
    raw = Raw(f"127.0.0.1:{cluster[1].broker_port}")
    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
        raw.socket = context.wrap_socket(raw.socket, server_hostname="127.0.0.1")
        raw.ask(MetadataRequest(topics=[]), 9)
    raw.socket.close()
