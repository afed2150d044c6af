"""`semel pipeline`: the progress of an exactly-once pipeline on Spark, as stored by the broker."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

import click

from semel.cli.connecting import admin_at, bootstrap_option
from semel.cli.output import errors_for_people, show
from semel.cli.txn_diagnosis import duration
from semel.client.blocking.admin import Admin
from semel.client.offset_arguments import PartitionLike
from semel.errors import ErrorCode, KafkaError
from semel.machines.pipeline.batch_marker import BatchMarker, is_source_offset
from semel.machines.transactions.producer import OffsetAndMetadata
from semel.machines.values import TopicPartition

_LATEST, _READ_COMMITTED = -1, 1
_OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort")


@click.group()
def pipeline() -> None:
    """Show or delete the progress of pipelines on Spark."""


@pipeline.command()
@click.argument("transactional_id")
@click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")
@bootstrap_option
def status(transactional_id: str, bootstrap: str, as_json: bool) -> None:
    """Show a pipeline's last committed micro-batch, its source offsets, and its open transaction."""
    with errors_for_people(), admin_at(bootstrap) as admin:
        committed = admin.list_group_offsets(transactional_id)
        sources = {where: at for where, at in committed.items() if is_source_offset(at.metadata)}
        found: dict[str, Any] = {
            "transactional_id": transactional_id,
            "marker": _marker(committed),
            "transaction": _transaction(admin, transactional_id),
            "sources": _sources(admin, sources),
            "sources_elsewhere": bool(committed) and not sources,
        }
    if as_json:
        click.echo(json.dumps(found, indent=2))
    else:
        _tell(found)
    if not committed and found["transaction"] is None:
        raise SystemExit(1)  # unknown to this cluster: a script that waits for it, or a typing mistake, must be noticed


@pipeline.command()
@click.argument("transactional_id")
@click.option("--yes", is_flag=True, help="Do not ask.")
@bootstrap_option
def forget(transactional_id: str, yes: bool, bootstrap: str) -> None:
    """Delete a pipeline's progress, so that a new checkpoint may write its output from the start."""
    with errors_for_people(), admin_at(bootstrap) as admin:
        committed = admin.list_group_offsets(transactional_id)
        if not committed:
            raise click.ClickException(f"there is no progress of '{transactional_id}'")
        marker = _marker(committed)
        at = f"batch {marker['batch_id']} of query {marker['query_id']}" if marker else "offsets without a marker"
        if not yes:
            click.confirm(
                f"'{transactional_id}' is at {at}. Without it a pipeline that starts at batch 0 writes everything "
                "again, and one that goes on is refused. Delete its progress?",
                abort=True,
            )
        admin.delete_group_offsets(transactional_id, list(committed))
    click.echo(f"forgot the progress of '{transactional_id}' ({at})")


def _marker(committed: Mapping[TopicPartition, OffsetAndMetadata]) -> dict[str, Any] | None:
    markers = [marker for given in committed.values() if (marker := BatchMarker.from_metadata(given.metadata))]
    if not markers:
        return None
    last = max(markers, key=lambda marker: marker.batch_id)
    return {"query_id": last.query_id, "batch_id": last.batch_id, "offsets_hash": last.offsets_hash}


def _transaction(admin: Admin, transactional_id: str) -> dict[str, Any] | None:
    try:
        found = admin.describe_transactions([transactional_id])[transactional_id]
    except KafkaError as error:
        if error.code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return None
        raise
    is_open = found.state in _OPEN and found.started_ms >= 0
    return {
        "state": found.state,
        "producer_id": found.producer_id,
        "producer_epoch": found.producer_epoch,
        "timeout_ms": found.timeout_ms,
        "open_ms": int(time.time() * 1000) - found.started_ms if is_open else None,
        "partitions": [str(place) for place in found.partitions],
    }


def _sources(admin: Admin, committed: Mapping[TopicPartition, OffsetAndMetadata]) -> list[dict[str, Any]]:
    latest: dict[PartitionLike, int] = dict.fromkeys(committed, _LATEST)
    ends = admin.list_offsets(latest, isolation_level=_READ_COMMITTED) if latest else {}
    return [
        {
            "topic": place.topic,
            "partition": place.partition,
            "committed": committed[place].offset,
            "last_stable_offset": ends[place].offset,
            "behind": max(0, ends[place].offset - committed[place].offset),
        }
        for place in sorted(committed, key=lambda place: (place.topic, place.partition))
    ]


def _tell(found: Mapping[str, Any]) -> None:
    name, marker, transaction = found["transactional_id"], found["marker"], found["transaction"]
    if marker is None:
        click.echo(f"'{name}' has committed no micro-batch here")
    else:
        click.echo(f"'{name}' has committed batch {marker['batch_id']} of query {marker['query_id']}")
    if transaction is None:
        click.echo("its transactional id is not known to the coordinator")
    elif transaction["open_ms"] is None:
        click.echo(f"no transaction is open ({transaction['state']})")
    else:
        click.echo(
            f"a transaction is open: {transaction['state']} for {duration(transaction['open_ms'])} of at most "
            f"{duration(transaction['timeout_ms'])}, writing {', '.join(transaction['partitions']) or 'nothing yet'}"
        )
    if found["sources_elsewhere"]:
        click.echo("its sources are not on this cluster: the query's checkpoint says how far they were read")
    if found["sources"]:
        click.echo()
        columns = ("topic", "partition", "committed", "last_stable_offset", "behind")
        show(found["sources"], columns, as_json=False)
