"""A cluster under administration: topics deleted and grown, settings changed, replicas moved, leaders elected, brokers
restarted one after the other. Three broker processes over a real ZooKeeper."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)
from kazoo.client import KazooClient

from semel.errors import ErrorCode
from semel.machines.znodes import paths
from semel.machines.znodes.values import TopicAssignment, decode_config, decode_config_change
from semel.wire.messages.admin import (
    AlterPartitionReassignmentsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)
from semel.wire.messages.configs import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from semel.wire.messages.metadata import DescribeClusterRequest, DescribeTopicPartitionsRequest, MetadataRequest
from tests.broker.raw import Raw
from tests.cluster.records import Writer, all_in_sync, check, create, logs, partitions_of, stored
from tests.support import java_tools
from tests.support.cluster import Cluster, running_cluster
from tests.support.requirements import require_kafka, require_zookeeper
from tests.support.waiting import until

pytestmark = [pytest.mark.java, pytest.mark.timeout(180), pytest.mark.usefixtures("everybody_lives")]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    require_zookeeper()
    with running_cluster(3, replica_lag_time_max_ms=8000) as running:
        yield running


@pytest.fixture(scope="module")
def zookeeper(cluster: Cluster) -> Iterator[KazooClient]:
    client = KazooClient(cluster.zookeeper.connect)
    client.start(30)
    yield client
    client.stop()
    client.close()


#: A client that nobody holds is closed, and its requests with it.
clients: dict[str, AdminClient] = {}


def admin(cluster: Cluster, at: int | None = None) -> AdminClient:
    servers = cluster.bootstrap_servers if at is None else cluster[at].address
    return clients.setdefault(servers, AdminClient({"bootstrap.servers": servers}))


def create_on(cluster: Cluster, name: str, *replicas: list[int]) -> None:
    """A topic whose partitions are on these brokers. All brokers know it afterwards."""
    rows = [
        CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
        for index, brokers in enumerate(replicas)
    ]
    topic = CreateTopicsRequest.CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=rows)
    with Raw(cluster[1].address) as raw:
        assert raw.ask(CreateTopicsRequest(topics=[topic]), 7).topics[0].error_code == 0
    living = [number for number, broker in cluster.brokers.items() if broker.running.running()]
    until(
        lambda: all(len(partitions_of(cluster, name, at)) == len(replicas) for at in living),
        within_s=60,
        what=f"every broker to hear of {name}",
    )


def delete(cluster: Cluster, name: str, at: int) -> ErrorCode:
    """Delete a topic through this very broker, whoever is the controller."""
    with Raw(cluster[at].address) as raw:
        (answer,) = raw.ask(DeleteTopicsRequest(topic_names=[name]), 5).responses
    return ErrorCode(answer.error_code)


def directories(cluster: Cluster, topic: str) -> list[str]:
    """The directories of a topic's partitions, on all brokers."""
    found = []
    for broker in cluster.brokers.values():
        found += [f"{broker.number}:{path.name}" for path in broker.directory.glob(f"{topic}-*") if path.is_dir()]
    return sorted(found)


def alter(cluster: Cluster, kind: ResourceType, name: str, setting: str, value: str, at: int = 1) -> ErrorCode:
    """Change one setting through this very broker."""
    row = IncrementalAlterConfigsRequest.AlterableConfig(name=setting, config_operation=0, value=value)
    resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=kind.value, resource_name=name, configs=[row]
    )
    with Raw(cluster[at].address) as raw:
        (answer,) = raw.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
    return ErrorCode(answer.error_code)


def put(name: str, value: str) -> ConfigEntry:
    return ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)


def value_at(cluster: Cluster, at: int, kind: ResourceType, name: str, setting: str) -> str:
    """A setting as this very broker knows it."""
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=kind.value, resource_name=name, configuration_keys=[setting]
    )
    with Raw(cluster[at].address) as raw:
        (result,) = raw.ask(DescribeConfigsRequest(resources=[resource]), 4).results
    assert result.error_code == 0, result.error_message
    return str(result.configs[0].value)


# Topics


def test_a_deleted_topic_goes_on_every_broker_and_may_come_again(cluster: Cluster, zookeeper: KazooClient) -> None:
    """E7"""
    create(cluster, "doomed")
    writer = Writer(cluster, "doomed")
    writer.write(30)
    assert len(directories(cluster, "doomed")) == 9
    assert delete(cluster, "doomed", at=2) is ErrorCode.NONE
    assert zookeeper.exists(paths.topic("doomed")) is None
    assert zookeeper.exists(paths.config("topics", "doomed")) is None
    until(lambda: not directories(cluster, "doomed"), within_s=30, what="the data to go everywhere")
    create(cluster, "doomed")
    assert stored(cluster, "doomed") == []
    again = Writer(cluster, "doomed")
    again.write(30)
    check(cluster, again)


def test_what_cannot_be_deleted_is_refused(cluster: Cluster) -> None:
    assert delete(cluster, "never-was", at=1) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("only_validated", [True, False])
def test_replicas_that_cannot_be_are_refused(cluster: Cluster, only_validated: bool) -> None:
    """Also where nothing is to be created: what was found to be right was refused afterwards."""

    def created(*replicas: list[int]) -> ErrorCode:
        rows = [
            CreateTopicsRequest.CreatableReplicaAssignment(partition_index=index, broker_ids=brokers)
            for index, brokers in enumerate(replicas)
        ]
        topic = CreateTopicsRequest.CreatableTopic(
            name="impossible", num_partitions=-1, replication_factor=-1, assignments=rows
        )
        with Raw(cluster[1].address) as raw:
            answer = raw.ask(CreateTopicsRequest(topics=[topic], validate_only=only_validated), 7)
        return ErrorCode(answer.topics[0].error_code)

    for replicas in ([[1], [1, 2]], [[1, 1]], [[1, 99]], [[]]):
        assert created(*replicas) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_broker_that_was_away_sets_the_data_of_a_deleted_topic_aside(cluster: Cluster) -> None:
    """E7: also if there is another topic of that name by then."""
    create(cluster, "missed")
    Writer(cluster, "missed").write(30)
    create(cluster, "reborn")
    Writer(cluster, "reborn").write(30)
    cluster[3].kill9()
    for name in ("missed", "reborn"):
        assert delete(cluster, name, at=1) is ErrorCode.NONE
    create_on(cluster, "reborn", [1, 2, 3], [2, 3, 1], [1, 3, 2])
    cluster[3].start()
    until(
        lambda: not any(name.startswith("3:") and "stray" not in name for name in directories(cluster, "missed")),
        within_s=30,
        what="the data to be set aside",
    )
    assert any(name.endswith("-stray") for name in directories(cluster, "missed"))
    writer = Writer(cluster, "reborn")
    writer.write(30)
    assert sorted(stored(cluster, "reborn")) == sorted(writer.acknowledged)


def test_partitions_are_added_through_any_broker(cluster: Cluster) -> None:
    create(cluster, "growing", 2)
    admin(cluster, at=3).create_partitions([NewPartitions("growing", 5)])["growing"].result(30)
    until(lambda: all_in_sync(cluster, "growing", 5), within_s=60, what="the new partitions to be in sync")
    assert len({row.leader_id for row in partitions_of(cluster, "growing", 1)}) == 3
    writer = Writer(cluster, "growing", 5)
    writer.write(50)
    check(cluster, writer)
    for count, replicas, code in (
        (5, None, ErrorCode.INVALID_PARTITIONS),
        (6, [[1]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        (6, [[1, 2, 7]], ErrorCode.INVALID_REPLICA_ASSIGNMENT),
    ):
        more = NewPartitions("growing", count) if replicas is None else NewPartitions("growing", count, replicas)
        with pytest.raises(KafkaException) as refused:
            admin(cluster).create_partitions([more])["growing"].result(30)
        assert refused.value.args[0].code() == code


# Settings


def test_a_setting_changed_through_one_broker_holds_on_all(cluster: Cluster, zookeeper: KazooClient) -> None:
    create(cluster, "tuned", retention_ms="3600000")
    assert alter(cluster, ResourceType.TOPIC, "tuned", "max.message.bytes", "2000", at=2) is ErrorCode.NONE
    for at in cluster.brokers:
        until(
            lambda at=at: value_at(cluster, at, ResourceType.TOPIC, "tuned", "max.message.bytes") == "2000",  # type: ignore[misc]
            within_s=30,
            what="the setting to hold everywhere",
        )
    data, _ = zookeeper.get(paths.config("topics", "tuned"))
    assert decode_config(data, "") == {"retention.ms": "3600000", "max.message.bytes": "2000"}, "Kafka's JSON"
    last = max(zookeeper.get_children(paths.CONFIG_CHANGES))
    assert decode_config_change(zookeeper.get(f"{paths.CONFIG_CHANGES}/{last}")[0], "") == "topics/tuned"
    assert alter(cluster, ResourceType.TOPIC, "tuned", "retention.ms", "soon") is ErrorCode.INVALID_CONFIG
    assert alter(cluster, ResourceType.TOPIC, "never-was", "retention.ms", "1") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_two_brokers_that_change_one_topic_lose_nothing(cluster: Cluster, zookeeper: KazooClient) -> None:
    create(cluster, "contended", 1)
    names = ("flush.messages", "segment.ms", "retention.ms", "retention.bytes", "max.message.bytes", "segment.bytes")
    waits = []
    for number, name in enumerate(names):
        resource = ConfigResource(ResourceType.TOPIC, "contended", incremental_configs=[put(name, "77777")])
        client = admin(cluster, at=number % 3 + 1)
        waits += [(client, done) for done in client.incremental_alter_configs([resource]).values()]
    for _, done in waits:
        done.result(60)
    data, _ = zookeeper.get(paths.config("topics", "contended"))
    assert decode_config(data, "") == dict.fromkeys(names, "77777")


def test_settings_of_brokers_are_kept_for_one_and_for_all(cluster: Cluster, zookeeper: KazooClient) -> None:
    assert alter(cluster, ResourceType.BROKER, "", "log.retention.ms", "4000000", at=1) is ErrorCode.NONE
    assert alter(cluster, ResourceType.BROKER, "2", "message.max.bytes", "3000000", at=2) is ErrorCode.NONE
    assert alter(cluster, ResourceType.BROKER, "2", "message.max.bytes", "3000000", at=1) is ErrorCode.INVALID_REQUEST
    secret = "listener.name.plaintext.ssl.key.password"
    assert alter(cluster, ResourceType.BROKER, "1", secret, "x") is ErrorCode.INVALID_REQUEST
    assert decode_config(zookeeper.get(paths.config("brokers", "<default>"))[0], "") == {"log.retention.ms": "4000000"}
    assert decode_config(zookeeper.get(paths.config("brokers", "2"))[0], "") == {"message.max.bytes": "3000000"}
    cluster[2].running.terminate()
    cluster[2].start()
    for at in cluster.brokers:
        until(
            lambda at=at: value_at(cluster, at, ResourceType.BROKER, str(at), "log.retention.ms") == "4000000",  # type: ignore[misc]
            within_s=30,
            what="the default to hold everywhere",
        )
    assert value_at(cluster, 2, ResourceType.BROKER, "2", "message.max.bytes") == "3000000"
    assert value_at(cluster, 1, ResourceType.BROKER, "1", "message.max.bytes") != "3000000"


def test_with_fewer_needed_replicas_a_leader_that_is_alone_commits_again(cluster: Cluster) -> None:
    """R3 E5: nobody is eligible any more before the leader commits alone."""
    create(cluster, "lowered", 1, min_insync_replicas="2")
    (row,) = partitions_of(cluster, "lowered", 1)
    for number in cluster.brokers:
        if number != row.leader_id:
            cluster[number].kill9()
    until(
        lambda: partitions_of(cluster, "lowered", row.leader_id)[0].isr_nodes == [row.leader_id],
        within_s=60,
        what="one to be left",
    )
    assert described(cluster, "lowered", row.leader_id).eligible_leader_replicas
    done = alter(cluster, ResourceType.TOPIC, "lowered", "min.insync.replicas", "1", at=row.leader_id)
    assert done is ErrorCode.NONE
    Writer(cluster, "lowered", 1).write(5)
    assert described(cluster, "lowered", row.leader_id).eligible_leader_replicas == []


def described(cluster: Cluster, topic: str, at: int):  # type: ignore[no-untyped-def]
    """DescribeTopicPartitions of the first partition."""
    row = DescribeTopicPartitionsRequest.TopicRequest(name=topic)
    with Raw(cluster[at].address) as raw:
        answer = raw.ask(DescribeTopicPartitionsRequest(topics=[row], response_partition_limit=10), 0)
    return answer.topics[0].partitions[0]


# Replicas and leaders


def reassign(cluster: Cluster, topic: str, replicas: list[int] | None, at: int = 1, partition: int = 0) -> ErrorCode:
    row = AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=partition, replicas=replicas)
    rows = [AlterPartitionReassignmentsRequest.ReassignableTopic(name=topic, partitions=[row])]
    with Raw(cluster[at].address) as raw:
        answer = raw.ask(AlterPartitionReassignmentsRequest(topics=rows), 0)
    return ErrorCode(answer.responses[0].partitions[0].error_code)


def moving(cluster: Cluster, at: int = 1) -> list[str]:
    with Raw(cluster[at].address) as raw:
        return [row.name for row in raw.ask(ListPartitionReassignmentsRequest(topics=None), 0).topics]


def test_a_partition_moves_to_other_brokers_while_it_is_written(cluster: Cluster) -> None:
    """E9"""
    create_on(cluster, "moved", [1, 2])
    writer = Writer(cluster, "moved", 1)
    writer.write(50)
    assert reassign(cluster, "moved", [3, 2], at=2) is ErrorCode.NONE
    writer.write(50)
    until(lambda: not any(moving(cluster, at) for at in cluster.brokers), within_s=60, what="the move to end")
    until(
        lambda: all(sorted(partitions_of(cluster, "moved", at)[0].replica_nodes) == [2, 3] for at in cluster.brokers),
        within_s=30,
        what="everybody to know the replicas",
    )
    until(lambda: not (cluster[1].directory / "moved-0").exists(), within_s=30, what="the old replica's data to go")
    writer.write(50)
    assert sorted(stored(cluster, "moved", 1)) == sorted(writer.acknowledged)
    found = [one for one in logs(cluster, "moved", 0) if one]
    until(lambda: len({one for one in logs(cluster, "moved", 0) if one}) == 1, within_s=30, what="equal replicas")
    assert len(found) == 2


def test_a_move_that_cannot_end_is_listed_and_cancelled(cluster: Cluster, zookeeper: KazooClient) -> None:
    create_on(cluster, "stuck", [1])
    leader, others = 1, (2, 3)
    assert reassign(cluster, "stuck", [9]) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(cluster, "stuck", [leader, leader]) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(cluster, "stuck", None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert reassign(cluster, "never-was", [1]) is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    cluster[others[0]].freeze()
    try:
        assert reassign(cluster, "stuck", [others[0]], at=leader) is ErrorCode.NONE
        assert moving(cluster, leader) == ["stuck"]
        assert reassign(cluster, "stuck", None, at=leader) is ErrorCode.NONE
        assert moving(cluster, leader) == []
    finally:
        cluster[others[0]].thaw()
    data, _ = zookeeper.get(paths.topic("stuck"))
    assert TopicAssignment.decode(data, "").partitions == {0: (leader,)}
    writer = Writer(cluster, "stuck", 1)
    writer.write(10)
    assert sorted(stored(cluster, "stuck", 1)) == sorted(writer.acknowledged)


def test_the_preferred_leader_is_elected_and_an_unclean_one_only_when_nobody_leads(cluster: Cluster) -> None:
    create(cluster, "elected", 1)
    (row,) = partitions_of(cluster, "elected", 1)
    preferred = row.replica_nodes[0]
    at = next(number for number in cluster.brokers if number != preferred)

    def elect(kind: int) -> ErrorCode:
        wanted = [ElectLeadersRequest.TopicPartitions(topic="elected", partitions=[0])]
        with Raw(cluster[at].address) as raw:
            answer = raw.ask(ElectLeadersRequest(election_type=kind, topic_partitions=wanted), 2)
        return ErrorCode(answer.replica_election_results[0].partition_result[0].error_code)

    assert elect(0) is ErrorCode.ELECTION_NOT_NEEDED
    assert elect(1) is ErrorCode.ELECTION_NOT_NEEDED
    assert cluster[preferred].running.terminate() == 0
    until(lambda: partitions_of(cluster, "elected", at)[0].leader_id not in (-1, preferred), within_s=30, what="one")
    assert elect(0) is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    cluster[preferred].start()
    until(lambda: all_in_sync(cluster, "elected", 1), within_s=60, what="all to be in sync")
    assert elect(0) is ErrorCode.NONE
    assert partitions_of(cluster, "elected", at)[0].leader_id == preferred


def test_an_unclean_leader_is_elected_when_it_is_asked_for(cluster: Cluster) -> None:
    """Nobody leads, though a replica lives: it may lack what was committed, and a person decides."""
    create_on(cluster, "risky", [1, 2])
    writer = Writer(cluster, "risky", 1)
    until(lambda: len(partitions_of(cluster, "risky", 3)[0].isr_nodes) == 2, within_s=60, what="both to be in sync")
    cluster[2].kill9()
    until(lambda: partitions_of(cluster, "risky", 3)[0].isr_nodes == [1], within_s=60, what="one to be left")
    writer.write(5)
    cluster[1].kill9()
    cluster[2].start()
    until(lambda: partitions_of(cluster, "risky", 3)[0].leader_id == -1, within_s=60, what="nobody to lead")

    def elect(kind: int) -> ErrorCode:
        wanted = [ElectLeadersRequest.TopicPartitions(topic="risky", partitions=[0])]
        with Raw(cluster[3].address) as raw:
            answer = raw.ask(ElectLeadersRequest(election_type=kind, topic_partitions=wanted), 2)
        return ErrorCode(answer.replica_election_results[0].partition_result[0].error_code)

    assert elect(2) is ErrorCode.INVALID_REQUEST  # whatever that is, it is not consent to lose records
    assert partitions_of(cluster, "risky", 3)[0].leader_id == -1
    until(lambda: elect(1) is ErrorCode.NONE, within_s=60, what="an unclean leader")
    until(lambda: partitions_of(cluster, "risky", 3)[0].leader_id == 2, within_s=60, what="the others to hear of it")
    assert stored(cluster, "risky", 1) == []


def test_every_broker_names_the_controller(cluster: Cluster) -> None:
    named = set()
    for at in cluster.brokers:
        with Raw(cluster[at].address) as raw:
            answer = raw.ask(DescribeClusterRequest(), 0)
            assert sorted(row.broker_id for row in answer.brokers) == [1, 2, 3]
            named |= {answer.controller_id, raw.ask(MetadataRequest(topics=[]), 9).controller_id}
    assert len(named) == 1 and named <= {1, 2, 3}


# Restarts


def test_a_rolling_restart_fails_no_send(cluster: Cluster) -> None:
    """E8: each broker leads nothing when it goes."""
    create(cluster, "rolling", min_insync_replicas="2")
    writer = Writer(cluster, "rolling")
    writer.write(30)
    gaps = []
    for broker in cluster.brokers.values():
        begun = time.monotonic()
        broker.running.signal(15)
        worst_s = 0.0
        while broker.running.running():
            sent = time.monotonic()
            writer.write(3)
            worst_s = max(worst_s, time.monotonic() - sent)
            assert time.monotonic() - begun < 60
        gaps.append(worst_s)
        assert broker.running.popen.returncode == 0
        said = broker.running.output()
        assert "leads nothing that others can lead" in said
        broker.start()
        writer.write(30)
        until(lambda: all_in_sync(cluster, "rolling", 3), within_s=60, what="the broker to be in sync again")
    print("longest wait for 3 records, one for each partition, by broker:", [f"{gap * 1000:.0f} ms" for gap in gaps])
    assert writer.failed == []
    check(cluster, writer)


# Kafka's own tools


def test_kafkas_tools_describe_move_elect_and_delete(cluster: Cluster, tmp_path: Path) -> None:
    require_kafka()
    at = ("--bootstrap-server", cluster.bootstrap_servers)
    made = ("--topic", "tool", "--replica-assignment", "1:2", "--config", "flush.ms=9")
    java_tools.run("topics", *at, "--create", *made)
    plan = tmp_path / "plan.json"
    plan.write_text('{"version":1,"partitions":[{"topic":"tool","partition":0,"replicas":[3,1]}]}')
    begun = java_tools.run("reassign-partitions", *at, "--reassignment-json-file", plan, "--execute")
    assert "Successfully started partition reassignment" in begun.stdout
    until(lambda: not moving(cluster), within_s=60, what="the move to end")
    verified = java_tools.run("reassign-partitions", *at, "--reassignment-json-file", plan, "--verify")
    assert "Reassignment of partition tool-0 is completed." in verified.stdout
    java_tools.run(
        "leader-election", *at, "--election-type", "preferred", "--topic", "tool", "--partition", 0, check=False
    )
    described_by_tool = java_tools.run("topics", *at, "--describe", "--topic", "tool").stdout
    assert "Leader: 3" in described_by_tool and "Replicas: 3,1" in described_by_tool
    assert "flush.ms=9" in described_by_tool
    told = java_tools.run("log-dirs", *at, "--describe", "--broker-list", "3", "--topic-list", "tool").stdout
    assert '"partition":"tool-0"' in told
    # Each replica is asked, also those that follow.
    for number in cluster.brokers:
        java_tools.run("transactions", *at, "find-hanging", "--broker-id", number)
    java_tools.run("topics", *at, "--delete", "--topic", "tool")
    assert "tool" not in java_tools.run("topics", *at, "--list").stdout.split()
