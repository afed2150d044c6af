"""`semel topic`: create, list, describe, alter and delete topics."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import click

from semel.cli.connecting import Brokers, cluster_at, common_options
from semel.cli.output import errors_for_people, in_words, show
from semel.cli.whole_metadata import whole_metadata
from semel.client.blocking.cluster import BlockingCluster
from semel.client.cluster.cluster import Controller, Leader
from semel.client.cluster.response_errors import check, failure
from semel.errors import KafkaError
from semel.wire.messages.admin import (
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from semel.wire.messages.configs import DescribeConfigsRequest, IncrementalAlterConfigsRequest
from semel.wire.messages.fetch import ListOffsetsRequest
from semel.wire.messages.metadata import MetadataRequest

TOPIC_RESOURCE = 2
SET, DELETE = 0, 1
FROM_TOPIC = 1
EARLIEST, LATEST = -2, -1

def _show_each(rows: list[dict[str, Any]], columns: tuple[str, ...], *, as_json: bool) -> None:
    """Show what was done: every topic as JSON, those that went well as a table.

    Errors go to standard error, and make the exit code 1.
    """
    failed = [row["error"] for row in rows if row["error"] is not None]
    for row in rows:
        row["error"] = None if row["error"] is None else in_words(row["error"])
    shown = rows if as_json else [row for row in rows if row["error"] is None]
    if shown or as_json:
        show(shown, columns, as_json=as_json)
    for error in failed:
        click.echo(f"Error: {in_words(error)}", err=True)
    if failed:
        raise SystemExit(1)


def _pairs(given: Iterable[str]) -> dict[str, str]:
    pairs = {}
    for pair in given:
        name, sign, value = pair.partition("=")
        if not sign:
            raise click.BadParameter(f"{pair}: expected name=value")
        pairs[name] = value
    return pairs


@click.group()
def topic() -> None:
    """Create, list, describe, change and delete topics."""


@topic.command()
@click.argument("names", nargs=-1, required=True)
@click.option(
    "--partitions", type=int, default=-1, help="How many partitions; the broker's num.partitions if not given."
)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the topic; may be repeated.")
@common_options
def create(names: tuple[str, ...], partitions: int, settings: tuple[str, ...], brokers: Brokers, as_json: bool) -> None:
    """Create topics."""
    configs = [
        CreateTopicsRequest.CreatableTopicConfig(name=name, value=value) for name, value in _pairs(settings).items()
    ]
    topics = [
        CreateTopicsRequest.CreatableTopic(name=name, num_partitions=partitions, replication_factor=-1, configs=configs)
        for name in names
    ]
    with errors_for_people(), cluster_at(brokers) as cluster:
        response = cluster.request(Controller(), CreateTopicsRequest(topics=topics))
    rows = []
    for result in response.topics:
        error = failure(result.error_code, f"creating {result.name}", result.error_message)
        made = error is None
        rows.append(
            {
                "topic": result.name,
                "created": made,
                "partitions": result.num_partitions if made else None,
                "id": str(result.topic_id) if made else None,
                "error": error,
            }
        )
    _show_each(rows, ("topic", "created", "partitions", "id"), as_json=as_json)


@topic.command("list")
@click.option("--internal", is_flag=True, help="Show the broker's own topics too.")
@common_options
def list_topics(internal: bool, brokers: Brokers, as_json: bool) -> None:
    """List topics."""
    with errors_for_people(), cluster_at(brokers) as cluster:
        response = whole_metadata(cluster)
        rows = [
            {"topic": one.name, "partitions": len(one.partitions), "id": str(one.topic_id), "internal": one.is_internal}
            for one in sorted(response.topics, key=lambda one: one.name or "")
            if internal or not one.is_internal
        ]
        show(rows, ("topic", "partitions", "id"), as_json=as_json)


@topic.command()
@click.argument("names", nargs=-1, required=True)
@common_options
def describe(names: tuple[str, ...], brokers: Brokers, as_json: bool) -> None:
    """Show settings, and the first and next offset of every partition."""
    with errors_for_people(), cluster_at(brokers) as cluster:
        described = [_describe_topic(cluster, name) for name in names]
        if as_json:
            show(described, (), as_json=True)
            return
        for one in described:
            settings = ", ".join(f"{name}={value}" for name, value in one["settings"].items())
            click.echo(f"{one['topic']}  id {one['id']}  settings: {settings or 'all defaults'}")
            columns = ("partition", "leader", "first_offset", "next_offset", "replicas", "state")
            show(one["partitions"], columns, as_json=False)


def _describe_topic(cluster: BlockingCluster, name: str) -> dict[str, Any]:
    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    found = cluster.request(None, asked).topics[0]
    check(found.error_code, f"describing {name}")
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=None
    )
    configs = cluster.request_retrying(DescribeConfigsRequest(resources=[resource])).results[0]
    check(configs.error_code, f"describing {name}", configs.error_message)
    return {
        "topic": name,
        "id": str(found.topic_id),
        "settings": {row.name: row.value for row in configs.configs if row.config_source == FROM_TOPIC},
        "partitions": [
            {
                "partition": one.partition_index,
                "leader": one.leader_id,
                "replicas": one.replica_nodes,
                **_offsets(cluster, name, one.partition_index),
            }
            for one in sorted(found.partitions, key=lambda one: int(one.partition_index))
        ],
    }


def _offsets(cluster: BlockingCluster, name: str, partition: int) -> dict[str, Any]:
    """The first and the next offset, or why they cannot be read. The partition is asked once, without retries."""
    found: dict[str, Any] = {"first_offset": None, "next_offset": None, "state": "online"}
    for column, timestamp in (("first_offset", EARLIEST), ("next_offset", LATEST)):
        row = ListOffsetsRequest.ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
        asked = ListOffsetsRequest.ListOffsetsTopic(name=name, partitions=[row])
        try:
            answer = cluster.request(Leader(name, partition), ListOffsetsRequest(replica_id=-1, topics=[asked]))
            told = answer.topics[0].partitions[0]
            check(told.error_code, f"asking {name}-{partition} for its offsets")
        except KafkaError as error:
            found["state"] = f"offline, {error.code.name}; see the broker's log"
            break
        found[column] = int(told.offset)
    return found


@topic.command()
@click.argument("name")
@click.option("--partitions", type=int, help="Grow to this many partitions.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="Change a setting; may be repeated.")
@click.option("--unset", multiple=True, metavar="NAME", help="Go back to the broker's default; may be repeated.")
@common_options
def alter(
    name: str,
    partitions: int | None,
    settings: tuple[str, ...],
    unset: tuple[str, ...],
    brokers: Brokers,
    as_json: bool,
) -> None:
    """Change a topic's settings or its number of partitions."""
    if partitions is None and not settings and not unset:
        raise click.UsageError("nothing to change: give --partitions, --set or --unset")
    row = IncrementalAlterConfigsRequest.AlterableConfig
    changes = [row(name=key, config_operation=SET, value=value) for key, value in _pairs(settings).items()]
    changes += [row(name=key, config_operation=DELETE, value=None) for key in unset]
    with errors_for_people(), cluster_at(brokers) as cluster:
        if changes:
            resource = IncrementalAlterConfigsRequest.AlterConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=name, configs=changes
            )
            altered = cluster.request(Controller(), IncrementalAlterConfigsRequest(resources=[resource])).responses[0]
            check(altered.error_code, f"changing {name}", altered.error_message)
        if partitions is not None:
            growth = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=partitions, assignments=None)
            grown = cluster.request(Controller(), CreatePartitionsRequest(topics=[growth], timeout_ms=30000))
            check(grown.results[0].error_code, f"growing {name}", grown.results[0].error_message)
        show(
            [{"topic": name, "changed": [one.name for one in changes], "partitions": partitions}],
            ("topic", "changed", "partitions"),
            as_json=as_json,
        )


@topic.command()
@click.argument("names", nargs=-1, required=True)
@click.option("--yes", is_flag=True, help="Do not ask first.")
@common_options
def delete(names: tuple[str, ...], yes: bool, brokers: Brokers, as_json: bool) -> None:
    """Delete topics and everything in them."""
    request = DeleteTopicsRequest(
        topics=[DeleteTopicsRequest.DeleteTopicState(name=name) for name in names],
        topic_names=list(names),
        timeout_ms=30000,
    )
    with errors_for_people(), cluster_at(brokers) as cluster:
        if not yes:
            told, them = ", ".join(map(repr, names)), "it" if len(names) == 1 else "them"
            click.confirm(f"Delete {told} and every record in {them}?", abort=True, err=True)
        response = cluster.request(Controller(), request)
    rows = []
    for result in response.responses:
        error = failure(result.error_code, f"deleting {result.name}", result.error_message)
        rows.append({"topic": result.name, "deleted": error is None, "error": error})
    _show_each(rows, ("topic", "deleted"), as_json=as_json)
