"""docs/not-kafka.md, held: what is not served is refused, the way the page says."""

from __future__ import annotations

import socket
import struct

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from semel.errors import ErrorCode
from semel.wire.apis import ApiKey
from semel.wire.frames import parse_response, request_frame
from semel.wire.messages.produce import ProduceRequest
from tests.support.waiting import until


@pytest.fixture
def admin(semel_broker) -> AdminClient:
    return AdminClient({"bootstrap.servers": semel_broker.bootstrap_servers})


def refusal(future) -> KafkaError:
    with pytest.raises(KafkaException) as caught:
        future.result(10)
    return caught.value.args[0]


def test_a_replication_factor_above_one_is_refused(admin) -> None:
    error = refusal(admin.create_topics([NewTopic("t", 1, 2)])["t"])
    assert error.code() == KafkaError.INVALID_REPLICATION_FACTOR


def test_tiered_storage_is_refused_by_name(admin) -> None:
    error = refusal(admin.create_topics([NewTopic("t", 1, 1, config={"remote.storage.enable": "true"})])["t"])
    assert error.code() == KafkaError.INVALID_CONFIG
    assert "remote.storage.enable" in error.str()


def test_access_rules_are_refused_because_there_is_no_authorizer(admin) -> None:
    rule = AclBinding(
        ResourceType.TOPIC, "t", ResourcePatternType.LITERAL, "User:a", "*", AclOperation.READ, AclPermissionType.ALLOW
    )
    assert refusal(admin.create_acls([rule])[rule]).code() == KafkaError.SECURITY_DISABLED


def test_a_client_that_wants_sasl_is_told_that_there_is_none(semel_broker) -> None:
    errors: list[KafkaError] = []
    credentials = {"sasl.mechanism": "PLAIN", "sasl.username": "a", "sasl.password": "b", "log_level": 0}
    at = {"bootstrap.servers": semel_broker.bootstrap_servers, "security.protocol": "SASL_PLAINTEXT"}
    producer = Producer({**at, **credentials, "error_cb": errors.append})

    def told() -> bool:
        producer.poll(0.05)
        return any(error.code() == KafkaError._AUTHENTICATION for error in errors)

    until(told, within_s=10, what="an authentication error")


def exchange(bootstrap_servers: str, request: bytes) -> bytes:
    """The answer to one request, or nothing where the broker hangs up."""
    host, _, port = bootstrap_servers.rpartition(":")
    with socket.create_connection((host, int(port)), 10) as connection, connection.makefile("rb") as answers:
        connection.sendall(request)
        size = answers.read(4)
        return answers.read(struct.unpack(">i", size)[0]) if size else b""


def test_a_client_that_sends_what_is_not_advertised_is_disconnected(semel_broker) -> None:
    unregister_broker = struct.pack(">ihhihbib", 15, 64, 0, 1, -1, 0, 1, 0)
    assert exchange(semel_broker.bootstrap_servers, unregister_broker) == b""


@pytest.mark.parametrize("magic", [0, 1])
def test_old_record_formats_are_refused_with_the_protocols_error(semel_broker, admin, magic: int) -> None:
    admin.create_topics([NewTopic("t", 1, 1)])["t"].result(10)
    body = struct.pack(">bb", magic, 0) + (struct.pack(">q", 0) if magic else b"") + struct.pack(">ii", -1, -1)
    message = struct.pack(">qiI", 0, len(body) + 4, 0) + body
    partition = ProduceRequest.PartitionProduceData(index=0, records=message)
    topic = ProduceRequest.TopicProduceData(name="t", partition_data=[partition])
    request = ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])
    frame = b"".join(request_frame(ApiKey.PRODUCE, 9, 1, "test", request))
    _, answer = parse_response(ApiKey.PRODUCE, 9, memoryview(exchange(semel_broker.bootstrap_servers, frame)))
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_RECORD
