"""`semel group`: list and describe groups, reset their offsets, and delete them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import click

from semel.cli.connecting import Brokers, admin_at, cluster_at, common_options
from semel.cli.group_lag import READ_COMMITTED, lag
from semel.cli.output import errors_for_people, show
from semel.client.admin.values import GroupDescription
from semel.client.blocking.admin import Admin
from semel.client.blocking.cluster import BlockingCluster
from semel.client.offset_arguments import PartitionLike
from semel.client.offset_requests import OffsetAndTimestamp
from semel.errors import ErrorCode, KafkaError, RequestTimedOut
from semel.machines.transactions.producer import OffsetAndMetadata
from semel.machines.values import TopicPartition

LATEST, EARLIEST = -1, -2
COUNTED_OFFSETS = 1_000_000
#: How long ListOffsets may take for all partitions together, and then for each one by itself.
PATIENCE_MS, ONCE_MORE_MS = 5_000, 500
LAG_IN_WORDS = (
    "LAG counts the records that a read_committed reader has yet to read: markers, aborted records and open "
    "transactions are left out."
)
UNCOUNTED_IN_WORDS = "A lag with ~ is a number of offsets, markers included: there were too many to count."


@click.group()
def group() -> None:
    """List, describe, move and delete consumer groups."""


@group.command("list")
@click.option("--state", "states", multiple=True, help="Only groups in this state; may be repeated.")
@click.option(
    "--type", "types", multiple=True, type=click.Choice(["classic", "consumer"]), help="Only groups of this protocol."
)
@common_options
def list_groups(states: tuple[str, ...], types: tuple[str, ...], brokers: Brokers, as_json: bool) -> None:
    """List groups."""
    with errors_for_people(), admin_at(brokers) as admin:
        rows = [
            {"group": one.group_id, "state": one.state, "type": one.type, "protocol_type": one.protocol_type}
            for one in admin.list_groups(states=states, types=types)
        ]
    show(rows, ("group", "state", "type", "protocol_type"), as_json=as_json)


@group.command()
@click.argument("group_ids", nargs=-1, required=True)
@click.option("--members", "with_members", is_flag=True, help="Show the members and their partitions.")
@click.option(
    "--count-up-to",
    "most_offsets",
    type=click.IntRange(min=0),
    default=COUNTED_OFFSETS,
    show_default=True,
    metavar="OFFSETS",
    help="Count the lag of a partition by reading it, up to this many offsets.",
)
@common_options
def describe(
    group_ids: tuple[str, ...], with_members: bool, most_offsets: int, brokers: Brokers, as_json: bool
) -> None:
    """Show the committed offsets of groups, and how many visible records they have yet to read.

    The lag counts the records that a read_committed reader has yet to read: markers, aborted records and open
    transactions are left out.
    """
    with errors_for_people(), admin_at(brokers) as admin:
        found = list(admin.describe_groups(group_ids).values())
        if with_members:
            rows = [row for one in found for row in _members(one)]
            show(rows, ("group", "member", "instance", "client", "host", "partitions"), as_json=as_json)
            return
        with cluster_at(brokers) as cluster:
            rows = [row for one in found for row in _partition_rows(admin, cluster, one, most_offsets)]
    if as_json:
        show(rows, (), as_json=True)
        return
    for one in found:
        click.echo(f"{one.group_id}: {one.state}, {one.type}, {len(one.members)} members")
    if not rows:
        click.echo("No offsets are committed.")
        return
    for row in rows:
        if not row["lag_counted"] and row["lag"] is not None:
            row["lag"] = f"~{row['lag']}"
    show(rows, ("group", "topic", "partition", "committed", "visible_end", "lag", "member"), as_json=False)
    click.echo(LAG_IN_WORDS)
    if not all(row["lag_counted"] for row in rows):
        click.echo(UNCOUNTED_IN_WORDS)


def _members(found: GroupDescription) -> list[dict[str, Any]]:
    return [
        {
            "group": found.group_id,
            "member": member.member_id,
            "instance": member.group_instance_id,
            "client": member.client_id,
            "host": member.client_host,
            "partitions": [str(partition) for partition in member.assignment],
        }
        for member in found.members
    ]


def _partition_rows(
    admin: Admin, cluster: BlockingCluster, found: GroupDescription, most_offsets: int
) -> list[dict[str, Any]]:
    """One row for each partition that has a committed offset or a member that reads it."""
    readers = {partition: member for member in found.members for partition in member.assignment}
    committed = {partition: at.offset for partition, at in admin.list_group_offsets(found.group_id).items()}
    there = _existing_partitions(admin, {*committed, *readers})
    ends = _visible_ends(admin, there)
    starts = admin.list_offsets(dict.fromkeys(ends, EARLIEST))
    rows = []
    for partition in sorted({*committed, *readers}, key=lambda p: (p.topic, p.partition)):
        at = committed.get(partition)
        reader = readers.get(partition)
        row: dict[str, Any] = {
            "group": found.group_id,
            "topic": partition.topic,
            "partition": partition.partition,
            "committed": at,
            "visible_end": None,
            "lag": None,
            "lag_counted": True,
            "member": None if reader is None else reader.member_id,
        }
        if partition in ends:
            row["visible_end"] = ends[partition].offset
            if at is not None:
                # Records that retention has deleted are not part of the lag.
                start = max(at, starts[partition].offset)
                behind = lag(cluster, partition, start, ends[partition].offset, most_offsets)
                row["lag"], row["lag_counted"] = behind.records, behind.exact
        rows.append(row)
    return rows


def _visible_ends(admin: Admin, partitions: list[TopicPartition]) -> dict[TopicPartition, OffsetAndTimestamp]:
    """The last stable offsets. A partition that cannot be read is reported on standard error and left out."""
    try:
        return admin.list_offsets(
            dict.fromkeys(partitions, LATEST), isolation_level=READ_COMMITTED, timeout_ms=PATIENCE_MS
        )
    except RequestTimedOut:
        ends: dict[TopicPartition, OffsetAndTimestamp] = {}
        for partition in partitions:
            try:
                ends |= admin.list_offsets({partition: LATEST}, isolation_level=READ_COMMITTED, timeout_ms=ONCE_MORE_MS)
            except RequestTimedOut as error:
                click.echo(f"{partition} cannot be read: {error.why}", err=True)
        return ends


def _existing_partitions(admin: Admin, partitions: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Those whose topic still exists: a group may have offsets of a deleted topic."""
    partitions = list(partitions)
    known = set(admin.list_topics(internal=True))
    counts = {
        name: len(info.partitions)
        for name, info in admin.describe_topics({p.topic for p in partitions} & known).items()
    }
    return [p for p in partitions if p.partition < counts.get(p.topic, 0)]


@group.command("reset-offsets")
@click.argument("group_id")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only these topics; may be repeated.")
@click.option("--partition", "numbers", multiple=True, type=int, help="Only these partitions of the topics.")
@click.option("--to-earliest", is_flag=True, help="To the first record there is.")
@click.option("--to-latest", is_flag=True, help="To the end: existing records are not read.")
@click.option("--to-offset", type=click.IntRange(min=0), help="To this offset.")
@click.option("--to-datetime", metavar="ISO-8601", help="To the first record not older than this; UTC without a zone.")
@click.option("--shift-by", type=int, help="By this many offsets; negative numbers go back.")
@click.option("--execute", is_flag=True, help="Change the offsets. Without this option the change is only shown.")
@common_options
def reset_offsets(
    group_id: str,
    topics: tuple[str, ...],
    numbers: tuple[int, ...],
    to_earliest: bool,
    to_latest: bool,
    to_offset: int | None,
    to_datetime: str | None,
    shift_by: int | None,
    execute: bool,
    brokers: Brokers,
    as_json: bool,
) -> None:
    """Move a group that has no members to other offsets.

    Without --topic, all partitions are moved for which the group has offsets. An offset outside of a partition becomes
    the nearest offset inside.
    """
    ways = [to_earliest, to_latest, to_offset is not None, to_datetime is not None, shift_by is not None]
    if sum(ways) != 1:
        raise click.UsageError(
            "give exactly one of --to-earliest, --to-latest, --to-offset, --to-datetime and --shift-by"
        )
    since_ms = None if to_datetime is None else _milliseconds(to_datetime)
    with errors_for_people(), admin_at(brokers) as admin:
        committed = {partition: at.offset for partition, at in admin.list_group_offsets(group_id).items()}
        partitions = _choose_partitions(admin, committed, topics, numbers)
        if not partitions:
            raise click.ClickException(f"Group {group_id!r} has no offsets to move; name the topics with --topic.")
        starts = admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
        ends = admin.list_offsets(dict.fromkeys(partitions, LATEST))
        found = {} if since_ms is None else admin.list_offsets(dict.fromkeys(partitions, since_ms))
        target: dict[PartitionLike, OffsetAndMetadata | int] = {}
        for partition in partitions:
            start, end = starts[partition].offset, ends[partition].offset
            if to_earliest:
                wanted = start
            elif to_latest:
                wanted = end
            elif to_offset is not None:
                wanted = to_offset
            elif shift_by is not None:
                if partition not in committed:
                    raise click.ClickException(f"Group {group_id!r} has no offset for {partition} to shift from.")
                wanted = committed[partition] + shift_by
            else:
                wanted = found[partition].offset if found[partition].offset >= 0 else end
            target[partition] = min(max(wanted, start), end)
        if execute:
            admin.alter_group_offsets(group_id, target)
        elif members := _members_of(admin, group_id):
            click.echo(
                f"Warning: group {group_id!r} has {members} member{'s' * (members > 1)}; --execute will be refused "
                "until they have left.",
                err=True,
            )
    rows = [
        {
            "topic": partition.topic,
            "partition": partition.partition,
            "committed": committed.get(partition),
            "new_offset": target[partition],
            "executed": execute,
        }
        for partition in partitions
    ]
    show(rows, ("topic", "partition", "committed", "new_offset"), as_json=as_json)
    if not as_json:
        click.echo("Done." if execute else "Nothing was changed: add --execute to do it.")


def _members_of(admin: Admin, group_id: str) -> int:
    """How many members a group has; 0 if the group does not exist."""
    try:
        return len(admin.describe_groups([group_id])[group_id].members)
    except KafkaError as error:
        if error.code is ErrorCode.GROUP_ID_NOT_FOUND:
            return 0
        raise


def _choose_partitions(
    admin: Admin, committed: dict[TopicPartition, int], topics: tuple[str, ...], numbers: tuple[int, ...]
) -> list[TopicPartition]:
    if topics:
        described = admin.describe_topics(topics)
        chosen = [TopicPartition(name, p) for name in topics for p in range(len(described[name].partitions))]
    else:
        chosen = _existing_partitions(admin, committed)
    chosen = [partition for partition in chosen if not numbers or partition.partition in numbers]
    return sorted(chosen, key=lambda p: (p.topic, p.partition))


def _milliseconds(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.UsageError(f"{text!r} is not a date and time: write it as 2026-07-01T12:00:00+02:00") from error
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.timestamp() * 1000)


@group.command()
@click.argument("group_ids", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask first.")
@common_options
def delete(group_ids: tuple[str, ...], yes: bool, brokers: Brokers, as_json: bool) -> None:
    """Delete groups that have no members, with their offsets."""
    with errors_for_people(), admin_at(brokers) as admin:
        if not yes:
            names = ", ".join(map(repr, group_ids))
            click.confirm(f"Delete {names} and their committed offsets?", abort=True, err=True)
        admin.delete_groups(group_ids)
    show([{"group": group_id, "deleted": True} for group_id in group_ids], ("group", "deleted"), as_json=as_json)
