"""`semel acl`: access rules, and why somebody may or may not do something."""

from __future__ import annotations

import json
from typing import Any

import click

from semel.cli.acl_check import answer, in_words, read_authorizer_settings, read_rules
from semel.cli.acl_options import (
    binding,
    check_can_match,
    is_address,
    read_operation,
    read_principal,
    resource_options,
    take_resources,
    wanted_by,
)
from semel.cli.connecting import Brokers, admin_at, common_options
from semel.cli.output import errors_for_people, printable, show
from semel.machines.security.access import WILDCARD, Operation
from semel.machines.security.acl_bindings import AclBinding

_COLUMNS = ("principal", "permission", "operation", "resource_type", "resource_name", "pattern_type", "host")

operations_option = click.option(
    "--operation",
    "operations",
    multiple=True,
    callback=read_operation,
    metavar="OPERATION",
    help="read, write, create, delete, alter, describe, all, ...; may be repeated.",
)
producer_option = click.option("--producer", is_flag=True, help="What a producer needs: write, describe, create.")
consumer_option = click.option("--consumer", is_flag=True, help="What a consumer needs; give --topic and --group.")
prefixed_option = click.option("--prefixed", is_flag=True, help="The names are beginnings of names.")


@click.group()
def acl() -> None:
    """Add, list, remove and explain access rules (ACLs)."""


@acl.command()
@click.argument("principal", callback=read_principal)
@operations_option
@producer_option
@consumer_option
@resource_options
@prefixed_option
@click.option("--host", "hosts", multiple=True, help="An address it holds for; may be repeated.  [default: all]")
@click.option("--deny", is_flag=True, help="Deny instead of allow. A rule that denies beats all that allow.")
@common_options
def add(
    principal: str,
    operations: tuple[Operation, ...],
    producer: bool,
    consumer: bool,
    prefixed: bool,
    hosts: tuple[str, ...],
    deny: bool,
    brokers: Brokers,
    as_json: bool,
    **options: Any,
) -> None:
    """Add access rules: PRINCIPAL may (or, with --deny, may not) do this.

    PRINCIPAL is a user's name, or TYPE:NAME. User:* is everybody.
    """
    if deny and (producer or consumer):
        raise click.UsageError("--producer and --consumer are for rules that allow: name the --operation to deny")
    if not all(hosts):
        raise click.UsageError("--host: the address is empty")
    rules = [
        binding(principal, operation, resource, prefixed=prefixed, host=host, deny=deny)
        for operation, resource in wanted_by(
            operations, take_resources(options), producer=producer, consumer=consumer
        )
        for host in hosts or (WILDCARD,)
    ]
    for rule in rules:
        check_can_match(rule)
    with errors_for_people(), admin_at(brokers) as admin:
        admin.create_acls(rules)
    _show(rules, as_json=as_json)


@acl.command("list")
@click.option("--principal", callback=read_principal, help="Only rules about this principal.")
@operations_option
@resource_options
@click.option("--host", help="Only rules for this address.")
@common_options
def list_rules(
    principal: str | None,
    operations: tuple[Operation, ...],
    host: str | None,
    brokers: Brokers,
    as_json: bool,
    **options: Any,
) -> None:
    """List access rules: all, or those about a principal or a resource.

    With --topic and the like: all rules that can decide about this name, also those for a prefix of it and for *.
    """
    resources = take_resources(options)
    with errors_for_people(), admin_at(brokers) as admin:
        found: dict[AclBinding, None] = {}
        for resource in resources or (None,):
            named = {} if resource is None else {
                "resource_type": resource.kind.name, "resource_name": resource.name, "pattern_type": "match"
            }  # fmt: skip
            found |= dict.fromkeys(admin.describe_acls(principal=principal, host=host, **named))
    _show([one for one in found if _is_one_of(one, operations)], as_json=as_json)


@acl.command()
@click.argument("principal", callback=read_principal, required=False)
@operations_option
@resource_options
@prefixed_option
@click.option("--host", help="Only rules for this address; '*' is the rules for all addresses.")
@click.option("--allow", is_flag=True, help="Only rules that allow.")
@click.option("--deny", is_flag=True, help="Only rules that deny.")
@click.option("--yes", is_flag=True, help="Do not ask first.")
@common_options
def remove(
    principal: str | None,
    operations: tuple[Operation, ...],
    prefixed: bool,
    host: str | None,
    allow: bool,
    deny: bool,
    yes: bool,
    brokers: Brokers,
    as_json: bool,
    **options: Any,
) -> None:
    """Remove access rules: those of PRINCIPAL, or those about a resource, or both.

    The name of a resource is meant exactly: a rule for a prefix is removed with --prefixed.
    """
    resources = take_resources(options)
    if principal is None and not resources:
        raise click.UsageError("which rules? Give a principal, or --topic and the like: semel acl list shows them all")
    if allow and deny:
        raise click.UsageError("give one of --allow and --deny, or neither")
    permission = "allow" if allow else "deny" if deny else None
    with errors_for_people(), admin_at(brokers) as admin:
        found: dict[AclBinding, None] = {}
        for resource in resources or (None,):
            named = {} if resource is None else {"resource_type": resource.kind.name, "resource_name": resource.name}
            pattern_type = "prefixed" if prefixed else None if resource is None else "literal"
            matching = admin.describe_acls(
                principal=principal, host=host, permission=permission, pattern_type=pattern_type, **named
            )
            found |= dict.fromkeys(matching)
        chosen = [one for one in found if _is_one_of(one, operations)]
        if not chosen:
            raise click.ClickException("no rule matches: semel acl list shows those that are there")
        if not yes:
            _show(chosen, as_json=False, err=True)
            these = "this rule" if len(chosen) == 1 else f"these {len(chosen)} rules"
            click.confirm(f"Remove {these}?", abort=True, err=True)
        _show(admin.delete_acls(chosen), as_json=as_json)


@acl.command()
@click.argument("principal", callback=read_principal)
@click.argument("operation", callback=read_operation, required=False)
@producer_option
@consumer_option
@resource_options
@click.option("--host", help="The address that the client comes from.")
@common_options
def check(
    principal: str,
    operation: Operation | None,
    producer: bool,
    consumer: bool,
    host: str | None,
    brokers: Brokers,
    as_json: bool,
    **options: Any,
) -> None:
    """Say whether PRINCIPAL may do OPERATION to a resource, which rule decides, and what would change it.

    The exit code is 0 if all that is asked about is allowed, and 1 if not.
    """
    operations = () if operation is None else (operation,)
    if host is not None and not is_address(host):
        raise click.UsageError(f"--host: {host!r} is not an address")
    questions = wanted_by(
        operations, take_resources(options), producer=producer, consumer=consumer, operation_is="OPERATION"
    )
    with errors_for_people(), admin_at(brokers) as admin:
        settings = read_authorizer_settings(admin)
        answers = [answer(principal, one, host, read_rules(admin, one), settings) for one in questions]
    if as_json:
        click.echo(json.dumps(answers, indent=2))
    else:
        click.echo("\n".join(printable(line) for one in answers for line in in_words(one).split("\n")))
    if not all(one["allowed"] for one in answers):
        raise SystemExit(1)


def _is_one_of(acl: AclBinding, operations: tuple[Operation, ...]) -> bool:
    return not operations or acl.operation in {one.name.lower() for one in operations}


def _show(rules: list[AclBinding], *, as_json: bool, err: bool = False) -> None:
    rows = [{column: getattr(one, column) for column in _COLUMNS} for one in rules]
    rows.sort(key=lambda row: tuple(row.values()))
    show(rows, _COLUMNS, as_json=as_json, err=err)
