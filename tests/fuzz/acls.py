"""ACL requests through their guards, handlers and the rules, beside a model of Kafka's StandardAuthorizer.

The model keeps a plain list and asks every rule. It is written from Kafka's own code (StandardAuthorizerData,
ResourcePatternFilter, Authorizer.authorizeByResourceType), not from ours.
"""

from __future__ import annotations

from types import CoroutineType, GeneratorType, SimpleNamespace
from typing import Any, NamedTuple

from semel.broker.access.control import AccessControl
from semel.broker.handlers import acls as handlers
from semel.broker.stored import access_rules
from semel.machines.security.access import AccessRule, AccessRules
from semel.wire import decode, encode
from semel.wire.apis import ApiKey
from semel.wire.messages.security import CreateAclsRequest, DeleteAclsRequest, DescribeAclsRequest
from tests.fuzz.target import Draw, Target, expect

SUPER_USER = "User:root"
PRINCIPALS = ("User:alice", "User:bob", SUPER_USER, "User:*", "Group:alice", "User:", ":", "alice", "")
HOSTS = ("*", "10.0.0.1", "10.0.0.2", "")
NAMES = ("*", "a", "ab", "abc", "b", "kafka-cluster", "", "hardcode", "abcdef", "\u00e9")
CODES = (3, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 1, 0, 16, 127, -1)
TOPIC, GROUP, CLUSTER = 2, 3, 4
ALL, DENY, ALLOW, LITERAL, PREFIXED = 2, 2, 3, 3, 4
IMPLIED = {8: {3, 4, 6, 7, 8}, 10: {10, 11}}
REFUSED = "the connection is closed"


class Rule(NamedTuple):
    """A rule of the model, in the order of `AccessRule`."""

    kind: int
    name: str
    pattern: int
    principal: str
    host: str
    operation: int
    permission: int


class Model:
    """What StandardAuthorizer decides."""

    def __init__(self, allow_where_no_rule: bool) -> None:
        self.rules: list[Rule] = []
        self.allow_where_no_rule = allow_where_no_rule

    def allows(self, principal: str, host: str, operation: int, kind: int, name: str) -> bool:
        if principal == SUPER_USER:
            return True
        is_named = is_allowed = False
        for rule in self.rules:
            fits = rule.name in (name, "*") if rule.pattern == LITERAL else name.startswith(rule.name)
            if rule.kind != kind or not fits:
                continue
            is_named = True
            if rule.principal not in (principal, "User:*") or rule.host not in (host, "*"):
                continue
            if rule.permission == DENY:
                if rule.operation in (operation, ALL):
                    return False
            elif rule.operation == ALL or rule.operation in IMPLIED.get(operation, {operation}):
                is_allowed = True
        return is_allowed or (not is_named and self.allow_where_no_rule)

    def allows_on_any(self, principal: str, host: str, operation: int, kind: int) -> bool:
        if self.allows(principal, host, operation, kind, "hardcode"):
            return True
        mine = [
            rule
            for rule in self.rules
            if rule.kind == kind
            and rule.principal in (principal, "User:*")
            and rule.host in (host, "*")
            and rule.operation in (operation, ALL)
        ]
        denied = {(rule.pattern, rule.name) for rule in mine if rule.permission == DENY}
        allowed = {(rule.pattern, rule.name) for rule in mine if rule.permission == ALLOW}
        if (LITERAL, "*") in denied:
            return False
        if (LITERAL, "*") in allowed:
            return True
        for pattern, name in allowed:
            if pattern == LITERAL and (LITERAL, name) in denied:
                continue
            if not any((PREFIXED, name[: end + 1]) in denied for end in range(len(name))):
                return True
        return False

    def matching(self, wanted: tuple[Any, ...]) -> list[Rule]:
        return [rule for rule in self.rules if _matches(wanted, rule)]


def _matches(wanted: tuple[Any, ...], rule: Rule) -> bool:
    kind, name, pattern, principal, host, operation, permission = wanted
    if kind not in (1, rule.kind) or pattern not in (1, 2, rule.pattern):
        return False
    if name is not None and name != rule.name:
        if pattern != 2:
            return False
        if not (rule.name == "*" if rule.pattern == LITERAL else name.startswith(rule.name)):
            return False
    return (
        principal in (None, rule.principal)
        and host in (None, rule.host)
        and operation in (1, rule.operation)
        and permission in (1, rule.permission)
    )


def is_valid(rule: Rule) -> bool:
    """Whether Kafka stores it."""
    return (
        rule.kind in range(2, 8)
        and bool(rule.name)
        and (rule.kind != CLUSTER or rule.name == "kafka-cluster")
        and rule.pattern in (LITERAL, PREFIXED)
        and rule.operation in range(2, 16)
        and rule.permission in (DENY, ALLOW)
        and ":" in rule.principal
    )


class Stored(access_rules.AccessRuleStore):
    """The rules, written as they are written to disk and read again, without a disk."""

    def __init__(self, rules: AccessRules) -> None:
        self._rules = rules

    async def _replace(self, rules: list[AccessRule], then: Any) -> None:
        for rule in rules:
            expect(access_rules._rule(access_rules._row(rule)) == rule, f"{rule} is another after a restart")
        then()


class Story:
    """A broker with an authorizer, and the model beside it."""

    def __init__(self, allow_where_no_rule: bool) -> None:
        self.model = Model(allow_where_no_rule)
        access = self.access = object.__new__(AccessControl)
        access.rules = AccessRules(super_users=[SUPER_USER], allow_where_no_rule=allow_where_no_rule)
        access.stored = Stored(access.rules)
        turns = SimpleNamespace(clock=lambda: 0.0, is_over=lambda since: False)
        self.broker: Any = SimpleNamespace(
            access=access,
            turns=turns,
            changes=SimpleNamespace(run=lambda work: work),
            audit=SimpleNamespace(denied=lambda *arguments: None),
        )
        access.broker = self.broker
        self.serve = {
            key: access.guarded(key, getattr(handlers, name))
            for key, name in (
                (ApiKey.CREATE_ACLS, "create_acls"),
                (ApiKey.DESCRIBE_ACLS, "describe_acls"),
                (ApiKey.DELETE_ACLS, "delete_acls"),
            )
        }

    def ask(self, key: ApiKey, request: Any, who: str, host: str) -> Any:
        """The reply; REFUSED where the connection is closed."""
        refusals: list[str] = []
        connection = SimpleNamespace(who=who, peer=(host, 1), refuse=refusals.append)
        call = SimpleNamespace(connection=connection, version=3, is_long=False, client_id="", api_key=key)
        request = decode(type(request), 3, encode(request, 3))
        reply = self.serve[key](self.broker, request, call)  # type: ignore[arg-type]
        while type(reply) in (GeneratorType, CoroutineType):
            try:
                reply.send(None)
            except StopIteration as done:
                reply = done.value
        expect((reply is None) == bool(refusals), "no reply, and the connection stays open")
        if reply is not None:
            encode(reply, 3)
        return REFUSED if reply is None else reply


def draw_rule(draw: Draw) -> Rule:
    names, codes = draw.byte(), draw.byte()
    name = draw.text(6) if names & 0x80 else NAMES[names % len(NAMES)]
    return Rule(
        draw.pick((2, 3, 4, 5, 6, 7, 2, 1, 0, 8)),
        name,
        (LITERAL, PREFIXED, LITERAL, PREFIXED, 1, 2, 0, 5)[codes & 7],
        draw.pick(PRINCIPALS),
        HOSTS[codes >> 3 & 3],
        draw.pick(CODES),
        (ALLOW, DENY, ALLOW, DENY, 1, 0, 4, ALLOW)[codes >> 5],
    )


def draw_filter(draw: Draw) -> tuple[Any, ...]:
    kind, name, pattern, principal, host, operation, permission = draw_rule(draw)
    blank = draw.byte()
    return (
        1 if blank & 1 else kind,
        None if blank & 2 else name,
        2 if blank & 4 else 1 if blank & 8 else pattern,
        None if blank & 16 else principal,
        None if blank & 32 else host,
        1 if blank & 64 else operation,
        1 if blank & 128 else permission,
    )


def one(data: bytes) -> None:
    draw = Draw(data)
    story = Story(draw.flag())
    for _ in range(5):
        if not draw:
            break
        kind = draw.byte()
        who, host = (
            draw.pick(("User:alice", SUPER_USER, SUPER_USER, SUPER_USER, "User:bob")),
            HOSTS[1 + (kind >> 6 & 1)],
        )
        count = 1 + (kind >> 4 & 1)
        if kind & 3 < 2:
            create(story, [draw_rule(draw) for _ in range(count)], who, host)
        elif kind & 3 == 2:
            delete(story, [draw_filter(draw) for _ in range(count)], who, host)
        else:
            describe(story, draw_filter(draw), who, host)
        questions(story, draw)
    expect(set(map(tuple, story.access.rules)) == set(map(tuple, story.model.rules)), "other rules than in the model")
    expect(len(story.access.rules) == len(set(story.model.rules)), "a rule is stored twice")


def create(story: Story, rules: list[Rule], who: str, host: str) -> None:
    creation = CreateAclsRequest.AclCreation
    request = CreateAclsRequest(
        creations=[
            creation(
                resource_type=rule.kind, resource_name=rule.name, resource_pattern_type=rule.pattern,
                principal=rule.principal, host=rule.host, operation=rule.operation, permission_type=rule.permission,
            )
            for rule in rules
        ]
    )
    may = story.model.allows(who, host, 7, CLUSTER, "kafka-cluster")
    reply = story.ask(ApiKey.CREATE_ACLS, request, who, host)
    if any(0 in (rule.kind, rule.pattern, rule.operation, rule.permission) for rule in rules):
        expect(reply == REFUSED, "a rule with UNKNOWN in it is answered")
        return
    expect(reply != REFUSED, "the connection is closed for rules without UNKNOWN")
    codes = [row.error_code for row in reply.results]
    expected = [(0 if is_valid(rule) else 42) if may else 31 for rule in rules]
    expect(codes == expected, f"CreateAcls {rules}: {codes}, by the model {expected}")
    if may:
        story.model.rules += [rule for rule in dict.fromkeys(rules) if is_valid(rule) and rule not in story.model.rules]


def delete(story: Story, filters: list[tuple[Any, ...]], who: str, host: str) -> None:
    row = DeleteAclsRequest.DeleteAclsFilter
    request = DeleteAclsRequest(filters=[row(**_filter_fields(wanted)) for wanted in filters])
    may = story.model.allows(who, host, 7, CLUSTER, "kafka-cluster")
    reply = story.ask(ApiKey.DELETE_ACLS, request, who, host)
    if any(0 in (wanted[0], wanted[2], wanted[5], wanted[6]) for wanted in filters):
        expect(reply == REFUSED, "a filter with UNKNOWN in it is answered")
        return
    removed: set[Rule] = set()
    for wanted, result in zip(filters, reply.filter_results, strict=True):
        if not may:
            expect(result.error_code == 31 and not result.matching_acls, "denied, and yet answered")
            continue
        known = (
            wanted[0] in range(1, 8)
            and wanted[2] in range(1, 5)
            and wanted[5] in range(1, 16)
            and wanted[6] in range(1, 4)
        )
        expect((result.error_code == 0) == known, f"DeleteAcls {wanted}: {result.error_code}")
        matching = story.model.matching(wanted) if known else []
        found = [
            Rule(
                one.resource_type,
                one.resource_name,
                one.pattern_type,
                one.principal,
                one.host,
                one.operation,
                one.permission_type,
            )
            for one in result.matching_acls
        ]
        expect(sorted(found) == sorted(matching), f"DeleteAcls {wanted}: {found}, by the model {matching}")
        removed.update(matching)
    story.model.rules = [rule for rule in story.model.rules if rule not in removed]


def describe(story: Story, wanted: tuple[Any, ...], who: str, host: str) -> None:
    reply = story.ask(ApiKey.DESCRIBE_ACLS, DescribeAclsRequest(**_filter_fields(wanted)), who, host)
    if 0 in (wanted[0], wanted[2], wanted[5], wanted[6]):
        expect(reply == REFUSED, "a filter with UNKNOWN in it is answered")
        return
    if not story.model.allows(who, host, 8, CLUSTER, "kafka-cluster"):
        expect(reply.error_code == 31 and not reply.resources, "denied, and yet answered")
        return
    found = [
        Rule(
            of.resource_type,
            of.resource_name,
            of.pattern_type,
            one.principal,
            one.host,
            one.operation,
            one.permission_type,
        )
        for of in reply.resources
        for one in of.acls
    ]
    matching = story.model.matching(wanted)
    expect(sorted(found) == sorted(matching), f"DescribeAcls {wanted}: {found}, by the model {matching}")


def _filter_fields(wanted: tuple[Any, ...]) -> dict[str, Any]:
    names = (
        "resource_type_filter", "resource_name_filter", "pattern_type_filter", "principal_filter", "host_filter",
        "operation", "permission_type",
    )
    return dict(zip(names, wanted, strict=True))


def questions(story: Story, draw: Draw) -> None:
    """The rules decide as the model does."""
    rules, model = story.access.rules, story.model
    bits = draw.number(2)
    who, host = PRINCIPALS[bits & 3 if bits & 3 < 3 else 4], HOSTS[1 + (bits >> 2 & 1)]
    kind, first = 2 + (bits >> 3) % 6, bits >> 8
    drawn = 2 + first % 14
    for name, operation in ((NAMES[first % len(NAMES)], drawn), ("abd", 8 if first & 1 else 10), ("a", drawn)):
        said, expected = (one.allows(who, host, operation, kind, name) for one in (rules, model))
        if said != expected:
            expect(False, f"{who} at {host}: operation {operation} on {kind} {name}: {said}")
    said, expected = (one.allows_on_any(who, host, drawn, kind) for one in (rules, model))
    if said != expected:
        expect(False, f"{who} at {host}: operation {drawn} on any {kind}: {said}")


def seeds() -> list[bytes]:
    found = []
    for kind in range(6):
        for name in range(8):
            rule = bytes([name, name & 3 | (name & 1) << 5, kind, kind % 5, name])
            question = bytes([kind * 8 & 255, kind << 3 | name & 7])
            story = (
                b"\0\x01"
                + rule
                + question
                + b"\x01\x02"
                + rule[::-1]
                + question
                + b"\x03\x01"
                + rule
                + b"\xff"
                + question
            )
            found.append(bytes([name & 1]) + story + b"\x02\x01" + rule + bytes([0xF0 | name]) + question)
    return found


TARGET = Target(
    "access rules are created, found, removed and applied as by a model of Kafka's StandardAuthorizer",
    one,
    seeds,
    max_bytes=256,
)
