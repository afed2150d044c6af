"""The stored access rules (ACLs).

Guarantees:

- A rule holds, or holds no more, only after the change is on disk, and is answered only then. It is the same after a
  restart.
- A change adds or removes exactly the rules that it names. Others about the same resource stay.
- The rules are written beside the loop: however many there are, a change keeps no other request waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from semel.broker.stored.entry import StoredEntry
from semel.broker.stored.metadata_store import LocalMetadataStore
from semel.machines.security.access import AccessRule, AccessRules, Operation, PatternType, Permission, ResourceType

_STORE_ENTRY = "access-rules"


class StoredRules(Protocol):
    """Where rules are stored."""

    def missing(self, rules: Iterable[AccessRule]) -> list[AccessRule]:
        """Those that have to be added, each once."""

    async def add(self, added: Iterable[AccessRule]) -> None:
        """Add rules; those that are there already stay as they are. One change at a time."""

    async def remove(self, removed: Iterable[AccessRule]) -> None:
        """Remove rules. One change at a time."""

    async def know(self) -> None:
        """Before something is decided by what is stored: it may have been changed elsewhere."""


class AccessRuleStore:
    """The rules on disk, and the decisions that are made from them."""

    def __init__(self, store: LocalMetadataStore, rules: AccessRules) -> None:
        """Add the stored rules to `rules`."""
        self._entry = StoredEntry(store, _STORE_ENTRY)
        self._rules = rules
        rules.add(self._entry.read_as(lambda rows: [_rule(row) for row in rows or ()]))

    def missing(self, rules: Iterable[AccessRule]) -> list[AccessRule]:
        """Those that are not there yet, each once."""
        return [rule for rule in dict.fromkeys(rules) if rule not in self._rules]

    async def add(self, added: Iterable[AccessRule]) -> None:
        """Add rules; those that are there already stay as they are. One change at a time."""
        if new := self.missing(added):
            await self._replace([*self._rules, *new], lambda: self._rules.add(new))

    async def remove(self, removed: Iterable[AccessRule]) -> None:
        """Remove rules. One change at a time."""
        gone = {rule for rule in removed if rule in self._rules}
        if gone:
            await self._replace([rule for rule in self._rules if rule not in gone], lambda: self._rules.remove(gone))

    async def know(self) -> None:
        """Nobody else changes them."""

    async def _replace(self, rules: list[AccessRule], then: Callable[[], None]) -> None:
        await self._entry.replace_beside(lambda: [_row(rule) for rule in rules], then=then)


def _row(rule: AccessRule) -> list[str]:
    return [
        ResourceType(rule.resource_type).name,
        PatternType(rule.pattern_type).name,
        rule.resource_name,
        rule.principal,
        rule.host,
        Operation(rule.operation).name,
        Permission(rule.permission).name,
    ]


def _rule(row: list[str]) -> AccessRule:
    resource_type, pattern_type, resource_name, principal, host, operation, permission = row
    return AccessRule(
        ResourceType[resource_type],
        resource_name,
        PatternType[pattern_type],
        principal,
        host,
        Operation[operation],
        Permission[permission],
    )
