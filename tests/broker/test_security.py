"""A broker without an authorizer and with PLAINTEXT listeners answers as Apache Kafka does in the same place."""

from __future__ import annotations

from typing import Any

import pytest

from semel.broker.embedded import Broker
from semel.errors import ErrorCode
from semel.wire.messages.admin import AlterReplicaLogDirsRequest, DescribeLogDirsRequest
from semel.wire.messages.features import ApiVersionsRequest
from semel.wire.messages.security import (
    CreateAclsRequest,
    DeleteAclsRequest,
    DescribeAclsRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
)
from semel.wire.messages.tokens import (
    CreateDelegationTokenRequest,
    DescribeDelegationTokenRequest,
    ExpireDelegationTokenRequest,
    RenewDelegationTokenRequest,
)
from tests.broker.raw import Raw

ANYTHING = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}
A_RULE = {"resource_type": 2, "resource_pattern_type": 3, "operation": 3, "permission_type": 3}

#: What Apache Kafka 4.3.1 advertises on a PLAINTEXT listener and Semel does not: the quorum, other brokers, and the
#: groups of shares and of streams.
NOT_ADVERTISED = {64, *range(76, 82), *range(83, 93)}
#: Apache Kafka 4.3.1's table, read from one: the keys a client of its broker sees.
ADVERTISED_BY_KAFKA = {
    *range(4),
    *range(8, 52),
    *(55, 57, 60, 61, 64, 65, 66, 68, 69, 74, 75),
    *range(76, 82),
    *range(83, 93),
}


def test_what_is_advertised_is_kafkas_table_but_for_what_needs_more_nodes_share_and_streams_groups(raw: Raw) -> None:
    asked = ApiVersionsRequest(client_software_name="test", client_software_version="1")
    advertised = {row.api_key for row in raw.ask(asked).api_keys}
    assert advertised == ADVERTISED_BY_KAFKA - NOT_ADVERTISED


@pytest.mark.parametrize("version", [1, 2, 3])
def test_access_rules_are_refused_because_nobody_would_check_them(raw: Raw, version: int) -> None:
    described = raw.ask(DescribeAclsRequest(**ANYTHING), version)
    assert (described.error_code, described.resources) == (ErrorCode.SECURITY_DISABLED, [])
    assert described.error_message
    created = raw.ask(CreateAclsRequest(creations=[CreateAclsRequest.AclCreation(**A_RULE)] * 2), version)
    assert [row.error_code for row in created.results] == [ErrorCode.SECURITY_DISABLED] * 2
    deleted = raw.ask(DeleteAclsRequest(filters=[DeleteAclsRequest.DeleteAclsFilter(**ANYTHING)]), version)
    assert [row.error_code for row in deleted.filter_results] == [ErrorCode.SECURITY_DISABLED]


@pytest.mark.parametrize(
    "asked",
    [
        DescribeAclsRequest(**{**ANYTHING, "resource_type_filter": 0}),
        CreateAclsRequest(creations=[CreateAclsRequest.AclCreation(**{**A_RULE, "operation": 0})]),
        DeleteAclsRequest(filters=[DeleteAclsRequest.DeleteAclsFilter(**{**ANYTHING, "permission_type": 0})]),
    ],
    ids=["describe", "create", "delete"],
)
def test_a_rule_about_something_unknown_is_a_broken_request(broker: Broker, asked: Any) -> None:
    with Raw(broker) as raw:
        raw.send(asked)
        assert raw.is_closed()


def test_nobody_authenticates_on_a_plaintext_listener_and_the_connection_lives_on(raw: Raw) -> None:
    for version in (0, 1):
        answer = raw.ask(SaslHandshakeRequest(mechanism="PLAIN"), version)
        assert (answer.error_code, answer.mechanisms) == (ErrorCode.ILLEGAL_SASL_STATE, [])
    for version in (0, 1, 2):
        answer = raw.ask(SaslAuthenticateRequest(auth_bytes=b"\0user\0secret"), version)
        assert (answer.error_code, answer.auth_bytes) == (ErrorCode.ILLEGAL_SASL_STATE, b"")


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "asked",
    [
        CreateDelegationTokenRequest(max_lifetime_ms=-1),
        RenewDelegationTokenRequest(hmac=b"token"),
        ExpireDelegationTokenRequest(hmac=b"token"),
        DescribeDelegationTokenRequest(owners=None),
    ],
    ids=["create", "renew", "expire", "describe"],
)
def test_delegation_tokens_cannot_be_asked_for_without_authentication(raw: Raw, asked: Any, version: int) -> None:
    assert raw.ask(asked, version).error_code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def test_a_refused_token_names_the_owner_it_was_asked_for(raw: Raw) -> None:
    answer = raw.ask(CreateDelegationTokenRequest(owner_principal_type=None, owner_principal_name=None))
    assert (answer.principal_type, answer.principal_name) == ("User", "ANONYMOUS")
    assert (answer.token_requester_principal_name, answer.token_id, answer.hmac) == ("ANONYMOUS", "", b"")


def test_a_partition_may_be_moved_into_the_directory_where_it_is(raw: Raw, topic: str) -> None:
    raw.create(topic)
    ours = raw.ask(DescribeLogDirsRequest(topics=None)).results[0].log_dir

    def moved(path: str, name: str, partition: int) -> int:
        topics = [AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic(name=name, partitions=[partition])]
        where = AlterReplicaLogDirsRequest.AlterReplicaLogDir(path=path, topics=topics)
        answer = raw.ask(AlterReplicaLogDirsRequest(dirs=[where])).results[0]
        assert (answer.topic_name, answer.partitions[0].partition_index) == (name, partition)
        code: int = answer.partitions[0].error_code
        return code

    assert moved(ours, topic, 0) == ErrorCode.NONE
    assert moved(ours, topic, 7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert moved(ours, "nowhere", 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert moved("/nowhere", topic, 0) == ErrorCode.LOG_DIR_NOT_FOUND
    assert moved("relative", topic, 0) == ErrorCode.LOG_DIR_NOT_FOUND
