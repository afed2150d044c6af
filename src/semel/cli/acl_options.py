"""What the options of `semel acl` mean: the resources they name, the rules they make, and the command for a rule."""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

import click

from semel.machines.security.access import CLUSTER_NAME, WILDCARD, Operation, PatternType, ResourceType
from semel.machines.security.acl_bindings import OPERATIONS, AclBinding, check_possible, read_word

Command = TypeVar("Command", bound=Callable[..., Any])

#: Resource type -> its option. A cluster has one name, so its option has no value.
RESOURCE_OPTIONS = {
    ResourceType.TOPIC: "--topic",
    ResourceType.GROUP: "--group",
    ResourceType.TRANSACTIONAL_ID: "--transactional-id",
    ResourceType.DELEGATION_TOKEN: "--delegation-token",
    ResourceType.USER: "--user-principal",
    ResourceType.CLUSTER: "--cluster",
}

#: What a producer and a consumer need, as kafka-acls has it.
OF_PRODUCER = {
    ResourceType.TOPIC: (Operation.WRITE, Operation.DESCRIBE, Operation.CREATE),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE),
}
OF_CONSUMER = {
    ResourceType.TOPIC: (Operation.READ, Operation.DESCRIBE),
    ResourceType.GROUP: (Operation.READ,),
}


class Resource(NamedTuple):
    """Something that a rule can be about."""

    kind: ResourceType
    name: str

    def __str__(self) -> str:
        kind = self.kind.name.lower().replace("_", " ")
        return "the cluster" if self.kind is ResourceType.CLUSTER else f"{kind} {self.name}"


class Wanted(NamedTuple):
    """An operation on a resource."""

    operation: Operation
    resource: Resource


def resource_options(command: Command) -> Command:
    """--topic and the others. The command gets all that was named as its argument `resources`."""
    helps = {
        ResourceType.TOPIC: "A topic; * is all topics. May be repeated, as all of these.",
        ResourceType.GROUP: "A consumer group.",
        ResourceType.TRANSACTIONAL_ID: "A transactional id.",
        ResourceType.DELEGATION_TOKEN: "A delegation token, by its id.",
        ResourceType.USER: "A user whose tokens others may make, for example User:alice.",
        ResourceType.CLUSTER: "The cluster itself.",
    }
    for kind, option in reversed(RESOURCE_OPTIONS.items()):
        if kind is ResourceType.CLUSTER:
            command = click.option(option, "cluster", is_flag=True, help=helps[kind])(command)
        else:
            name = kind.name.lower()
            command = click.option(option, name, metavar="NAME", multiple=True, help=helps[kind])(command)
    return command


#: What a topic's name may be made of.
_TOPIC_CHARACTERS = re.compile(r"[a-zA-Z0-9._-]+")


def take_resources(options: dict[str, Any]) -> list[Resource]:
    """The resources that the options name. They are taken out of `options`."""
    found = []
    for kind in RESOURCE_OPTIONS:
        given = options.pop(kind.name.lower())
        if kind is ResourceType.CLUSTER:
            found += [Resource(kind, CLUSTER_NAME)] if given else []
            continue
        for name in given:
            if not name:
                raise click.UsageError(f"{RESOURCE_OPTIONS[kind]}: the name is empty")
            if kind is ResourceType.USER and ":" not in name and name != WILDCARD:
                name = f"User:{name}"
            found.append(Resource(kind, name))
    return list(dict.fromkeys(found))


def read_operation(_: click.Context, __: click.Parameter, given: Any) -> Any:
    """The callback of --operation."""
    try:
        if isinstance(given, tuple):
            return tuple(read_word(one, "--operation", OPERATIONS) for one in given)
        return None if given is None else read_word(given, "operation", OPERATIONS)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def read_principal(_: click.Context, __: click.Parameter, given: str | None) -> str | None:
    """The callback for a principal: a name alone is that of a user."""
    if given is None:
        return None
    kind, colon, name = given.partition(":")
    if not given or (colon and not (kind and name)):
        raise click.UsageError(f"{given!r} is not a principal: expected a user's name, or TYPE:NAME")
    if kind != "User" and kind.lower() == "user" and colon:
        raise click.UsageError(f"{given!r} is nobody: the type is written User, as in User:{name}")
    return given if colon else f"User:{given}"


def is_address(text: str) -> bool:
    """Whether this is an address that a client can come from."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def check_can_match(acl: AclBinding) -> None:
    """Refuse a rule that no client could ever meet: whoever adds one believes that it protects something."""
    if acl.host != WILDCARD and not is_address(acl.host):
        raise click.UsageError(
            f"--host: {acl.host!r} is not an address; a broker knows clients by their IP address, not by a name or a "
            "network"
        )
    prefixed, name = acl.pattern_type == "prefixed", acl.resource_name
    if prefixed and name == WILDCARD:
        raise click.UsageError("--prefixed: * is all names already; without --prefixed it means that")
    if acl.resource_type == "topic" and name != WILDCARD and not _TOPIC_CHARACTERS.fullmatch(name):
        raise click.UsageError(f"--topic: {name!r} is no name of a topic: letters, digits, '.', '_' and '-' are")


def wanted_by(
    operations: Iterable[Operation],
    resources: Iterable[Resource],
    *,
    producer: bool,
    consumer: bool,
    operation_is: str = "--operation",
) -> list[Wanted]:
    """Every operation on every resource that a command is about. Refuses what makes no sense."""
    operations, resources = list(operations), list(resources)
    if not (operations or producer or consumer):
        raise click.UsageError(f"what is it about? Give {operation_is}, --producer or --consumer")
    if not resources:
        known = ", ".join(RESOURCE_OPTIONS.values())
        raise click.UsageError(f"which resource is it about? Give one or more of {known}")
    kinds = {one.kind for one in resources}
    if producer and not kinds & set(OF_PRODUCER):
        raise click.UsageError("--producer needs --topic or --transactional-id")
    if consumer and not kinds >= set(OF_CONSUMER):
        raise click.UsageError("--consumer needs --topic and --group")
    sets = [one for one, chosen in ((OF_PRODUCER, producer), (OF_CONSUMER, consumer)) if chosen]
    found = [Wanted(operation, resource) for resource in resources for operation in operations]
    found += [
        Wanted(operation, resource)
        for resource in resources
        for needs in sets
        for operation in needs.get(resource.kind, ())
    ]
    for operation, resource in found:
        _check_possible(operation, resource)
    unused = [one for one in resources if one not in {wanted.resource for wanted in found}]
    if unused:
        raise click.UsageError(f"nothing is said about {unused[0]}: add --operation, or leave it out")
    return list(dict.fromkeys(found))


def _check_possible(operation: Operation, resource: Resource) -> None:
    try:
        check_possible(binding("User:x", operation, resource).rule())
    except ValueError as error:
        raise click.UsageError(str(error)) from None


def binding(
    principal: str,
    operation: Operation,
    resource: Resource,
    *,
    prefixed: bool = False,
    host: str = WILDCARD,
    deny: bool = False,
) -> AclBinding:
    """One rule in words."""
    return AclBinding(
        principal,
        operation.name.lower(),
        resource.kind.name.lower(),
        resource.name,
        "prefixed" if prefixed else "literal",
        host,
        "deny" if deny else "allow",
    )


def command_for(verb: str, acl: AclBinding) -> str:
    """The command that adds or removes exactly this rule."""
    rule = acl.rule()
    kind = ResourceType(rule.resource_type)
    words = ["semel", "acl", verb, acl.principal, "--operation", acl.operation, RESOURCE_OPTIONS[kind]]
    if kind is not ResourceType.CLUSTER:
        words.append(acl.resource_name)
    if rule.pattern_type == PatternType.PREFIXED:
        words.append("--prefixed")
    if acl.host != WILDCARD or verb == "remove":
        words += ["--host", acl.host]
    if acl.permission == "deny":
        words.append("--deny")
    elif verb == "remove":
        words.append("--allow")
    return shlex.join(words)
