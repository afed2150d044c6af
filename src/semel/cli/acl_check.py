"""Why somebody may or may not do something: the rules of a broker are read, and decided over here as the broker does.

The decision is that of `machines/security/access.py`, which is Kafka's. What cannot be known from outside (a broker may
not tell its super users) is said.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from semel.cli.acl_options import Wanted, binding, command_for
from semel.client.blocking.admin import Admin
from semel.errors import KafkaError
from semel.machines.security.access import AccessRules, Permission
from semel.machines.security.acl_bindings import AclBinding
from semel.machines.security.principals import parse_principals

#: A host that no rule names.
_ANY_OTHER_HOST = ""
_SUPER_USERS, _EVERYONE = "super.users", "allow.everyone.if.no.acl.found"


@dataclass(frozen=True, slots=True)
class AuthorizerSettings:
    """What a broker tells about its authorizer; None is what it does not tell."""

    super_users: frozenset[str] | None = None
    allow_where_no_rule: bool | None = None

    @property
    def unknown(self) -> list[str]:
        """The settings that are not known."""
        known = {_SUPER_USERS: self.super_users, _EVERYONE: self.allow_where_no_rule}
        return [name for name, value in known.items() if value is None]


def read_authorizer_settings(admin: Admin) -> AuthorizerSettings:
    """Ask a broker for its settings. Who may not see them, and who asks a broker that hides them, gets Nones."""
    try:
        node = admin.describe_cluster().nodes[0]
        settings = admin.describe_configs("broker", str(node.node_id))
    except (KafkaError, IndexError):
        return AuthorizerSettings()
    found = {name: settings[name].value for name in (_SUPER_USERS, _EVERYONE) if name in settings}
    super_users, everyone = found.get(_SUPER_USERS), found.get(_EVERYONE)
    try:
        known = None if super_users is None else parse_principals(super_users)
    except ValueError:
        known = None
    return AuthorizerSettings(known, None if everyone is None else everyone.lower() == "true")


def read_rules(admin: Admin, wanted: Wanted) -> list[AclBinding]:
    """All rules that can decide about a resource."""
    return admin.describe_acls(
        resource_type=wanted.resource.kind.name, resource_name=wanted.resource.name, pattern_type="match"
    )


def answer(
    principal: str, wanted: Wanted, host: str | None, acls: Iterable[AclBinding], settings: AuthorizerSettings
) -> dict[str, Any]:
    """The answer to one question, with what it rests on and what would change it."""
    rules = AccessRules(
        (one.rule() for one in acls),
        super_users=settings.super_users or (),
        allow_where_no_rule=bool(settings.allow_where_no_rule),
    )
    operation, (kind, name) = wanted
    asked = (operation, kind, name)
    decided = rules.decide(principal, host or _ANY_OTHER_HOST, *asked)
    hosts = sorted({rule.host for rule in rules} - {"*"}) if host is None else []
    return {
        "principal": principal,
        "operation": operation.name.lower(),
        "resource_type": kind.name.lower(),
        "resource_name": name,
        "host": host,
        "allowed": decided.is_allowed,
        "why": decided.why,
        "rule": None if decided.rule is None else str(decided.rule),
        "to_change_it": _changes(rules, principal, host or _ANY_OTHER_HOST, wanted, settings),
        "otherwise_from": [
            one for one in hosts if rules.decide(principal, one, *asked).is_allowed is not decided.is_allowed
        ],
        "not_known": _not_known(rules, decided.is_allowed, decided.rule is not None, settings),
    }


def _changes(
    rules: AccessRules, principal: str, host: str, wanted: Wanted, settings: AuthorizerSettings
) -> list[str]:
    """The commands that turn the answer round; none for a super user, whom no rule concerns."""
    if principal in (settings.super_users or ()):
        return []
    operation, (kind, name) = wanted
    if rules.decide(principal, host, operation, kind, name).is_allowed:
        return [command_for("add", binding(principal, operation, wanted.resource, host=host or "*", deny=True))]
    fitting = list(rules.fitting(principal, host, operation, kind, name))
    commands = [
        command_for("remove", AclBinding.from_rule(rule)) for rule in fitting if rule.permission == Permission.DENY
    ]
    if not any(rule.permission == Permission.ALLOW for rule in fitting):
        commands.append(command_for("add", binding(principal, operation, wanted.resource)))
    return commands


def _not_known(rules: AccessRules, is_allowed: bool, by_rule: bool, settings: AuthorizerSettings) -> list[str]:
    """The settings of the broker that could make the answer another, and that it does not tell."""
    if is_allowed:
        return []
    unknown = settings.unknown
    if by_rule or len(rules):
        unknown = [name for name in unknown if name != _EVERYONE]
    return unknown


def in_words(found: dict[str, Any]) -> str:
    """An answer for people."""
    kind = found["resource_type"].replace("_", " ")
    resource = "the cluster" if kind == "cluster" else f"{kind} {found['resource_name']}"
    may = "yes: {} may {}" if found["allowed"] else "no: {} may not {}"
    where = f" from {found['host']}" if found["host"] else ""
    lines = [
        f"{may.format(found['principal'], found['operation'].upper())} {resource}{where}",
        f"  {found['why']}",
    ]
    if found["otherwise_from"]:
        other = "not allowed" if found["allowed"] else "allowed"
        lines.append(f"  from {', '.join(found['otherwise_from'])} it is {other}: ask with --host")
    for setting in found["not_known"]:
        what = f"{found['principal']} is one of them" if setting == _SUPER_USERS else "it is true"
        lines.append(f"  this broker does not tell its {setting}: if {what}, the answer is yes")
    begin = "to forbid it" if found["allowed"] else "to allow it"
    for command in found["to_change_it"]:
        lines.append(f"  {begin}: {command}")
    if not found["to_change_it"]:
        lines.append("  no rule can change it: take the user out of super.users, and start the broker anew")
    return "\n".join(lines)
