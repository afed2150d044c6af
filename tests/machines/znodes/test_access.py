"""Access rules in ZooKeeper, beside what Apache Kafka 3.9 writes there."""

from __future__ import annotations

import json

import pytest

from semel.machines.security.access import AccessRule, Operation, PatternType, Permission, ResourceType
from semel.machines.znodes import access
from semel.machines.znodes.access import Pattern, TooManyRules, changed_node, decode_rules, pattern_at, pattern_of
from semel.machines.znodes.operations import Create, Delete, SetData

READ = AccessRule(
    ResourceType.TOPIC, "payments", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW
)
WRITE = READ._replace(operation=Operation.WRITE)
OF_KAFKA_39 = (
    b'{"version":1,"acls":[{"principal":"User:alice","permissionType":"Allow","operation":"Read","host":"*"},'
    b'{"principal":"User:alice","permissionType":"Allow","operation":"Write","host":"*"}]}'
)
PAYMENTS = pattern_of(READ)


def test_a_node_of_kafka_is_read_and_ours_says_the_same() -> None:
    assert decode_rules(PAYMENTS, OF_KAFKA_39) == ([READ, WRITE], [])
    (write, notice) = changed_node(PAYMENTS, None, [READ, WRITE], [])
    assert isinstance(write, Create) and write.path == "/kafka-acl/Topic/payments"
    assert json.loads(write.data) == json.loads(OF_KAFKA_39)
    assert notice == Create("/kafka-acl-changes/acl_changes_", b"TOPIC:payments", sequential=True)


def test_a_rule_by_prefix_has_a_folder_and_notifications_of_its_own() -> None:
    rule = READ._replace(pattern_type=PatternType.PREFIXED, resource_name="pay")
    (write, notice) = changed_node(pattern_of(rule), None, [rule], [])
    assert write.path == "/kafka-acl-extended/prefixed/Topic/pay"
    assert isinstance(notice, Create) and notice.path == "/kafka-acl-extended-changes/acl_changes_"
    assert json.loads(notice.data) == {
        "version": 1, "resourceType": "TOPIC", "name": "pay", "patternType": "PREFIXED",
    }
    assert pattern_at(write.path) == pattern_of(rule)


@pytest.mark.parametrize(
    ("kind", "word"),
    [
        (ResourceType.TRANSACTIONAL_ID, "TransactionalId"), (ResourceType.DELEGATION_TOKEN, "DelegationToken"),
        (ResourceType.CLUSTER, "Cluster"), (ResourceType.GROUP, "Group"), (ResourceType.USER, "User"),
    ],
)
def test_resources_have_kafkas_words(kind: ResourceType, word: str) -> None:
    pattern = Pattern(kind, "*", PatternType.LITERAL)
    assert pattern.path == f"/kafka-acl/{word}/*"
    assert pattern_at(pattern.path) == pattern
    assert f"/kafka-acl/{word}" in access.FOLDERS


def test_what_is_no_node_of_rules_is_none() -> None:
    assert pattern_at("/kafka-acl/Topic") is None
    assert pattern_at("/kafka-acl-changes/acl_changes_0000000001") is None
    assert pattern_at("/config/users/alice") is None


def test_cve_2024_27309_removing_one_of_two_rules_keeps_the_other() -> None:
    (write, _) = changed_node(PAYMENTS, (OF_KAFKA_39, 4), [], [READ])
    assert isinstance(write, SetData) and write.version == 4
    assert decode_rules(PAYMENTS, write.data)[0] == [WRITE]


def test_the_node_of_the_last_rule_goes() -> None:
    (write, _) = changed_node(PAYMENTS, (OF_KAFKA_39, 4), [], [READ, WRITE])
    assert write == Delete(PAYMENTS.path, 4)


def test_nothing_is_written_where_nothing_changes() -> None:
    assert changed_node(PAYMENTS, (OF_KAFKA_39, 4), [READ], []) == ()
    assert changed_node(PAYMENTS, None, [], [READ]) == ()


def test_a_rule_that_is_not_understood_is_kept() -> None:
    strange = b'{"version":1,"acls":[{"principal":"User:a","permissionType":"Allow","operation":"Fly","host":"*"}]}'
    assert decode_rules(PAYMENTS, strange)[0] == []
    (write, _) = changed_node(PAYMENTS, (strange, 0), [READ], [])
    assert isinstance(write, SetData) and b"Fly" in write.data


def test_more_rules_than_a_node_holds_are_refused() -> None:
    many = [READ._replace(principal=f"User:{'x' * 200}{number}") for number in range(3000)]
    with pytest.raises(TooManyRules, match="payments"):
        changed_node(PAYMENTS, None, many, [])


@pytest.mark.parametrize("name", ["a/b", ".", "..", "a\0"])
def test_a_name_that_no_node_can_have_is_known_as_such(name: str) -> None:
    assert not Pattern(ResourceType.GROUP, name, PatternType.LITERAL).can_be_stored
