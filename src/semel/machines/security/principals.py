"""Who is asking: principals, and how a certificate's name becomes one (`ssl.principal.mapping.rules`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

USER = "User"
_SETTING = "ssl.principal.mapping.rules"


class Principal(NamedTuple):
    """Somebody, by kind and name. Access rules know it by its text, `User:alice`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


ANONYMOUS = Principal(USER, "ANONYMOUS")


def parse_principal(text: str) -> Principal:
    """A principal from its text.

    >>> parse_principal("User:CN=alice,O=Semel")
    Principal(kind='User', name='CN=alice,O=Semel')
    """
    kind, colon, name = text.partition(":")
    if not colon or not kind or not name:
        raise ValueError(f"{text!r} is not a principal: expected TYPE:NAME, for example User:alice")
    return Principal(kind, name)


def parse_principals(text: str) -> frozenset[str]:
    """Principals as `super.users` lists them: with semicolons, because names of certificates have commas in them."""
    if f",{USER}:" in text.replace(" ", ""):
        # Kafka takes that for one user with a strange name, and then nobody is an administrator.
        raise ValueError(f"{text!r}: put semicolons between principals; commas are part of a name")
    return frozenset(str(parse_principal(part.strip())) for part in text.split(";") if part.strip())


class MappingRule(NamedTuple):
    """One rule: a pattern for the whole name, what to make of it, and whether to change its case."""

    pattern: re.Pattern[str] | None
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        """The name that follows, or None where the rule does not fit."""
        if self.pattern is None:
            return name
        found = self.pattern.fullmatch(name)
        if found is None:
            return None
        mapped = re.sub(r"\$(\d)", lambda group: found.group(int(group[1])) or "", self.replacement)
        return mapped.lower() if self.case == "L" else mapped.upper() if self.case == "U" else mapped


_RULE = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")


def parse_mapping_rules(text: str) -> tuple[MappingRule, ...]:
    """The rules of `ssl.principal.mapping.rules`: DEFAULT, or RULE:pattern/replacement/ with L or U after it.

    >>> [rule.apply("CN=Alice,O=Semel") for rule in parse_mapping_rules("RULE:^CN=(.*?),.*$/$1/L, DEFAULT")]
    ['alice', 'CN=Alice,O=Semel']
    """
    rules: list[MappingRule] = []
    position = 0
    while position < len(text):
        found = _RULE.match(text, position)
        if found is None or found.end() == position:
            raise ValueError(f"{_SETTING}: cannot read {text[position:]!r}; expected DEFAULT or RULE:pattern/new/")
        position = found.end()
        if found[1]:
            rules.append(MappingRule(None, "", ""))
            continue
        try:
            pattern = re.compile(found[2])
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"{_SETTING}: {found[2]!r} is not a regular expression: {error}") from error
        groups = [int(number) for number in re.findall(r"\$(\d)", found[3])]
        if groups and max(groups) > pattern.groups:
            raise ValueError(f"{_SETTING}: {found[3]!r} names a group that {found[2]!r} does not have")
        rules.append(MappingRule(pattern, found[3], found[4]))
    return tuple(rules) or (MappingRule(None, "", ""),)


def map_name(rules: Sequence[MappingRule], name: str) -> str:
    """What a certificate's name becomes: by the first rule that fits. None fitting is an error, as in Kafka."""
    for rule in rules:
        if (mapped := rule.apply(name)) is not None:
            return mapped
    raise ValueError(f"no rule of {_SETTING} fits {name!r}")
