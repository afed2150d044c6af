"""Access rules: Kafka's order of precedence, and an index that says the same as going through all rules."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.machines.security.access import (
    EVERYBODY,
    WILDCARD,
    AccessRule,
    AccessRules,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    RuleFilter,
)

ALICE, BOB = "User:alice", "User:bob"


def rule(
    name: str = "orders",
    *,
    principal: str = ALICE,
    host: str = WILDCARD,
    operation: Operation = Operation.READ,
    permission: Permission = Permission.ALLOW,
    pattern: PatternType = PatternType.LITERAL,
    resource: ResourceType = ResourceType.TOPIC,
) -> AccessRule:
    return AccessRule(resource, name, pattern, principal, host, operation, permission)


def may(rules: AccessRules, operation: Operation, name: str = "orders", principal: str = ALICE) -> bool:
    return rules.allows(principal, "10.0.0.1", operation, ResourceType.TOPIC, name)


def test_without_a_rule_nobody_may_do_anything_unless_that_is_asked_for() -> None:
    assert not may(AccessRules(), Operation.READ)
    assert may(AccessRules(allow_where_no_rule=True), Operation.READ)


def test_a_rule_for_somebody_else_ends_the_leave_of_everybody() -> None:
    rules = AccessRules([rule(principal=BOB)], allow_where_no_rule=True)
    assert not may(rules, Operation.READ)
    assert may(rules, Operation.READ, "payments")


def test_a_denial_beats_every_leave_however_it_is_named() -> None:
    for pattern, name in [(PatternType.LITERAL, "orders"), (PatternType.PREFIXED, "ord"), (PatternType.LITERAL, "*")]:
        rules = AccessRules([rule(), rule(name, pattern=pattern, principal=EVERYBODY, permission=Permission.DENY)])
        assert not may(rules, Operation.READ), (pattern, name)


def test_a_super_user_is_never_denied() -> None:
    rules = AccessRules([rule(permission=Permission.DENY, operation=Operation.ALL)], super_users=[ALICE])
    assert may(rules, Operation.READ)


@pytest.mark.parametrize("operation", [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER])
def test_leave_implies_describe_and_a_denial_does_not(operation: Operation) -> None:
    assert may(AccessRules([rule(operation=operation)]), Operation.DESCRIBE)
    denied = AccessRules([rule(operation=operation, permission=Permission.DENY), rule(operation=Operation.DESCRIBE)])
    assert may(denied, Operation.DESCRIBE)
    assert not may(denied, operation)


def test_alter_configs_implies_describe_configs_and_nothing_else_does() -> None:
    assert may(AccessRules([rule(operation=Operation.ALTER_CONFIGS)]), Operation.DESCRIBE_CONFIGS)
    assert not may(AccessRules([rule(operation=Operation.ALTER)]), Operation.DESCRIBE_CONFIGS)
    assert not may(AccessRules([rule(operation=Operation.CREATE)]), Operation.DESCRIBE)


def test_a_rule_for_one_host_is_for_no_other() -> None:
    rules = AccessRules([rule(host="10.0.0.2")])
    assert not may(rules, Operation.READ)
    assert rules.allows(ALICE, "10.0.0.2", Operation.READ, ResourceType.TOPIC, "orders")


def test_removing_one_of_two_rules_keeps_the_other() -> None:
    """CVE-2024-27309."""
    rules = AccessRules([rule(), rule(principal=BOB)])
    assert may(rules, Operation.READ)
    rules.remove([rule(principal=BOB)])
    assert may(rules, Operation.READ)
    assert not may(rules, Operation.READ, principal=BOB)
    of_alice, of_bob = (rule("or", pattern=PatternType.PREFIXED, principal=who) for who in (ALICE, BOB))
    prefixes = AccessRules([of_alice, of_bob])
    prefixes.remove([of_bob])
    assert may(prefixes, Operation.READ)


def test_a_decision_is_not_remembered_past_a_change() -> None:
    rules = AccessRules([rule()])
    assert may(rules, Operation.READ)
    rules.add([rule(permission=Permission.DENY)])
    assert not may(rules, Operation.READ)
    rules.remove([rule(permission=Permission.DENY)])
    assert may(rules, Operation.READ)


def test_the_reason_names_the_rule() -> None:
    denial = rule("ord", pattern=PatternType.PREFIXED, permission=Permission.DENY)
    decided = AccessRules([rule(), denial]).decide(ALICE, "h", Operation.READ, ResourceType.TOPIC, "orders")
    assert decided.rule == denial
    assert decided.why == "denied by the rule: deny User:alice to READ on topic ord*"


def test_write_on_any_topic_is_what_a_prefix_or_a_name_gives_unless_it_is_wholly_denied() -> None:
    def any_topic(*found: AccessRule) -> bool:
        return AccessRules(found).allows_on_any(ALICE, "h", Operation.WRITE, ResourceType.TOPIC)

    write = {"operation": Operation.WRITE}
    deny = {"operation": Operation.WRITE, "permission": Permission.DENY}
    assert not any_topic()
    assert any_topic(rule(**write))
    assert any_topic(rule("ord", pattern=PatternType.PREFIXED, **write))
    assert not any_topic(rule(**write), rule(**deny))
    assert not any_topic(rule("orders", **write), rule("ord", pattern=PatternType.PREFIXED, **deny))
    shorter = rule("or", pattern=PatternType.PREFIXED, **write)
    longer = rule("ord", pattern=PatternType.PREFIXED, **deny)
    assert any_topic(shorter, longer)
    assert not any_topic(rule(**write), rule("*", **deny))
    assert not any_topic(rule(operation=Operation.READ))


def test_ten_thousand_rules_cost_no_more_lookups_than_ten() -> None:
    """Counted, not timed: how many rules a decision looks at."""

    class Counting(dict):
        looked_at = 0

        def items(self):
            for found in super().items():
                Counting.looked_at += 1
                yield found

    def cost(count: int) -> int:
        rules = AccessRules(
            [rule(f"topic-{n}") for n in range(count)]
            + [rule(principal=f"User:{n}") for n in range(count)]
            + [rule(f"prefix-{n:06}-", pattern=PatternType.PREFIXED) for n in range(count)]
        )
        rules.add([rule(f"written-{n}", principal=f"User:{n}", operation=Operation.WRITE) for n in range(count)])
        for index in (rules._literal, rules._prefixed):
            for of_resource in index.values():
                for whom in of_resource:
                    of_resource[whom] = Counting(of_resource[whom])
        rules._by_right = {right: Counting(found) for right, found in rules._by_right.items()}
        Counting.looked_at = 0
        assert not rules.decide(ALICE, "h", Operation.READ, ResourceType.TOPIC, "orders").is_allowed
        assert rules.decide(ALICE, "h", Operation.READ, ResourceType.TOPIC, "topic-3").is_allowed
        assert rules.allows_on_any("User:3", "h", Operation.WRITE, ResourceType.TOPIC)
        assert not rules.allows_on_any(ALICE, "h", Operation.WRITE, ResourceType.TOPIC)
        assert Counting.looked_at
        return Counting.looked_at

    assert cost(10_000) == cost(10)


def test_names_that_clients_make_up_are_not_remembered_for_ever() -> None:
    rules = AccessRules([rule("*", operation=Operation.DESCRIBE)])
    for number in range(100):
        long = f"{number}" * 20_000
        assert rules.allows(ALICE, "h", Operation.DESCRIBE, ResourceType.TOPIC, long)
        assert not rules.allows(ALICE, "h", Operation.DESCRIBE, ResourceType.GROUP, long)
    assert sum(len(question[4]) for question in rules._decided) < 10_000
    for number in range(40_000):
        rules.allows(ALICE, "h", Operation.DESCRIBE, ResourceType.GROUP, str(number))
    assert len(rules._decided) < 20_000


@pytest.mark.parametrize("written", ["::1", "0:0:0:0:0:0:0:1", "0000:0000::0001"])
@pytest.mark.parametrize("host", ["::1", "0:0:0:0:0:0:0:1"])
def test_an_address_is_the_same_host_however_it_is_written(written: str, host: str) -> None:
    """Kafka's rules have the long form, and the operating system tells the short one. A denial has to hold for both."""
    rules = AccessRules(
        [
            rule(host=written),
            rule("*", operation=Operation.WRITE),
            rule("*", operation=Operation.WRITE, host=written, permission=Permission.DENY),
        ]
    )
    assert rules.allows(ALICE, host, Operation.READ, ResourceType.TOPIC, "orders")
    assert not rules.allows(ALICE, host, Operation.WRITE, ResourceType.TOPIC, "orders")
    assert not rules.allows_on_any(ALICE, host, Operation.WRITE, ResourceType.TOPIC)
    assert rules.allows(ALICE, "::2", Operation.WRITE, ResourceType.TOPIC, "orders")
    assert not rules.allows(ALICE, "::2", Operation.READ, ResourceType.TOPIC, "orders")


def test_an_ipv4_client_of_an_ipv6_socket_is_an_ipv4_host() -> None:
    rules = AccessRules([rule(host="10.0.0.1")])
    assert rules.allows(ALICE, "::ffff:10.0.0.1", Operation.READ, ResourceType.TOPIC, "orders")


NAMES = st.sampled_from(["a", "ab", "abc", "b", "ba", WILDCARD])
RULES = st.builds(
    AccessRule,
    st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
    NAMES,
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from([ALICE, BOB, EVERYBODY]),
    st.sampled_from(["h", "i", WILDCARD]),
    st.sampled_from([Operation.ALL, Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.ALTER_CONFIGS]),
    st.sampled_from([Permission.ALLOW, Permission.DENY]),
)


def by_going_through_all(
    rules: list[AccessRule], principal: str, host: str, operation: int, kind: int, name: str
) -> bool:
    about = [
        r for r in rules
        if r.resource_type == kind
        and (
            (r.pattern_type == PatternType.LITERAL and r.resource_name in (name, WILDCARD))
            or (r.pattern_type == PatternType.PREFIXED and name.startswith(r.resource_name))
        )
    ]
    fitting = [r for r in about if r.principal in (principal, EVERYBODY) and r.host in (host, WILDCARD)]
    if any(r.permission == Permission.DENY and r.operation in (operation, Operation.ALL) for r in fitting):
        return False
    implying = {
        Operation.DESCRIBE: [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER],
        Operation.DESCRIBE_CONFIGS: [Operation.ALTER_CONFIGS],
    }.get(Operation(operation), [])
    allowing = (operation, Operation.ALL, *implying)
    return any(r.permission == Permission.ALLOW and r.operation in allowing for r in fitting)


@settings(max_examples=300, deadline=None)
@given(st.lists(RULES, max_size=12), st.randoms(use_true_random=False))
def test_the_index_says_what_going_through_all_rules_says(found: list[AccessRule], chance: random.Random) -> None:
    rules = AccessRules(found)
    left = list(dict.fromkeys(found))
    while True:
        for principal, host, operation, kind, name in itertools.product(
            (ALICE, BOB), ("h", "j"), (Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS),
            (ResourceType.TOPIC, ResourceType.GROUP), ("a", "abc", "b", "c"),
        ):
            assert rules.allows(principal, host, operation, kind, name) == by_going_through_all(
                left, principal, host, operation, kind, name
            )
        if not left:
            break
        gone = chance.sample(left, chance.randint(1, len(left)))
        rules.remove(gone)
        left = [r for r in left if r not in gone]


def test_a_filter_finds_by_name_by_kind_and_all_that_decide_about_a_name() -> None:
    literal, prefixed = rule(), rule("ord", pattern=PatternType.PREFIXED)
    wild, other = rule(WILDCARD), rule("payments")
    rules = AccessRules([literal, prefixed, wild, other])

    def found(name: str | None, pattern: PatternType) -> list[AccessRule]:
        return rules.matching(
            RuleFilter(ResourceType.TOPIC, name, pattern, None, None, Operation.ANY, Permission.ANY)
        )

    assert found("orders", PatternType.LITERAL) == [literal]
    assert found("orders", PatternType.ANY) == [literal]
    assert found("orders", PatternType.MATCH) == [literal, prefixed, wild]
    assert found("ord", PatternType.PREFIXED) == [prefixed]
    assert found(None, PatternType.ANY) == [literal, prefixed, wild, other]
