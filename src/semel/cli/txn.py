"""`semel txn`: list and describe transactions, abort one, and diagnose why a last stable offset does not move."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from semel.cli.connecting import Brokers, cluster_at, common_options
from semel.cli.output import errors_for_people, show
from semel.cli.txn_diagnosis import Verdict, duration, explain, moment
from semel.cli.txn_requests import (
    chosen_partitions,
    describe_transaction,
    fence,
    findings,
    hides_nothing,
    is_unchanged,
    list_transactional_ids,
    mend,
    write_marker,
)
from semel.client.blocking.cluster import BlockingCluster
from semel.machines.transactions.metadata import NO_TIMEOUT_MS
from semel.machines.transactions.states import PREPARED, STATES_BY_TITLE, TransactionState
from semel.machines.values import TopicPartition
from semel.wire.messages.transactions import ListTransactionsRequest

#: The states that a broker reports for a transactional id.
VISIBLE_STATES = [
    state.title
    for state in TransactionState
    if state not in (TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE)
]


def _now_ms() -> int:
    return int(time.time() * 1000)

#: With access rules a broker hides what the user may not describe.
_MAY_BE_HIDDEN = (
    "Access rules are on: a transaction whose transactional id this user may not describe looks as if it hung. Let a "
    "super user look, or one who may DESCRIBE all transactional ids. With --yes such a transaction is left alone."
)


@click.group()
def txn() -> None:
    """List, describe, diagnose and abort transactions."""


@txn.command("list")
@click.option(
    "--state", "states", multiple=True, type=click.Choice(VISIBLE_STATES, case_sensitive=False),
    help="Only ids in this state; may be repeated.",
)  # fmt: skip
@click.option("--producer-id", "producer_ids", multiple=True, type=int, help="Only these producer ids.")
@click.option("--longer-than-ms", type=int, default=-1, help="Only transactions running for longer than this.")
@click.option("--pattern", default="", help="Only transactional ids that match this regular expression.")
@common_options
def list_transactions(
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than_ms: int,
    pattern: str,
    brokers: Brokers,
    as_json: bool,
) -> None:
    """List transactional ids and what they are doing."""
    request = ListTransactionsRequest(
        state_filters=list(states),
        producer_id_filters=list(producer_ids),
        duration_filter=longer_than_ms,
        transactional_id_pattern=pattern or None,
    )
    with errors_for_people(), cluster_at(brokers) as cluster:
        rows = [
            {
                "transactional_id": state.transactional_id,
                "producer_id": state.producer_id,
                "state": state.transaction_state,
            }
            for answer in list_transactional_ids(cluster, request)
            for state in answer.transaction_states
        ]
        rows.sort(key=lambda row: str(row["transactional_id"]))
        show(rows, ("transactional_id", "producer_id", "state"), as_json=as_json)


@txn.command()
@click.argument("transactional_ids", nargs=-1, required=True)
@common_options
def describe(transactional_ids: tuple[str, ...], brokers: Brokers, as_json: bool) -> None:
    """Show owner, age, timeout and partitions of transactional ids."""
    with errors_for_people(), cluster_at(brokers) as cluster:
        now_ms = _now_ms()
        rows = []
        for transactional_id in transactional_ids:
            found = describe_transaction(cluster, transactional_id)
            state = STATES_BY_TITLE.get(found.state)
            is_open = state is TransactionState.ONGOING or state in PREPARED
            rows.append(
                {
                    "transactional_id": transactional_id,
                    "state": found.state,
                    "producer_id": found.producer_id,
                    "producer_epoch": found.producer_epoch,
                    "timeout_ms": found.timeout_ms,
                    "start_time_ms": found.start_ms,
                    "age_ms": max(0, now_ms - found.start_ms) if is_open and found.start_ms >= 0 else None,
                    "partitions": sorted(map(str, found.partitions)),
                }
            )
        if as_json:
            show(rows, (), as_json=True)
            return
        for row in rows:
            click.echo(_in_words(row))


def _in_words(row: dict[str, Any]) -> str:
    timeout = "none (two-phase)" if row["timeout_ms"] == NO_TIMEOUT_MS else duration(row["timeout_ms"])
    lines = [
        f"{row['transactional_id']}: {row['state']}",
        f"  producer id {row['producer_id']}, epoch {row['producer_epoch']}, timeout {timeout}",
    ]
    if row["age_ms"] is not None:
        lines.append(f"  open for {duration(row['age_ms'])}, since {moment(row['start_time_ms'])}")
    if row["partitions"]:
        lines.append("  in " + ", ".join(row["partitions"]))
    return "\n".join(lines)


@txn.command()
@click.argument("transactional_id", required=False)
@click.option("--partition", "place", metavar="TOPIC-NUMBER", help="The partition of the hanging transaction.")
@click.option("--producer-id", type=int, help="The producer id of the hanging transaction.")
@click.option("--yes", is_flag=True, help="Do not ask first.")
@common_options
def abort(
    transactional_id: str | None,
    place: str | None,
    producer_id: int | None,
    yes: bool,
    brokers: Brokers,
    as_json: bool,
) -> None:
    """Abort a transaction.

    With a TRANSACTIONAL_ID the coordinator aborts its open transaction and fences the producer. A transaction that
    hangs in a partition, and is unknown to its coordinator, is given by --partition and --producer-id.
    """
    if (transactional_id is None) == (place is None and producer_id is None):
        raise click.UsageError("give a transactional id, or --partition with --producer-id")
    with errors_for_people(), cluster_at(brokers) as cluster:
        if transactional_id is not None:
            done = _abort_known(cluster, transactional_id, yes)
        else:
            if place is None or producer_id is None:
                raise click.UsageError("a hanging transaction needs both --partition and --producer-id")
            partitions = chosen_partitions(cluster, [place])
            if len(partitions) != 1:
                raise click.UsageError(f"{place} has {len(partitions)} partitions: give one, as in {place}-0")
            done = _abort_hanging(cluster, partitions[0], producer_id, yes)
        click.echo(json.dumps({"done": done}) if as_json else done)


def _abort_known(cluster: BlockingCluster, transactional_id: str, yes: bool) -> str:
    found = describe_transaction(cluster, transactional_id)
    if STATES_BY_TITLE.get(found.state) in PREPARED:
        raise click.ClickException(
            f"{transactional_id!r} is {found.state}: its outcome is decided and cannot be changed any more."
        )
    if not yes:
        click.confirm(
            f"{transactional_id!r} is {found.state}. Abort its transaction and fence its producer?",
            abort=True,
            err=True,
        )
    fence(cluster, transactional_id)
    return f"{transactional_id!r} has no transaction open any more, and its producer is fenced."


def _abort_hanging(cluster: BlockingCluster, partition: TopicPartition, producer_id: int, yes: bool) -> str:
    found = [each for each in findings(cluster, [partition], _now_ms()) if each.opened.producer_id == producer_id]
    if not found:
        raise click.ClickException(f"Producer id {producer_id} has no transaction open in {partition}.")
    finding = found[0]
    if finding.verdict is not Verdict.HANGING:
        assert finding.coordinated is not None
        raise click.ClickException(
            f"It does not hang: the coordinator knows it as {finding.coordinated.transactional_id!r}, "
            f"{finding.coordinated.state}. Abort it by that name."
        )
    if not yes:
        click.echo(explain(finding), err=True)
        if not hides_nothing(cluster):
            click.echo(_MAY_BE_HIDDEN, err=True)
        click.confirm(f"Write an abort marker into {partition}?", abort=True, err=True)
    write_marker(cluster, partition, finding.opened, commit=False)
    return f"Wrote an abort marker for producer id {producer_id} into {partition}."


@txn.command()
@click.argument("places", nargs=-1, metavar="[TOPIC|TOPIC-NUMBER]...")
@click.option("--fix", is_flag=True, help="Offer to end the transactions that hold readers back.")
@click.option("--yes", is_flag=True, help="With --fix: end transactions that do not end by themselves, without asking.")
@common_options
def doctor(places: tuple[str, ...], fix: bool, yes: bool, brokers: Brokers, as_json: bool) -> None:
    """Explain why the last stable offset of a partition is not moving.

    Checks the given topics or partitions (`ledger`, `ledger-0`), or all. The exit code is 1 if a transaction is left
    that does not end by itself, or if a partition cannot be read.
    """
    with errors_for_people(), cluster_at(brokers) as cluster:
        partitions = chosen_partitions(cluster, places)
        unreadable: dict[TopicPartition, str] = {}
        found = findings(cluster, partitions, _now_ms(), unreadable)
        done: dict[int, str] = {}
        for partition, why in unreadable.items():
            click.echo(f"{partition} cannot be read: {why}", err=True)
        sees_all = hides_nothing(cluster)
        if not as_json:
            _report(len(partitions) - len(unreadable), [explain(finding) for finding in found], sees_all=sees_all)
        if not sees_all and any(finding.verdict is Verdict.HANGING for finding in found):
            click.echo(_MAY_BE_HIDDEN, err=True)
        for number, finding in enumerate(found):
            is_sure = sees_all or finding.verdict is not Verdict.HANGING
            wanted = fix and (finding.verdict.is_trouble or not yes) and (is_sure or not yes)
            wanted = wanted and finding.verdict is not Verdict.UNKNOWN
            if wanted and (yes or click.confirm(f"End the transaction in {finding.partition}?", err=True)):
                if is_unchanged(cluster, finding, _now_ms()):
                    done[number] = mend(cluster, finding)
                else:
                    done[number] = f"left {finding.partition} alone: it has changed since"
                if not as_json:
                    click.echo(f"{finding.partition}: {done[number]}.")
        if as_json:
            rows = [{**each.as_dict(), "done": done.get(number)} for number, each in enumerate(found)]
            show(rows, (), as_json=True)
    if unreadable or any(each.verdict.is_trouble and number not in done for number, each in enumerate(found)):
        raise SystemExit(1)


def _report(looked_at: int, explained: list[str], *, sees_all: bool) -> None:
    if not explained:
        which = "" if sees_all else " that this user may see"
        click.echo(f"Checked {looked_at} partitions{which}: no transaction is open, nothing holds readers back.")
    for text in explained:
        click.echo(text + "\n")
