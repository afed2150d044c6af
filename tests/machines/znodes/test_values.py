"""What the znodes hold, beside what Apache Kafka 3.9 writes there."""

from __future__ import annotations

import json

import pytest

from semel.machines.replication.values import PartitionState
from semel.machines.znodes import values as z

#: As a ZooKeeper of Kafka 3.9 shows it.
OF_KAFKA_39 = {
    "broker": b'{"features":{},"listener_security_protocol_map":{"PLAINTEXT":"PLAINTEXT","TLS":"SSL"},"endpoints":'
    b'["PLAINTEXT://b1.example:9092","TLS://[::1]:9093"],"jmx_port":-1,"port":9092,"host":"b1.example","version":5,'
    b'"timestamp":"1731849600000","rack":"r1"}',
    "topic": b'{"partitions":{"0":[3,1,2],"1":[1,2]},"topic_id":"c2VtZWwtdGVzdC10b3BpYw","adding_replicas":{"0":[3]},'
    b'"removing_replicas":{},"version":3}',
    "state": b'{"controller_epoch":7,"leader":3,"version":1,"leader_epoch":4,"isr":[3,1]}',
    "controller": b'{"version":2,"brokerid":1,"timestamp":"1731849600000","kraftControllerEpoch":-1}',
    "block": b'{"version":1,"broker":1,"block_start":"0","block_end":"999"}',
    "acls": b'{"version":1,"acls":[{"principal":"User:ada","permissionType":"Allow","operation":"Read","host":"*"}]}',
}


def test_a_registration_of_kafka_is_read_and_ours_says_the_same() -> None:
    broker = z.BrokerRegistration.decode(OF_KAFKA_39["broker"], "/brokers/ids/1")
    assert broker.endpoints == (z.Endpoint("PLAINTEXT", "b1.example", 9092), z.Endpoint("TLS", "[::1]", 9093))
    assert (broker.protocols["TLS"], broker.rack, broker.timestamp_ms) == ("SSL", "r1", 1731849600000)
    assert json.loads(broker.encode()) == json.loads(OF_KAFKA_39["broker"])


def test_a_broker_without_plaintext_names_no_host_of_its_own() -> None:
    broker = z.BrokerRegistration((z.Endpoint("TLS", "b1", 9093),), {"TLS": "SSL"}, 1)
    assert (json.loads(broker.encode())["host"], json.loads(broker.encode())["port"]) == (None, -1)


def test_a_topic_of_kafka_is_read_and_ours_says_the_same() -> None:
    topic = z.TopicAssignment.decode(OF_KAFKA_39["topic"], "/brokers/topics/t")
    assert (topic.partitions, topic.adding) == ({0: (3, 1, 2), 1: (1, 2)}, {0: (3,)})
    assert json.loads(topic.encode()) == json.loads(OF_KAFKA_39["topic"])


def test_a_topic_that_moves_has_a_target() -> None:
    topic = z.TopicAssignment("id", {0: (3, 2, 1)}, {0: (3,)}, {0: (1,)})
    assert topic.target(0) == (3, 2)


def test_a_topic_without_an_id_stays_without() -> None:
    data = b'{"version":1,"partitions":{"0":[1]}}'
    topic = z.TopicAssignment.decode(data, "/brokers/topics/t")
    assert topic.topic_id is None and b"topic_id" not in topic.encode()


def test_r1_a_state_of_kafka_names_no_life_of_its_leader() -> None:
    assert z.decode_state(OF_KAFKA_39["state"], "p") == PartitionState(3, 4, (3, 1), -1, (), 7)


def test_a_state_has_kafkas_fields_and_two_of_ours() -> None:
    state = PartitionState(3, 4, (3, 1), 12, (2,), 7)
    assert z.decode_state(z.encode_state(state), "p") == state
    assert json.loads(z.encode_state(state)) == {
        **json.loads(OF_KAFKA_39["state"]),
        "leader_broker_epoch": 12,
        "elr": [2],
    }


def test_the_controller_and_its_epoch() -> None:
    assert json.loads(z.encode_controller(1, 1731849600000)) == json.loads(OF_KAFKA_39["controller"])
    assert z.decode_controller(OF_KAFKA_39["controller"]) == 1
    assert (z.encode_controller_epoch(7), z.decode_controller_epoch(b"7")) == (b"7", 7)


def test_z8_a_block_of_producer_ids_is_to_the_letter_and_the_next_one_follows_it() -> None:
    block = z.ProducerIdBlock.decode(OF_KAFKA_39["block"])
    assert block.encode() == OF_KAFKA_39["block"]
    assert block.next(3) == z.ProducerIdBlock(3, 1000, 1999)


def test_access_rules() -> None:
    rules = (z.AclEntry("User:ada", "Allow", "Read", "*"),)
    assert z.decode_acls(OF_KAFKA_39["acls"], "p") == rules
    assert z.encode_acls(rules) == OF_KAFKA_39["acls"]


def test_settings_and_their_changes() -> None:
    assert z.encode_config({"retention.ms": "5"}) == b'{"version":1,"config":{"retention.ms":"5"}}'
    assert z.decode_config(z.encode_config({"a": "b"}), "p") == {"a": "b"}
    assert z.decode_config(b"", "p") == {}
    assert z.encode_config_change("topics/t") == b'{"version":2,"entity_path":"topics/t"}'
    assert z.decode_config_change(z.encode_config_change("topics/t"), "p") == "topics/t"


def test_the_clusters_id_and_a_brokers_life() -> None:
    assert z.encode_cluster_id("abc") == b'{"version":"1","id":"abc"}'
    assert z.decode_cluster_id(z.encode_cluster_id("abc")) == "abc"
    life = z.BrokerLife("directory", True, (z.Endpoint("PLAINTEXT", "host", 9092),))
    assert z.BrokerLife.decode(life.encode(), "p") == life
    assert z.BrokerLife.decode(b'{"version":1,"directory_id":"directory"}', "p") == z.BrokerLife("directory")


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"leader":"x","leader_epoch":1,"isr":[],"controller_epoch":1}'])
def test_what_cannot_be_read_names_its_path(data: bytes) -> None:
    with pytest.raises(z.UnreadableZnode, match="/brokers/topics/t/partitions/0/state in ZooKeeper cannot be read"):
        z.decode_state(data, "/brokers/topics/t/partitions/0/state")


def topic_node(partitions: object, **more: object) -> bytes:
    return json.dumps({"topic_id": "A" * 22, "partitions": partitions, **more}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        topic_node({}),
        topic_node({"1": [1]}),
        topic_node({"0": []}),
        topic_node({"0": [1, 1]}),
        topic_node({"0": [-1]}),
        topic_node({"0": [2**31]}),
        topic_node({"0": "12"}),
        b'{"topic_id":null,"partitions":{"0":[1e999]}}',
        topic_node({"0": [1]}, topic_id="xyz"),
        topic_node({"0": [1]}, topic_id=5),
        topic_node({"0": [1]}, removing_replicas={"0": [1]}),
        topic_node({"0": [1]}, adding_replicas={"0": [2]}),
        topic_node({"0": [1]}, adding_replicas={"1": []}),
    ],
    ids=lambda data: data[:60].decode(),
)
def test_what_no_topic_can_be_is_not_read(data: bytes) -> None:
    with pytest.raises(z.UnreadableZnode, match="/brokers/topics/t in ZooKeeper cannot be read"):
        z.TopicAssignment.decode(data, "/brokers/topics/t")


@pytest.mark.parametrize(
    "wrong",
    [{"leader": -2}, {"leader": 2**31}, {"leader_epoch": 2**31}, {"leader_epoch": -1}, {"isr": "12"}, {"isr": [1, 1]},
     {"elr": 5}, {"controller_epoch": -2}],
    ids=str,
)  # fmt: skip
def test_what_no_register_can_be_is_not_read(wrong: dict[str, object]) -> None:
    sound = {"leader": 1, "leader_epoch": 0, "isr": [1], "controller_epoch": 1}
    assert z.decode_state(json.dumps(sound).encode(), "p").isr == (1,)
    with pytest.raises(z.UnreadableZnode, match="p in ZooKeeper cannot be read"):
        z.decode_state(json.dumps(sound | wrong).encode(), "p")


@pytest.mark.parametrize("wrong", [{"rack": 7}, {"endpoints": ["PLAINTEXT://h:65536"]}, {"timestamp": str(2**63)}])
def test_what_no_broker_can_be_is_not_read(wrong: dict[str, object]) -> None:
    """What it says goes to clients, in fields that cannot hold more."""
    sound = {"endpoints": ["PLAINTEXT://h:9092"], "timestamp": "1", "rack": "a"}
    assert z.BrokerRegistration.decode(json.dumps(sound).encode(), "p").rack == "a"
    with pytest.raises(z.UnreadableZnode, match="p in ZooKeeper cannot be read"):
        z.BrokerRegistration.decode(json.dumps(sound | wrong).encode(), "p")


def test_an_access_rule_has_words() -> None:
    with pytest.raises(z.UnreadableZnode):
        z.decode_acls(b'{"acls":[{"principal":5,"permissionType":"Allow","operation":["Read"],"host":"*"}]}', "p")
