"""CreateAcls, DescribeAcls, DeleteAcls: stored before they are answered, checked as Apache Kafka 4.3.1 checks them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.broker.embedded import Broker
from semel.broker.handlers import acls
from semel.errors import ErrorCode
from semel.log.files import Files
from semel.machines.security.access import AccessRule, Operation, PatternType, Permission, ResourceType
from semel.wire.messages.security import CreateAclsRequest, DeleteAclsRequest
from tests.broker.access.rules import (
    ANONYMOUS,
    AS_SUPER_USER,
    WITH_AUTHORIZER,
    create,
    creation,
    delete,
    describe_request,
    described,
    only,
    rule,
    wanted,
)
from tests.broker.raw import Raw
from tests.support.authorizing_kafka import AuthorizingKafka
from tests.support.processes import BrokerProcess
from tests.support.requirements import require_kafka


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings=AS_SUPER_USER) as running:
        yield running


@pytest.fixture(autouse=True)
def no_rules(raw: Raw) -> None:
    delete(raw, wanted())


READ, WRITE = rule(), rule(operation=Operation.WRITE)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_rules_are_created_described_and_deleted(raw: Raw, version: int) -> None:
    prefixed = rule(name="orders-", pattern=PatternType.PREFIXED, permission=Permission.DENY, host="10.0.0.1")
    assert create(raw, READ, prefixed, version=version) == [0, 0]
    assert described(raw, version=version) == {READ, prefixed}
    assert delete(raw, only(READ), version=version) == [{READ}]
    assert described(raw, version=version) == {prefixed}


def test_a_rule_that_is_there_already_is_not_there_twice(raw: Raw) -> None:
    assert create(raw, READ, READ) == [0, 0]
    assert create(raw, READ) == [0]
    assert len(raw.ask(describe_request()).resources[0].acls) == 1


def test_removing_one_of_two_rules_keeps_the_other(raw: Raw, broker: Broker) -> None:
    """CVE-2024-27309: in Apache Kafka both were gone, as long as brokers and controllers moved to KRaft."""
    create(raw, READ, WRITE)
    assert delete(raw, only(READ)) == [{READ}]
    assert described(raw) == {WRITE}
    access = broker.server.access
    assert access is not None
    assert access.rules.allows("User:alice", "10.0.0.1", Operation.WRITE, ResourceType.TOPIC, "t")
    assert not access.rules.allows("User:alice", "10.0.0.1", Operation.READ, ResourceType.TOPIC, "t")


def test_removing_one_of_two_rules_keeps_the_other_after_a_restart_and_a_kill(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", settings=AS_SUPER_USER) as process:
        with Raw(process.bootstrap_servers) as raw:
            create(raw, READ, WRITE)
            delete(raw, only(READ))
        process.kill9()
        process.start()
        with Raw(process.bootstrap_servers) as raw:
            assert described(raw) == {WRITE}
        process.restart()
        with Raw(process.bootstrap_servers) as raw:
            assert described(raw) == {WRITE}


def test_rules_by_resource_in_the_answer(raw: Raw) -> None:
    other = rule(ResourceType.GROUP, "g")
    create(raw, READ, other, WRITE)
    answer = raw.ask(describe_request())
    assert [(row.resource_type, row.resource_name, len(row.acls)) for row in answer.resources] == [
        (ResourceType.TOPIC, "t", 2),
        (ResourceType.GROUP, "g", 1),
    ]


def test_each_filter_is_answered_with_all_that_it_matches(raw: Raw) -> None:
    prefixed, everything = rule(name="or", pattern=PatternType.PREFIXED), rule(name="*")
    create(raw, READ, prefixed, everything)
    match = wanted(resource_type_filter=ResourceType.TOPIC, resource_name_filter="orders", pattern_type_filter=2)
    assert delete(raw, match, only(prefixed), wanted(resource_name_filter="nothing")) == [
        {prefixed, everything},
        {prefixed},
        set(),
    ]
    assert described(raw) == {READ}


NONSENSE: dict[str, AccessRule] = {
    "cluster by another name": rule(ResourceType.CLUSTER, "x", Operation.ALTER),
    "no name": rule(name=""),
    "no principal": rule(who="alice"),
    "resource type unknown": rule(99),
    "pattern type unknown": rule(pattern=99),
    "operation unknown": rule(operation=99),
    "permission unknown": rule(permission=99),
}
SENSE: dict[str, AccessRule] = {
    "any host": rule(host="not an address"),
    "an operation that topics do not have": rule(operation=Operation.TWO_PHASE_COMMIT),
    "a principal of another kind": rule(who="Robot:r2"),
    "a user": rule(ResourceType.USER, "User:bob", Operation.CREATE_TOKENS),
    "a token": rule(ResourceType.DELEGATION_TOKEN, "id", Operation.DESCRIBE),
}


@pytest.mark.parametrize("about", NONSENSE)
def test_a_rule_that_makes_no_sense_is_refused_and_the_others_are_stored(raw: Raw, about: str) -> None:
    assert create(raw, READ, NONSENSE[about], WRITE) == [0, ErrorCode.INVALID_REQUEST, 0]
    assert described(raw) == {READ, WRITE}


@pytest.mark.parametrize("about", SENSE)
def test_what_kafka_stores_is_stored(raw: Raw, about: str) -> None:
    assert create(raw, SENSE[about]) == [0]
    assert described(raw) == {SENSE[about]}


@pytest.mark.parametrize(
    "about",
    [rule(1), rule(pattern=1), rule(pattern=2), rule(operation=1), rule(permission=1)],
    ids=["type ANY", "pattern ANY", "pattern MATCH", "operation ANY", "permission ANY"],
)
def test_what_is_only_for_filters_is_refused_in_a_rule(raw: Raw, about: AccessRule) -> None:
    """Kafka answers UNKNOWN_SERVER_ERROR, and stores none of the request's rules."""
    assert create(raw, about, READ) == [ErrorCode.INVALID_REQUEST, 0]


FILTER_FIELDS = ["resource_type_filter", "pattern_type_filter", "operation", "permission_type"]


@pytest.mark.parametrize("field", FILTER_FIELDS)
def test_a_filter_that_names_something_unknown_removes_nothing(raw: Raw, field: str) -> None:
    create(raw, READ)
    assert delete(raw, wanted(**{field: 99})) == [ErrorCode.INVALID_REQUEST]
    assert described(raw) == {READ}
    assert described(raw, **{field: 99}) == set()


@pytest.mark.parametrize("field", FILTER_FIELDS)
def test_unknown_in_so_many_words_is_a_broken_request(broker: Broker, field: str) -> None:
    filters = [wanted(), wanted(**{field: 0})]
    rules = [creation(READ), creation(WRITE)]
    setattr(rules[1], {"resource_type_filter": "resource_type", "pattern_type_filter": "resource_pattern_type"}.get(
        field, field
    ), 0)
    requests: list[Any] = [
        describe_request(**{field: 0}), DeleteAclsRequest(filters=filters), CreateAclsRequest(creations=rules)
    ]
    for request in requests:
        with Raw(broker) as raw:
            raw.send(request)
            assert raw.is_closed()
    with Raw(broker) as raw:
        assert described(raw) == set()


def test_a_request_creates_and_removes_only_so_many_rules(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls, "MOST_AT_ONCE", 3)
    rules = [rule(name=f"t{number}") for number in range(4)]
    assert create(raw, *rules) == [ErrorCode.POLICY_VIOLATION] * 4
    assert create(raw, *rules[:3], rules[0]) == [0] * 4
    assert create(raw, rules[3]) == [0]
    # Kafka removes 10,000 of the rules and says that it removed none.
    assert delete(raw, wanted()) == [ErrorCode.INVALID_REQUEST]
    assert described(raw) == {*rules}
    assert delete(raw, *[only(one) for one in rules]) == [
        {rules[0]}, {rules[1]}, {rules[2]}, ErrorCode.INVALID_REQUEST
    ]
    assert described(raw) == {rules[3]}


def test_the_answer_to_many_broad_filters_is_bounded(raw: Raw, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls, "MOST_LISTED", 5)
    create(raw, READ, WRITE)
    answers = delete(raw, wanted(), wanted(), wanted())
    assert answers == [{READ, WRITE}, {READ, WRITE}, ErrorCode.INVALID_REQUEST]


class FailingFiles(Files):
    """A disk that cannot write once `fails` is set."""

    fails = False

    def replace(self, path: Path, data: bytes, **options: Any) -> None:
        if self.fails:
            raise OSError(28, "No space left on device", str(path))
        super().replace(path, data, **options)


def test_a_rule_that_the_disk_refuses_does_not_hold() -> None:
    broker = semel.Broker(settings=AS_SUPER_USER)
    files = broker.server.files = FailingFiles()
    with broker, Raw(broker) as raw:
        create(raw, READ)
        files.fails = True
        assert create(raw, WRITE) == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert delete(raw, wanted()) == [ErrorCode.KAFKA_STORAGE_ERROR]
        assert described(raw) == {READ}
        files.fails = False
        assert create(raw, WRITE) == [0]
        assert described(raw) == {READ, WRITE}


def test_a_stored_rule_that_cannot_be_read_refuses_the_start(tmp_path: Path) -> None:
    with semel.Broker(tmp_path, settings=AS_SUPER_USER) as broker, Raw(broker) as raw:
        create(raw, READ)
    path = tmp_path / ".metadata" / "access-rules"
    version, body, _ = path.read_text().split("\n", 2)
    path.write_text(f"{version}\n{body.replace('ALLOW', 'PERHAPS')}\n")
    with pytest.raises(Exception, match=r"access-rules is damaged"):
        semel.Broker(tmp_path, settings=AS_SUPER_USER).start()


def test_without_a_rule_nobody_sees_or_changes_the_rules() -> None:
    with semel.Broker(settings=WITH_AUTHORIZER) as broker, Raw(broker) as raw:
        access = broker.server.access
        assert access is not None
        denied = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        for version in (1, 2, 3):
            assert raw.ask(describe_request(), version).error_code == denied
            assert create(raw, READ, rule(1), version=version) == [denied, denied]
            assert delete(raw, wanted(), wanted(), version=version) == [denied, denied]
        assert len(access.rules) == 0
        cluster = rule(ResourceType.CLUSTER, "kafka-cluster", Operation.DESCRIBE, who=ANONYMOUS)
        access.rules.add([cluster])
        assert described(raw) == {cluster}
        assert create(raw, READ) == [denied]
        access.rules.add([cluster._replace(operation=Operation.ALTER)])
        assert create(raw, READ) == [0]
        assert delete(raw, only(READ)) == [{READ}]


def test_a_broken_request_is_broken_whoever_sends_it() -> None:
    with semel.Broker(settings=WITH_AUTHORIZER) as broker:
        requests: list[Any] = [
            describe_request(operation=0),
            DeleteAclsRequest(filters=[wanted(), wanted(operation=0)]),
            CreateAclsRequest(creations=[creation(READ), creation(rule(operation=0))]),
        ]
        for request in requests:
            with Raw(broker) as raw:
                raw.send(request)
                assert raw.is_closed()


def test_kafka_answers_the_same(raw: Raw) -> None:
    """The same rules and filters, in the same order, to Apache Kafka."""
    require_kafka()
    rules = [READ, WRITE, rule(name="or", pattern=PatternType.PREFIXED), rule(name="*"), *NONSENSE.values(),
             *SENSE.values()]
    match = {"resource_type_filter": ResourceType.TOPIC, "resource_name_filter": "orders", "pattern_type_filter": 2}
    with AuthorizingKafka() as kafka, kafka.as_admin() as theirs:
        assert create(raw, *rules) == create(theirs, *rules)
        for fields in ({}, match, {"principal_filter": "User:alice"}, {"operation": 99}, {"resource_name_filter": "t"}):
            assert described(raw, **fields) == described(theirs, **fields)
        filters = [wanted(**match), only(READ), only(READ), wanted(resource_type_filter=99), wanted(operation=99)]
        assert delete(raw, *filters) == delete(theirs, *filters)
        assert described(raw) == described(theirs)
        for request in (describe_request(), CreateAclsRequest(creations=[creation(READ)])):
            with kafka.as_anonymous() as nobody:
                answer: Any = nobody.ask(request)
                codes = [answer.error_code] if hasattr(answer, "error_code") else [answer.results[0].error_code]
                assert codes == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
