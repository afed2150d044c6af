"""Access rules by way of the admin client, on Semel and on Apache Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel import AclBinding, Admin, Broker, Security
from semel.client.admin import acls as acl_admin
from semel.client.admin.admin import AsyncAdmin
from semel.errors import AuthorizationFailed, ErrorCode, Misuse, SecurityDisabled
from semel.machines.security.access import OPERATIONS_ON
from tests.support.authorizing_kafka import ADMIN, PASSWORD, AuthorizingKafka
from tests.support.requirements import require_kafka
from tests.support.waiting import until

READ = AclBinding("User:alice", "read", "topic", "payments")
DENY = AclBinding("User:alice", "write", "topic", "pay", "prefixed", "10.0.0.7", "deny")
ALL = AclBinding("User:*", "all", "group", "*")
TWO_PHASE = AclBinding("User:alice", "two_phase_commit", "transactional_id", "till")
CLUSTER = AclBinding("User:alice", "idempotent_write", "cluster")
TOKENS = AclBinding("User:alice", "create_tokens", "user", "User:bob")
RULES = [READ, DENY, ALL, TWO_PHASE, CLUSTER, TOKENS]


@pytest.fixture(scope="module", params=["semel", pytest.param("kafka", marks=pytest.mark.java)])
def settings(request: pytest.FixtureRequest) -> Iterator[dict[str, object]]:
    """The connection of somebody who may do everything."""
    if request.param == "semel":
        with Broker(security=Security(["root"], super_users=["root"])) as broker:
            yield broker.client_settings("root")
        return
    require_kafka()
    with AuthorizingKafka() as kafka:
        login = {"sasl.mechanism": "PLAIN", "sasl.username": ADMIN, "sasl.password": PASSWORD}
        yield {"bootstrap.servers": kafka.admin_servers, "security.protocol": "SASL_PLAINTEXT", **login}


@pytest.fixture
def admin(settings: dict[str, object]) -> Iterator[Admin]:
    with Admin(settings) as client:
        yield client
        client.delete_acls(client.describe_acls())
        until(lambda: client.describe_acls() == [], what="the rules to be gone")


def there(admin: Admin, expected: list[AclBinding], **wanted: str) -> None:
    """Apache Kafka's controller answers before the broker that is asked next has heard of it."""
    until(lambda: set(admin.describe_acls(**wanted)) == set(expected), what=f"{expected}")


def test_rules_are_added_described_and_removed(admin: Admin) -> None:
    admin.create_acls(RULES)
    admin.create_acls([READ, READ])
    there(admin, RULES)
    assert set(admin.delete_acls([READ, DENY, READ])) == {READ, DENY}
    there(admin, [ALL, TWO_PHASE, CLUSTER, TOKENS])
    assert admin.delete_acls([READ]) == []
    admin.create_acls([])
    assert admin.delete_acls([]) == []


def test_rules_are_found_by_each_of_their_parts(admin: Admin) -> None:
    admin.create_acls(RULES)
    there(admin, RULES)
    there(admin, [ALL], principal="User:*")
    there(admin, [DENY], host="10.0.0.7")
    there(admin, [READ], operation="READ")
    there(admin, [TWO_PHASE], resource_type="TransactionalId")
    there(admin, [DENY], pattern_type="prefixed")
    there(admin, [DENY], permission="deny")
    there(admin, [READ], resource_type="topic", resource_name="payments", pattern_type="literal")
    there(admin, [READ, DENY], resource_type="topic", resource_name="payments", pattern_type="match")
    there(admin, [ALL], resource_type="group", resource_name="billing", pattern_type="match")
    there(admin, [], principal="User:nobody")


def test_many_rules_are_sent_in_several_requests(admin: Admin, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_admin, "RULES_PER_REQUEST", 2)
    admin.create_acls(RULES)
    there(admin, RULES)
    assert set(admin.delete_acls(RULES)) == set(RULES)


def test_the_same_works_on_asyncio(settings: dict[str, object]) -> None:
    async def run() -> list[AclBinding]:
        async with AsyncAdmin(settings) as admin:
            await admin.create_acls([READ])
            return await admin.delete_acls([READ])

    assert asyncio.run(run()) == [READ]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (AclBinding("alice", "read", "topic", "t"), "'alice' is not a principal: expected TYPE:NAME"),
        (AclBinding("User:", "read", "topic", "t"), "is not a principal"),
        (AclBinding("User:a", "read", "topic", ""), "resource_name is empty"),
        (AclBinding("User:a", "read", "topic", "t", host=""), "host is empty"),
        (AclBinding("User:a", "fly", "topic", "t"), "operation is 'fly': it must be one of all, read"),
        (AclBinding("User:a", "any", "topic", "t"), "operation is 'any'"),
        (AclBinding("User:a", "read", "cloud", "t"), "resource_type is 'cloud': it must be one of topic, group"),
        (AclBinding("User:a", "create", "cluster", "t"), "the only name of a cluster is kafka-cluster, not 't'"),
        (AclBinding("User:a", "write", "group", "g"), "write is no operation on a group: choose from alter_configs"),
        (AclBinding("User:a", "read", "topic", "t", "match"), "pattern_type is 'match': .* literal, prefixed"),
        (AclBinding("User:a", "read", "topic", "t", permission="perhaps"), "permission is 'perhaps': .* allow, deny"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_before_anything_is_sent(wrong: AclBinding, why: str) -> None:
    with Admin({"bootstrap.servers": "127.0.0.1:1"}) as admin, pytest.raises(Misuse, match=why):
        admin.create_acls([READ, wrong])


def test_a_broker_without_an_authorizer_says_which_setting_turns_rules_on(semel_broker: Broker) -> None:
    with Admin(semel_broker.client_settings()) as admin:
        for attempt in (
            lambda: admin.create_acls([READ]), lambda: admin.delete_acls([READ]), admin.describe_acls
        ):  # fmt: skip
            with pytest.raises(SecurityDisabled, match=r"authorizer\.class\.name=.*StandardAuthorizer"):
                attempt()


def test_who_may_not_see_the_rules_is_told_so() -> None:
    security = Security(["alice", "root"], super_users=["root"])
    with Broker(security=security) as broker, Admin(broker.client_settings("alice")) as admin:
        with pytest.raises(AuthorizationFailed) as refused:
            admin.describe_acls()
        assert refused.value.code is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        with Admin(broker.client_settings("root")) as root:
            root.create_acls([AclBinding("User:alice", "describe", "cluster", "kafka-cluster")])
        assert admin.describe_acls() != [], "the same admin goes on once it is allowed"


RESOURCES = [(kind.name, operation.name) for kind, operations in OPERATIONS_ON.items() for operation in operations]
NAMES = st.text(min_size=1, max_size=20)


@given(
    resource=st.sampled_from(RESOURCES),
    name=NAMES,
    who=NAMES,
    host=NAMES,
    pattern_type=st.sampled_from(["literal", "prefixed"]),
    permission=st.sampled_from(["allow", "deny"]),
)
def test_words_become_a_rule_and_the_rule_the_same_words(
    resource: tuple[str, str], name: str, who: str, host: str, pattern_type: str, permission: str
) -> None:
    kind, operation = (word.lower() for word in resource)
    if kind == "cluster":
        name = "kafka-cluster"
    binding = AclBinding(f"User:{who}", operation, kind, name, pattern_type, host, permission)
    assert AclBinding.from_rule(binding.rule()) == binding
    assert AclBinding(f"User:{who}", operation.title(), kind.upper(), name, pattern_type, host, permission).rule() == (
        binding.rule()
    )
    assert str(binding).startswith(f"{permission} User:{who}")


def test_a_rule_that_makes_no_sense_can_be_shown_all_the_same() -> None:
    assert "fly" in str(AclBinding("User:a", "fly", "topic", "t"))
