"""`semel cluster balance`: what moves where and why, and carrying it out in steps that may be interrupted.

Nothing is lost by an interruption: what was begun is finished by the brokers, and the next plan goes on from there.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

from semel.cli.output import show
from semel.cli.whole_metadata import whole_metadata
from semel.client.blocking.cluster import BlockingCluster
from semel.client.cluster.cluster import Controller
from semel.client.cluster.response_errors import check
from semel.errors import ErrorCode, Refused
from semel.machines.controller.balancing import Move, Plan, Situation, Wish, plan
from semel.machines.values import TopicPartition
from semel.wire.messages.admin import (
    AlterPartitionReassignmentsRequest,
    ElectLeadersRequest,
    ListPartitionReassignmentsRequest,
)

#: How many moves are named one by one.
NAMED = 20
LOOK_EVERY_S = 0.3
#: After how long without progress the reason is looked for and told.
SILENT_S = 15.0


@dataclass(slots=True)
class Seen:
    """The cluster as a broker describes it."""

    situation: Situation
    #: Of each partition: who is in sync.
    in_sync: dict[TopicPartition, set[int]]
    #: Where the partitions that are being moved already are to be.
    moving: dict[TopicPartition, tuple[int, ...]]


def look(client: BlockingCluster) -> Seen:
    answer = whole_metadata(client)
    moving = _moving(client)
    brokers = {row.node_id: row.rack for row in answer.brokers}
    partitions: dict[TopicPartition, tuple[int, ...]] = {}
    in_sync: dict[TopicPartition, set[int]] = {}
    offline: set[TopicPartition] = set()
    for topic in answer.topics:
        for row in topic.partitions:
            partition = TopicPartition(topic.name, row.partition_index)
            partitions[partition] = moving.get(partition) or tuple(row.replica_nodes)
            in_sync[partition] = set(row.isr_nodes)
            if row.leader_id not in brokers:
                offline.add(partition)
    return Seen(Situation(brokers, partitions, frozenset(offline)), in_sync, moving)


def _moving(client: BlockingCluster) -> dict[TopicPartition, tuple[int, ...]]:
    answer = client.request(Controller(), ListPartitionReassignmentsRequest(topics=None))
    check(answer.error_code, "asking what is being moved", answer.error_message)
    return {
        TopicPartition(topic.name, row.partition_index): tuple(
            broker for broker in row.replicas if broker not in row.removing_replicas
        )
        for topic in answer.topics
        for row in topic.partitions
    }


def make_plan(seen: Seen, wish: Wish) -> Plan:
    try:
        return plan(seen.situation, wish)
    except Refused as error:
        raise click.ClickException(error.why or str(error)) from None


# What it says


def as_json(seen: Seen, made: Plan, *, carried_out: bool) -> str:
    return json.dumps(
        {
            "copies": made.copies,
            "moves": [_row(move) for move in made.moves],
            "left_alone": [
                {"topic": each.topic, "partition": each.partition, "why": why}
                for each, why in sorted(made.left_alone.items())
            ],
            "brokers": _broker_rows(seen, made),
            "carried_out": carried_out,
        },
        indent=2,
    )


def _row(move: Move) -> dict[str, Any]:
    return {
        "topic": move.partition.topic,
        "partition": move.partition.partition,
        "before": list(move.before),
        "after": list(move.after),
        "copied_to": list(move.copies_to),
        "why": list(move.reasons),
    }


def _broker_rows(seen: Seen, made: Plan) -> list[dict[str, Any]]:
    numbers = sorted({*seen.situation.brokers, *made.replicas_before})
    return [
        {
            "broker": number,
            "rack": seen.situation.brokers.get(number),
            "replicas": made.replicas_before[number],
            "then": made.replicas_after[number],
            "leads": made.leaders_before[number],
            "then_leads": made.leaders_after[number],
            "state": "runs" if number in seen.situation.brokers else "away",
        }
        for number in numbers
    ]


def tell(seen: Seen, made: Plan, wish: Wish) -> None:
    if seen.moving:
        click.echo(f"{_count(len(seen.moving), 'partition')} already on the way; the plan goes on from there.")
    for broker in sorted(wish.remove):
        if not made.replicas_before[broker]:
            click.echo(f"Broker {broker} holds no replicas.")
    if made.moves:
        columns = ("broker", "rack", "replicas", "then", "leads", "then_leads", "state")
        show(_broker_rows(seen, made), columns, as_json=False)
        click.echo()
        show([_row(move) for move in made.moves[:NAMED]], ("topic", "partition", "before", "after", "why"),
             as_json=False)
        if len(made.moves) > NAMED:
            click.echo(f"and {len(made.moves) - NAMED} more; --json names all")
        click.echo()
        reordered = sum(not move.copies_to for move in made.moves)
        click.echo(
            f"{_count(made.copies, 'replica')} to be copied"
            + (f", {_count(reordered, 'partition')} to get another leader only" if reordered else "")
            + "."
        )
    for partition, why in sorted(made.left_alone.items())[:NAMED]:
        click.echo(f"{partition.topic}-{partition.partition} stays as it is: {why}.", err=True)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# Carrying it out


@contextmanager
def _interruptible() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise click.ClickException(
            "interrupted. What was begun is finished by the brokers; run the command again for the rest"
        ) from None


def carry_out(client: BlockingCluster, seen: Seen, made: Plan, at_once: int, told: Callable[[str], None]) -> None:
    """Some partitions at a time: the new replicas are filled, then the old ones go, then the next ones begin."""
    targets = {move.partition: move.after for move in made.moves}
    waiting = list(targets)
    #: What somebody began before is waited for as well.
    open_targets = {partition: target for partition, target in seen.moving.items() if partition not in targets}
    done, whole = 0, len(waiting) + len(open_targets)
    progress_at = time.monotonic()
    with _interruptible():
        while waiting or open_targets:
            room = max(0, at_once - len(open_targets))
            begun, waiting = waiting[:room], waiting[room:]
            if begun:
                _begin(client, {partition: targets[partition] for partition in begun})
                open_targets |= {partition: targets[partition] for partition in begun}
            moving = _moving(client)
            finished = [partition for partition in open_targets if partition not in moving]
            for partition in finished:
                del open_targets[partition]
            if finished:
                done += len(finished)
                progress_at = time.monotonic()
                told(f"{done} of {_count(whole, 'partition')} done")
            elif time.monotonic() - progress_at > SILENT_S:
                progress_at = time.monotonic()
                told(_why_it_waits(look(client), open_targets))
            if open_targets:
                time.sleep(LOOK_EVERY_S)
        _elect(client, targets)


def _why_it_waits(now: Seen, open_targets: dict[TopicPartition, tuple[int, ...]]) -> str:
    missing: dict[int, int] = {}
    for partition, target in open_targets.items():
        for broker in target:
            if broker not in now.in_sync.get(partition, ()):
                missing[broker] = missing.get(broker, 0) + 1
    words = ", ".join(
        f"broker {broker} for {_count(count, 'partition')}"
        + ("" if broker in now.situation.brokers else " (it does not run: start it)")
        for broker, count in sorted(missing.items())
    )
    return f"waiting until it is in sync: {words}" if words else "waiting for the controller"


def _begin(client: BlockingCluster, targets: dict[TopicPartition, tuple[int, ...]]) -> None:
    topics = [
        AlterPartitionReassignmentsRequest.ReassignableTopic(
            name=name,
            partitions=[
                AlterPartitionReassignmentsRequest.ReassignablePartition(
                    partition_index=each.partition, replicas=list(targets[each])
                )
                for each in of_topic
            ],
        )
        for name, of_topic in _by_topic(targets).items()
    ]
    answer = client.request(Controller(), AlterPartitionReassignmentsRequest(topics=topics))
    check(answer.error_code, "moving partitions", answer.error_message)
    for row in answer.responses:
        for part in row.partitions:
            gone = part.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if not gone:  # a topic that was deleted meanwhile needs no move
                check(part.error_code, f"moving {row.name}-{part.partition_index}", part.error_message)


def _elect(client: BlockingCluster, targets: dict[TopicPartition, tuple[int, ...]]) -> None:
    """The first replicas lead. One that does not keep up yet leads later, by itself."""
    if targets:
        rows = [
            ElectLeadersRequest.TopicPartitions(topic=name, partitions=[each.partition for each in of_topic])
            for name, of_topic in _by_topic(targets).items()
        ]
        client.request(Controller(), ElectLeadersRequest(topic_partitions=rows))


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[TopicPartition]]:
    found: dict[str, list[TopicPartition]] = {}
    for each in partitions:
        found.setdefault(each.topic, []).append(each)
    return found
