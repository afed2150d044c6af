"""Access rules (ACLs): may this principal do this to that resource?

The rules are those of Kafka's StandardAuthorizer:

- A rule names a resource (literally, by prefix, or `*`), a principal (`User:*` is everybody), a host (`*` is every
  host), an operation and whether it is allowed or denied.
- A rule that denies beats every rule that allows. A super user is always allowed.
- An allowed Read, Write, Delete or Alter implies Describe; an allowed AlterConfigs implies DescribeConfigs. A denial
  implies nothing.
- Where no rule names the resource at all, `allow.everyone.if.no.acl.found` decides. Where rules name it and none fits,
  the answer is no.
- A host is an address. However an IPv6 address is written, it is the same host: Kafka knows only the long form.

The cost of a decision does not depend on the number of rules: rules are found by the resource's name and by the
principal, with one lookup for each length that a prefix has. What is remembered of decisions is bounded, in number and
in bytes: names are made up by clients.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Iterable, Iterator
from typing import NamedTuple

WILDCARD = "*"
EVERYBODY = "User:*"
#: The only name a resource of type CLUSTER has.
CLUSTER_NAME = "kafka-cluster"
#: So many decisions are remembered until a rule changes.
_REMEMBERED_DECISIONS = 16_384
#: A decision about a longer name is not remembered. No topic has one.
_REMEMBERED_NAME_CHARACTERS = 256


class ResourceType(enum.IntEnum):
    """What a rule is about, by Kafka's number."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(enum.IntEnum):
    """How a rule names its resource, by Kafka's number. ANY and MATCH are only for filters."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(enum.IntEnum):
    """What somebody wants to do, by Kafka's number. ANY is only for filters, ALL only for rules and filters."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(enum.IntEnum):
    """Whether a rule allows or denies, by Kafka's number. ANY is only for filters."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


#: An operation, and those that allow it too where they are allowed.
_IMPLIED_BY: dict[int, frozenset[Operation]] = {
    Operation.DESCRIBE: frozenset({Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}

#: What can be done to a resource: what a rule may name, and what `authorized operations` in an answer are made of.
OPERATIONS_ON = {
    ResourceType.TOPIC: frozenset(
        {
            Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DESCRIBE, Operation.DELETE, Operation.ALTER,
            Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
        }
    ),
    ResourceType.GROUP: frozenset(
        {
            Operation.READ, Operation.DESCRIBE, Operation.DELETE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
        }
    ),
    ResourceType.CLUSTER: frozenset(
        {
            Operation.CREATE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
            Operation.IDEMPOTENT_WRITE, Operation.ALTER, Operation.DESCRIBE,
        }
    ),
    ResourceType.TRANSACTIONAL_ID: frozenset({Operation.DESCRIBE, Operation.WRITE, Operation.TWO_PHASE_COMMIT}),
    ResourceType.DELEGATION_TOKEN: frozenset({Operation.DESCRIBE}),
    ResourceType.USER: frozenset({Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS}),
}


class AccessRule(NamedTuple):
    """One rule. Two rules with equal fields are one rule."""

    resource_type: int
    resource_name: str
    pattern_type: int
    principal: str
    host: str
    operation: int
    permission: int

    def __str__(self) -> str:
        verb = "allow" if self.permission == Permission.ALLOW else "deny"
        host = "" if self.host == WILDCARD else f" from {self.host}"
        kind = ResourceType(self.resource_type).name.lower().replace("_", " ")
        name = f"{self.resource_name}*" if self.pattern_type == PatternType.PREFIXED else self.resource_name
        return f"{verb} {self.principal}{host} to {Operation(self.operation).name} on {kind} {name}"


class RuleFilter(NamedTuple):
    """Which rules are meant. None and ANY match everything; MATCH means every rule that decides about a name."""

    resource_type: int
    resource_name: str | None
    pattern_type: int
    principal: str | None
    host: str | None
    operation: int
    permission: int

    def matches(self, rule: AccessRule) -> bool:
        """Whether a rule is one of those meant."""
        return (
            self.resource_type in (ResourceType.ANY, rule.resource_type)
            and self._names(rule)
            and self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self.operation in (Operation.ANY, rule.operation)
            and self.permission in (Permission.ANY, rule.permission)
        )

    def _names(self, rule: AccessRule) -> bool:
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, rule.pattern_type):
            return False
        if self.resource_name is None or self.resource_name == rule.resource_name:
            return True
        if self.pattern_type != PatternType.MATCH:
            return False
        if rule.pattern_type == PatternType.LITERAL:
            return rule.resource_name == WILDCARD
        return self.resource_name.startswith(rule.resource_name)


class Access(NamedTuple):
    """A decision, and what it rests on."""

    is_allowed: bool
    #: The rule that decided, if one did.
    rule: AccessRule | None
    #: In words, for people.
    why: str


#: Rules, each with its host in the form in which hosts are compared.
_Rules = dict[AccessRule, str]
#: (resource type, name) -> principal -> rules
_Index = dict[tuple[int, str], dict[str, _Rules]]


def same_host(text: str) -> str:
    """One form for all ways to write an address.

    >>> same_host("0:0:0:0:0:0:0:1"), same_host("::ffff:10.0.0.1"), same_host("*")
    ('::1', '10.0.0.1', '*')
    """
    if ":" not in text:
        return text
    try:
        address = ipaddress.IPv6Address(text.partition("%")[0])
    except ValueError:
        return text
    return str(address.ipv4_mapped or address)


class AccessRules:
    """All rules, and the decisions that follow from them."""

    def __init__(
        self,
        rules: Iterable[AccessRule] = (),
        *,
        super_users: Iterable[str] = (),
        allow_where_no_rule: bool = False,
    ) -> None:
        self._super_users = frozenset(super_users)
        self._allow_where_no_rule = allow_where_no_rule
        self._rules: dict[AccessRule, None] = {}
        #: By (resource type, name), for literal and for prefixed names: the rules of each principal.
        self._literal: _Index = {}
        self._prefixed: _Index = {}
        #: By resource type, principal, operation and permission: the rules about any name.
        self._by_right: dict[tuple[int, str, int, int], _Rules] = {}
        #: By resource type: how many rules have a prefix of each length.
        self._prefix_lengths: dict[int, dict[int, int]] = {}
        self._decided: dict[tuple[str, str, int, int, str], bool] = {}
        self._decided_by_type: dict[tuple[str, str, int, int], bool] = {}
        self.add(rules)

    def __len__(self) -> int:
        return len(self._rules)

    def __iter__(self) -> Iterator[AccessRule]:
        return iter(self._rules)

    def __contains__(self, rule: AccessRule) -> bool:
        return rule in self._rules

    def add(self, rules: Iterable[AccessRule]) -> None:
        """Add rules; one that is there already stays as it is."""
        for rule in rules:
            if rule in self._rules:
                continue
            self._rules[rule] = None
            host = same_host(rule.host)
            of_resource = self._index(rule).setdefault((rule.resource_type, rule.resource_name), {})
            of_resource.setdefault(rule.principal, {})[rule] = host
            self._by_right.setdefault(_right(rule), {})[rule] = host
            if rule.pattern_type == PatternType.PREFIXED:
                lengths = self._prefix_lengths.setdefault(rule.resource_type, {})
                lengths[len(rule.resource_name)] = lengths.get(len(rule.resource_name), 0) + 1
        self._forget_decisions()

    def remove(self, rules: Iterable[AccessRule]) -> None:
        """Remove rules; others about the same resource stay."""
        for rule in rules:
            if rule not in self._rules:
                continue
            del self._rules[rule]
            of_resource = self._index(rule)[rule.resource_type, rule.resource_name]
            del of_resource[rule.principal][rule]
            if not of_resource[rule.principal]:
                del of_resource[rule.principal]
            if not of_resource:
                del self._index(rule)[rule.resource_type, rule.resource_name]
            of_right = self._by_right[_right(rule)]
            del of_right[rule]
            if not of_right:
                del self._by_right[_right(rule)]
            if rule.pattern_type == PatternType.PREFIXED:
                lengths = self._prefix_lengths[rule.resource_type]
                lengths[len(rule.resource_name)] -= 1
                if not lengths[len(rule.resource_name)]:
                    del lengths[len(rule.resource_name)]
        self._forget_decisions()

    def matching(self, wanted: RuleFilter) -> list[AccessRule]:
        """The rules that a filter means."""
        return [rule for rule in self.candidates(wanted) if wanted.matches(rule)]

    def candidates(self, wanted: RuleFilter) -> list[AccessRule]:
        """The rules that a filter can mean: those about one name where it names one, otherwise all."""
        if (
            wanted.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED)
            or wanted.resource_name is None
            or wanted.resource_type == ResourceType.ANY
        ):
            return list(self._rules)
        index = self._prefixed if wanted.pattern_type == PatternType.PREFIXED else self._literal
        of_resource = index.get((wanted.resource_type, wanted.resource_name), {})
        return [rule for of_principal in of_resource.values() for rule in of_principal]

    # Decisions

    def allows(self, principal: str, host: str, operation: int, resource_type: int, name: str) -> bool:
        """Whether a principal at a host may do this."""
        question = (principal, host, operation, resource_type, name)
        known = self._decided.get(question)
        if known is not None:
            return known
        answer = self.decide(*question).is_allowed
        if len(name) <= _REMEMBERED_NAME_CHARACTERS:
            if len(self._decided) >= _REMEMBERED_DECISIONS:
                self._decided.clear()
            self._decided[question] = answer
        return answer

    def decide(self, principal: str, host: str, operation: int, resource_type: int, name: str) -> Access:
        """The decision with its reason."""
        if principal in self._super_users:
            return Access(True, None, f"{principal} is one of super.users")
        allowed: AccessRule | None = None
        for rule in self.fitting(principal, host, operation, resource_type, name):
            if rule.permission == Permission.DENY:
                return Access(False, rule, f"denied by the rule: {rule}")
            if allowed is None:
                allowed = rule
        if allowed is not None:
            return Access(True, allowed, f"allowed by the rule: {allowed}")
        if next(self._about(resource_type, name), None) is not None:
            return Access(False, None, "rules name this resource, and none of them allows it")
        if self._allow_where_no_rule:
            return Access(True, None, "no rule names this resource, and allow.everyone.if.no.acl.found is true")
        return Access(False, None, "no rule names this resource, and allow.everyone.if.no.acl.found is false")

    def fitting(
        self, principal: str, host: str, operation: int, resource_type: int, name: str
    ) -> Iterator[AccessRule]:
        """All rules that deny or allow this, whether by themselves or by what they imply."""
        deciding = (operation, Operation.ALL)
        allowing = {*deciding, *_IMPLIED_BY.get(operation, ())}
        host = same_host(host)
        for of_resource in self._about(resource_type, name):
            for whom in (principal, EVERYBODY):
                for rule, its_host in of_resource.get(whom, _NO_RULES).items():
                    if its_host in (host, WILDCARD) and (
                        rule.operation in (deciding if rule.permission == Permission.DENY else allowing)
                    ):
                        yield rule

    def allows_on_any(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        """Whether there can be a resource of this type for which `allows` says yes.

        That is what Kafka asks of a producer that has no topic yet: may it write anywhere?
        """
        question = (principal, host, operation, resource_type)
        known = self._decided_by_type.get(question)
        if known is None:
            if len(self._decided_by_type) >= _REMEMBERED_DECISIONS:
                self._decided_by_type.clear()
            known = self._decided_by_type[question] = self._decide_on_any(*question)
        return known

    def _decide_on_any(self, principal: str, host: str, operation: int, resource_type: int) -> bool:
        # Kafka asks about a name that it made up first: super users, and everybody where rules are not needed.
        if self.allows(principal, host, operation, resource_type, "hardcode"):
            return True
        host = same_host(host)
        denied_names, denied_prefixes = set(), set()
        for rule in self._with_right(principal, host, operation, resource_type, Permission.DENY):
            if rule.pattern_type == PatternType.PREFIXED:
                denied_prefixes.add(rule.resource_name)
            elif rule.resource_name == WILDCARD:
                return False
            else:
                denied_names.add(rule.resource_name)
        for rule in self._with_right(principal, host, operation, resource_type, Permission.ALLOW):
            name = rule.resource_name
            if rule.pattern_type == PatternType.LITERAL:
                if name == WILDCARD:
                    return True
                if name in denied_names:
                    continue
            if not any(name[:length] in denied_prefixes for length in range(1, len(name) + 1)):
                return True
        return False

    def _with_right(
        self, principal: str, host: str, operation: int, resource_type: int, permission: Permission
    ) -> Iterator[AccessRule]:
        """The rules for a principal at a host that allow, or deny, an operation on whatever name."""
        for whom in (principal, EVERYBODY):
            for one in (operation, Operation.ALL):
                found = self._by_right.get((resource_type, whom, one, permission), _NO_RULES)
                for rule, its_host in found.items():
                    if its_host in (host, WILDCARD):
                        yield rule

    def operations(self, principal: str, host: str, resource_type: int, name: str) -> int:
        """All that a principal may do to a resource, as the bit field that Metadata and others answer with."""
        bits = 0
        for operation in OPERATIONS_ON[ResourceType(resource_type)]:
            if self.allows(principal, host, operation, resource_type, name):
                bits |= 1 << operation
        return bits

    # The index

    def _about(self, resource_type: int, name: str) -> Iterator[dict[str, _Rules]]:
        """The rules of each principal, for every pattern that fits a name."""
        for key in dict.fromkeys(((resource_type, name), (resource_type, WILDCARD))):
            if key in self._literal:
                yield self._literal[key]
        for length in self._prefix_lengths.get(resource_type, ()):
            if length <= len(name) and (found := self._prefixed.get((resource_type, name[:length]))):
                yield found

    def _index(self, rule: AccessRule) -> _Index:
        return self._prefixed if rule.pattern_type == PatternType.PREFIXED else self._literal

    def _forget_decisions(self) -> None:
        self._decided.clear()
        self._decided_by_type.clear()


_NO_RULES: _Rules = {}


def _right(rule: AccessRule) -> tuple[int, str, int, int]:
    return rule.resource_type, rule.principal, rule.operation, rule.permission
