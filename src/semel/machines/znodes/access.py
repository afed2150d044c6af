"""Access rules in ZooKeeper, as Apache Kafka 3.9 keeps them: a node for each resource, with all its rules.

    /kafka-acl/Topic/payments                    rules about the topic payments; `*` is every topic
    /kafka-acl-extended/prefixed/Topic/pay       rules about all topics whose names begin with pay

A change is told by a sequential node, `/kafka-acl-changes/acl_changes_<n>` or
`/kafka-acl-extended-changes/acl_changes_<n>`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from semel.machines.security.access import AccessRule, Operation, PatternType, Permission, ResourceType
from semel.machines.znodes.operations import Create, Delete, SetData
from semel.machines.znodes.operations import Operation as Change
from semel.machines.znodes.values import AclEntry, decode_acls, encode_acls

LITERAL_FOLDER, PREFIXED_FOLDER = "/kafka-acl", "/kafka-acl-extended/prefixed"
LITERAL_CHANGES, PREFIXED_CHANGES = "/kafka-acl-changes", "/kafka-acl-extended-changes"
#: A node is at most so large; ZooKeeper would drop the connection of who asks for twice as much.
MAX_NODE_BYTES = 512 * 1024


def _word(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


#: The words of Kafka's nodes: TransactionalId, ClusterAction, Allow.
RESOURCE_WORDS: dict[ResourceType, str] = {
    kind: _word(kind.name) for kind in ResourceType if kind not in (ResourceType.UNKNOWN, ResourceType.ANY)
}
_OPERATION_WORDS: dict[Operation, str] = {
    one: _word(one.name) for one in Operation if one not in (Operation.UNKNOWN, Operation.ANY)
}
_PERMISSION_WORDS: dict[Permission, str] = {one: _word(one.name) for one in (Permission.ALLOW, Permission.DENY)}
_RESOURCES = {word: kind for kind, word in RESOURCE_WORDS.items()}
_OPERATIONS = {word: one for one, word in _OPERATION_WORDS.items()}
_PERMISSIONS = {word: one for one, word in _PERMISSION_WORDS.items()}

#: The folders that must be there before a rule can be.
FOLDERS = tuple(f"{folder}/{word}" for folder in (LITERAL_FOLDER, PREFIXED_FOLDER) for word in RESOURCE_WORDS.values())


class Pattern(NamedTuple):
    """What a node of rules is about."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType

    @property
    def path(self) -> str:
        folder = PREFIXED_FOLDER if self.pattern_type is PatternType.PREFIXED else LITERAL_FOLDER
        return f"{folder}/{RESOURCE_WORDS[self.resource_type]}/{self.name}"

    @property
    def can_be_stored(self) -> bool:
        """Whether the name can be one of a node: ZooKeeper has no way to write a slash."""
        return "/" not in self.name and "\0" not in self.name and self.name not in (".", "..")

    def notification(self) -> Create:
        """Tells other brokers, also Kafka's, that the rules have changed."""
        kind = self.resource_type.name
        if self.pattern_type is PatternType.LITERAL:
            return Create(f"{LITERAL_CHANGES}/acl_changes_", f"{kind}:{self.name}".encode(), sequential=True)
        event = {"version": 1, "resourceType": kind, "name": self.name, "patternType": self.pattern_type.name}
        return Create(
            f"{PREFIXED_CHANGES}/acl_changes_", json.dumps(event, separators=(",", ":")).encode(), sequential=True
        )


def pattern_of(rule: AccessRule) -> Pattern:
    """Where a rule is kept."""
    return Pattern(ResourceType(rule.resource_type), rule.resource_name, PatternType(rule.pattern_type))


def pattern_at(path: str) -> Pattern | None:
    """What a node is about; None if it is no node of rules."""
    for folder, pattern_type in ((PREFIXED_FOLDER, PatternType.PREFIXED), (LITERAL_FOLDER, PatternType.LITERAL)):
        word, slash, name = path.removeprefix(f"{folder}/").partition("/")
        if path.startswith(f"{folder}/") and slash and word in _RESOURCES:
            return Pattern(_RESOURCES[word], name, pattern_type)
    return None


def decode_rules(pattern: Pattern, data: bytes) -> tuple[list[AccessRule], list[AclEntry]]:
    """The rules of a node, and those that nobody here understands. `UnreadableZnode` if it is none."""
    rules, unknown = [], []
    for entry in decode_acls(data, pattern.path):
        operation, permission = _OPERATIONS.get(entry.operation), _PERMISSIONS.get(entry.permission)
        if operation is None or permission is None:
            unknown.append(entry)
        else:
            rules.append(
                AccessRule(
                    pattern.resource_type, pattern.name, pattern.pattern_type, entry.principal, entry.host, operation,
                    permission,
                )
            )
    return rules, unknown


def _entry(rule: AccessRule) -> AclEntry:
    return AclEntry(
        rule.principal,
        _PERMISSION_WORDS[Permission(rule.permission)],
        _OPERATION_WORDS[Operation(rule.operation)],
        rule.host,
    )


class TooManyRules(ValueError):
    """More rules about one resource than a node holds."""


def changed_node(
    pattern: Pattern,
    present: tuple[bytes, int] | None,
    added: Iterable[AccessRule],
    removed: Iterable[AccessRule],
) -> tuple[Change, ...]:
    """What to write so that a resource has these rules more and those less; nothing if it has them so already.

    `present` is the node as it was read, with its version; None if there is none. All other rules of it stay, also
    those that are not understood. A node without rules goes.
    """
    before = decode_acls(present[0], pattern.path) if present is not None else ()
    gone = {_entry(rule) for rule in removed}
    after: Mapping[AclEntry, None] = dict.fromkeys(
        (*(entry for entry in before if entry not in gone), *(_entry(rule) for rule in added))
    )
    if set(after) == set(before):
        return ()
    data = encode_acls(tuple(after))
    if len(data) > MAX_NODE_BYTES:
        raise TooManyRules(f"more rules about {pattern.name!r} than a node of ZooKeeper holds; use a prefix or User:*")
    write: Change
    if present is None:
        write = Create(pattern.path, data)
    else:
        write = SetData(pattern.path, data, present[1]) if after else Delete(pattern.path, present[1])
    return write, pattern.notification()
