"""The access rules of a cluster: in ZooKeeper, and in memory on every broker.

Guarantees: a change adds or removes exactly the rules that it names. Others about the same resource stay, whichever
broker made them, and whenever (CVE-2024-27309 was one that did not).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from semel.errors import ErrorCode, Refused
from semel.machines.security.access import AccessRule, AccessRules
from semel.machines.znodes import access
from semel.machines.znodes.access import Pattern, TooManyRules, changed_node, decode_rules, pattern_of

if TYPE_CHECKING:
    from semel.broker.replication.shared import Decide, Present, Shared
    from semel.machines.znodes.operations import Operation

logger = logging.getLogger(__name__)


class SharedRules:
    """The rules in ZooKeeper, and the decisions that are made from them."""

    def __init__(self, shared: Shared, rules: AccessRules) -> None:
        self._shared = shared
        self._rules = rules
        self._known: dict[Pattern, set[AccessRule]] = {}
        shared.rules = self

    def told(self, pattern: Pattern, data: bytes | None) -> None:
        """A resource has these rules now, and no others. New ones first: at no moment is there a gap."""
        found, unknown = ([], []) if data is None else decode_rules(pattern, data)
        for entry in unknown:
            logger.warning("%s in ZooKeeper has a rule that is not known here: %s", pattern.path, entry)
        before, now = self._known.get(pattern, set()), set(found)
        if now == before:
            return
        self._rules.add(now - before)
        self._rules.remove(before - now)
        if now:
            self._known[pattern] = now
        else:
            self._known.pop(pattern, None)

    def missing(self, rules: Iterable[AccessRule]) -> list[AccessRule]:
        """All of them: another broker may have removed one of which this one knows."""
        return list(dict.fromkeys(rules))

    async def know(self) -> None:
        await self._shared.know()

    async def add(self, added: Iterable[AccessRule]) -> None:
        await self._change(list(added), [])

    async def remove(self, removed: Iterable[AccessRule]) -> None:
        await self._change([], list(removed))

    async def _change(self, added: list[AccessRule], removed: list[AccessRule]) -> None:
        patterns: dict[Pattern, tuple[list[AccessRule], list[AccessRule]]] = {}
        for rule in added:
            patterns.setdefault(pattern_of(rule), ([], []))[0].append(rule)
        for rule in removed:
            patterns.setdefault(pattern_of(rule), ([], []))[1].append(rule)
        items = []
        for pattern, (more, less) in patterns.items():
            if not pattern.can_be_stored:
                why = f"{pattern.name!r} cannot be the name of a node in ZooKeeper, where the rules are"
                raise Refused(ErrorCode.INVALID_REQUEST, why)
            items.append((pattern.path, _decider(pattern, more, less)))
        try:
            await self._shared.change(items, access.LITERAL_CHANGES, access.PREFIXED_CHANGES)
        except TooManyRules as error:
            raise Refused(ErrorCode.POLICY_VIOLATION, str(error)) from None


def _decider(pattern: Pattern, added: list[AccessRule], removed: list[AccessRule]) -> Decide:
    def decide(present: Present) -> tuple[Operation, ...]:
        return changed_node(pattern, present, added, removed)

    return decide
