"""Access rules as people write them: in words, where `AccessRule` has Kafka's numbers.

Words may be written as Kafka's tools print them or as they are typed there: `READ`, `Read`, `read`; `TRANSACTIONAL_ID`,
`TransactionalId`, `transactional-id`.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from typing import TypeVar

from semel.machines.security.access import (
    CLUSTER_NAME,
    OPERATIONS_ON,
    WILDCARD,
    AccessRule,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

_Kind = TypeVar("_Kind", bound=enum.IntEnum)
#: The words that a rule may have. Others, such as ANY, are for filters.
RESOURCE_TYPES = tuple(OPERATIONS_ON)
OPERATIONS = tuple(one for one in Operation if one > Operation.ANY)
PATTERN_TYPES = (PatternType.LITERAL, PatternType.PREFIXED)
PERMISSIONS = (Permission.ALLOW, Permission.DENY)


@dataclass(frozen=True, slots=True)
class AclBinding:
    """One access rule: who may, or may not, do what to which resource, and from where.

    >>> print(AclBinding("User:alice", "read", "topic", "payments"))
    allow User:alice to READ on topic payments
    >>> print(AclBinding("User:alice", "write", "topic", "audit-", pattern_type="prefixed", permission="deny"))
    deny User:alice to WRITE on topic audit-*
    """

    #: `User:alice`; `User:*` is everybody.
    principal: str
    #: read, write, create, delete, alter, describe, ..., or all.
    operation: str
    #: topic, group, cluster, transactional_id, delegation_token or user.
    resource_type: str
    #: Of a topic, group, ...; `*` is all of them. A cluster has only one name.
    resource_name: str = CLUSTER_NAME
    #: literal: this name. prefixed: every name that begins so.
    pattern_type: str = "literal"
    #: An address; `*` is every host.
    host: str = WILDCARD
    #: allow or deny.
    permission: str = "allow"

    @classmethod
    def from_rule(cls, rule: AccessRule) -> AclBinding:
        """A rule in words. A number that has no word stays a number."""
        return cls(
            rule.principal,
            word(Operation, rule.operation),
            word(ResourceType, rule.resource_type),
            rule.resource_name,
            word(PatternType, rule.pattern_type),
            rule.host,
            word(Permission, rule.permission),
        )

    def rule(self) -> AccessRule:
        """The same with Kafka's numbers. TypeError or ValueError says what is wrong."""
        names = {"principal": self.principal, "resource_name": self.resource_name, "host": self.host}
        for what, name in names.items():
            if not isinstance(name, str):
                raise TypeError(f"{what} is str, not {type(name).__name__}")
            if not name:
                raise ValueError(f"{what} is empty")
        kind, colon, name = self.principal.partition(":")
        if not (kind and colon and name):
            raise ValueError(f"{self.principal!r} is not a principal: expected TYPE:NAME, for example User:alice")
        resource_type = read_word(self.resource_type, "resource_type", RESOURCE_TYPES)
        if resource_type is ResourceType.CLUSTER and self.resource_name != CLUSTER_NAME:
            raise ValueError(f"the only name of a cluster is {CLUSTER_NAME}, not {self.resource_name!r}")
        return AccessRule(
            resource_type,
            self.resource_name,
            read_word(self.pattern_type, "pattern_type", PATTERN_TYPES),
            self.principal,
            self.host,
            read_word(self.operation, "operation", OPERATIONS),
            read_word(self.permission, "permission", PERMISSIONS),
        )

    def __str__(self) -> str:
        try:
            return str(self.rule())
        except (TypeError, ValueError):
            return repr(self)


def check_possible(rule: AccessRule) -> None:
    """Raise ValueError for a rule that could never matter: its operation is none that is done to such a resource."""
    possible = OPERATIONS_ON[ResourceType(rule.resource_type)]
    if rule.operation != Operation.ALL and rule.operation not in possible:
        what, kind = word(Operation, rule.operation), word(ResourceType, rule.resource_type)
        words = ", ".join(sorted(one.name.lower() for one in possible))
        raise ValueError(f"{what} is no operation on a {kind}: choose from {words}")


def read_word(given: object, what: str, known: tuple[_Kind, ...]) -> _Kind:
    """The value that a word names.

    >>> read_word("TransactionalId", "resource_type", RESOURCE_TYPES).name
    'TRANSACTIONAL_ID'
    """
    if not isinstance(given, str):
        raise TypeError(f"{what} is a word such as {known[0].name.lower()!r}, not {type(given).__name__}")
    asked = _plain(given)
    for one in known:
        if _plain(one.name) == asked:
            return one
    shown = given if len(given) <= 40 else f"{given[:37]}..."
    raise ValueError(f"{what} is {shown!r}: it must be one of {', '.join(one.name.lower() for one in known)}")


def word(kind: type[enum.IntEnum], number: int) -> str:
    """The word for a number."""
    return kind(number).name.lower() if number in list(kind) else str(number)


def _plain(text: str) -> str:
    return re.sub("[-_ ]", "", text).lower()
