"""Rules that people write, and what follows from them for a reader and a writer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from semel.machines.security.access import AccessRule, Operation, PatternType, Permission, ResourceType
from semel.wire.messages.groups import HeartbeatRequest
from semel.wire.messages.metadata import MetadataRequest
from tests.broker.access.sides import T
from tests.broker.raw import Raw, batch, fetch_request, produce_request

Deny, Prefix = Permission.DENY, PatternType.PREFIXED
READ, WRITE, ALL, DESCRIBE = Operation.READ, Operation.WRITE, Operation.ALL, Operation.DESCRIBE
TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP


@dataclass(frozen=True)
class Situation:
    """A user with rules. What may it do to the topic `t` and the group `readers`?"""

    about: str
    #: Operation, type, name, and what is not usual about the rule.
    given: tuple[tuple[Any, ...], ...]
    #: What is possible: read, write, see, member.
    possible: frozenset[str] = field(default_factory=frozenset)

    @property
    def user(self) -> str:
        return "case-" + "".join(letter for letter in self.about if letter.isalnum())

    def rules(self) -> list[AccessRule]:
        found = []
        for operation, kind, name, *unusual in self.given:
            rule = AccessRule(
                kind, name, PatternType.LITERAL, f"User:{self.user}", "*", operation, Permission.ALLOW
            )
            for one in unusual:
                if isinstance(one, PatternType):
                    rule = rule._replace(pattern_type=one)
                elif isinstance(one, Permission):
                    rule = rule._replace(permission=one)
                else:
                    rule = rule._replace(host=one)
            found.append(rule)
        return found


def _is(about: str, *given: tuple[Any, ...], possible: str = "") -> Situation:
    return Situation(about, given, frozenset(possible.split()))


SITUATIONS = [
    _is("no rule at all"),
    _is("a reader", (READ, TOPIC, T), (READ, GROUP, "readers"), possible="read see member"),
    _is("the topic but not the group", (READ, TOPIC, T), possible="read see"),
    _is("the group but not the topic", (READ, GROUP, "readers"), possible="member"),
    _is("a writer sees what it writes", (WRITE, TOPIC, T), possible="write see"),
    _is("who deletes sees", (Operation.DELETE, TOPIC, T), possible="see"),
    _is("who alters sees", (Operation.ALTER, TOPIC, T), possible="see"),
    _is("who creates does not see", (Operation.CREATE, TOPIC, T)),
    _is("who alters settings does not see", (Operation.ALTER_CONFIGS, TOPIC, T)),
    _is("all operations", (ALL, TOPIC, T), possible="read write see"),
    _is("a prefix", (READ, TOPIC, "t", Prefix), (READ, GROUP, "read", Prefix), possible="read see member"),
    _is("a prefix that is longer than the name", (READ, TOPIC, "tt", Prefix)),
    _is("a prefix is no wildcard", (READ, TOPIC, "*", Prefix)),
    _is("all names", (READ, TOPIC, "*"), (READ, GROUP, "*"), possible="read see member"),
    _is("all names but one", (READ, TOPIC, "*"), (READ, TOPIC, T, Deny), possible="see"),
    _is("all names but those with a prefix", (READ, TOPIC, "*"), (ALL, TOPIC, "t", Prefix, Deny)),
    _is("a denial beats what allows, however exact", (ALL, TOPIC, T), (WRITE, TOPIC, "*", Deny), possible="read see"),
    _is("a denied Describe does not deny Read", (READ, TOPIC, T), (DESCRIBE, TOPIC, T, Deny), possible="read"),
    _is("a denied Read does not deny Describe", (ALL, TOPIC, T), (READ, TOPIC, T, Deny), possible="write see"),
    _is("all denied", (READ, TOPIC, T), (ALL, TOPIC, T, Deny)),
    _is("this host", (READ, TOPIC, T, "127.0.0.1"), possible="read see"),
    _is("another host", (READ, TOPIC, T, "10.1.2.3")),
    _is("denied to another host", (READ, TOPIC, T), (READ, TOPIC, T, Deny, "10.1.2.3"), possible="read see"),
    _is("denied to this host", (READ, TOPIC, T), (READ, TOPIC, T, Deny, "127.0.0.1"), possible="see"),
    _is("the topic's name is that of a group", (READ, GROUP, T)),
    _is("capital letters", (READ, TOPIC, "T")),
]


def attempts(raw: Raw, topic: str = T) -> dict[str, Any]:
    """The error code of each thing that a client may try."""

    def code(answer: Any, *path: str) -> int:
        for name in path:
            answer = getattr(answer, name)[0]
        return int(answer.error_code)

    written = produce_request(topic, batch(b"v"))
    asked = fetch_request({(topic, 0): 0}, max_wait_ms=0)
    return {
        "read": code(raw.ask(asked, 12), "responses", "partitions"),
        "write": code(raw.ask(written, 12), "responses", "partition_responses"),
        "see": 0 if _is_listed(raw, topic) else 29,
        "member": int(raw.ask(HeartbeatRequest(group_id="readers", generation_id=1, member_id="m"), 4).error_code),
    }


def _is_listed(raw: Raw, topic: str) -> bool:
    return topic in {row.name for row in raw.ask(MetadataRequest(topics=None), 12).topics}
