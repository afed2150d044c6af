"""How a cluster is: its brokers, its controller, the partitions that lack something, and what a person should do."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from semel.cli.whole_metadata import whole_metadata
from semel.client.blocking.cluster import BlockingCluster
from semel.errors import KafkaError
from semel.wire.messages.admin import ListPartitionReassignmentsRequest
from semel.wire.messages.configs import DescribeConfigsRequest
from semel.wire.messages.metadata import (
    DescribeClusterRequest,
    DescribeClusterResponse,
    DescribeTopicPartitionsRequest,
)

TOPIC_RESOURCE = 2
#: A broker that runs answers sooner, also a busy one.
ANSWERS_WITHIN_MS = 3000
PORT_ANSWERS_WITHIN_S = 1.0
NOBODY = -1
#: How many topics are asked about at once.
ASKED_AT_ONCE = 200


@dataclass(slots=True)
class Health:
    """What `semel cluster status` shows. Rows are dicts, as tables and JSON take them."""

    cluster_id: str | None
    controller: int | None
    topics: int = 0
    partitions: int = 0
    brokers: list[dict[str, Any]] = field(default_factory=list)
    #: These also say who is eligible (KIP-966): not in sync, and may lead without a loss.
    offline: list[dict[str, Any]] = field(default_factory=list)
    under_min_isr: list[dict[str, Any]] = field(default_factory=list)
    under_replicated: list[dict[str, Any]] = field(default_factory=list)
    #: Partitions that get other replicas now, and to whom.
    moving: list[dict[str, Any]] = field(default_factory=list)
    #: Brokers that are registered and do not answer; of these those whose ports refuse connections are not silent but
    #: gone; and brokers that answer and do not reach ZooKeeper.
    silent: list[int] = field(default_factory=list)
    refusing: list[int] = field(default_factory=list)
    without_zookeeper: list[int] = field(default_factory=list)
    #: Nodes in ZooKeeper that a broker cannot read, and why.
    unreadable: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)

    @property
    def is_well(self) -> bool:
        brokers = not self.silent and not self.refusing and not self.without_zookeeper
        partitions = not self.offline and not self.under_replicated and not self.waiting_for
        return partitions and brokers and self.controller is not None and not self.unreadable

    @property
    def waiting_for(self) -> list[int]:
        """Brokers that partitions are being moved to, and that are not there."""
        here = {row["broker"] for row in self.brokers if row["address"] is not None}
        return sorted({broker for row in self.moving for broker in row["adding"]} - here)

    def as_json(self) -> dict[str, Any]:
        return {"is_well": self.is_well, **asdict(self)}


def look_at(client: BlockingCluster) -> Health:
    """Ask a broker, and whether each of the others answers; think it over."""
    client.connect()
    answer = whole_metadata(client)
    # Metadata names whoever serves administrators, also where nobody is the controller, and brokers that are just gone.
    described = client.request_retrying(DescribeClusterRequest())
    live = {row.broker_id: row for row in described.brokers}
    answers = {broker: _seen_by(client, broker) for broker in sorted(live)}
    # Whom each takes for the controller, NOBODY if it does not reach ZooKeeper; None if it does not answer.
    views = {broker: None if seen is None else int(seen.controller_id) for broker, seen in answers.items()}
    controller = next((seen for seen in views.values() if seen in live), None)
    health = Health(answer.cluster_id, controller)
    health.unreadable = sorted({line for seen in answers.values() if seen for line in _lines(seen.error_message)})
    unheard = [broker for broker, seen in views.items() if seen is None]
    health.refusing = [broker for broker in unheard if _refuses(live[broker].host, live[broker].port)]
    health.silent = [broker for broker in unheard if broker not in health.refusing]
    if controller is not None:
        health.without_zookeeper = [broker for broker, seen in views.items() if seen == NOBODY]
    moving = _moving(client)
    leads = dict.fromkeys(live, 0)
    replicas = dict.fromkeys(live, 0)
    misplaced = single = 0
    # Of how many replicas a partition can be in sync: while it moves, the smaller number counts.
    needed_of: dict[tuple[str, int], int] = {}
    for topic in sorted(answer.topics, key=lambda one: one.name or ""):
        health.topics += 1
        for part in sorted(topic.partitions, key=lambda one: one.partition_index):
            health.partitions += 1
            for broker in part.replica_nodes:
                replicas[broker] = replicas.get(broker, 0) + 1
            single += len(part.replica_nodes) == 1
            adding, removing = moving.get((topic.name, part.partition_index), ((), ()))
            # Replicas that are still on their way in are not missed, nor asked for (as in the brokers' own counts).
            expected = [broker for broker in part.replica_nodes if broker not in adding]
            missing = [broker for broker in expected if broker not in part.isr_nodes]
            row: dict[str, Any] = {
                "topic": topic.name,
                "partition": part.partition_index,
                "leader": part.leader_id if part.leader_id in live else None,
                "replicas": list(part.replica_nodes),
                "in_sync": list(part.isr_nodes),
                "missing": missing,
            }
            needed_of[topic.name, part.partition_index] = min(
                len(expected), len([broker for broker in part.replica_nodes if broker not in removing])
            )
            if adding or removing:
                moves = {"adding": list(adding), "removing": list(removing)}
                health.moving.append({"topic": topic.name, "partition": part.partition_index, **moves})
            if row["leader"] is None:
                health.offline.append(row)
                continue
            leads[part.leader_id] += 1
            misplaced += part.leader_id != part.replica_nodes[0]
            if missing:
                health.under_replicated.append(row)
    _add_eligible(client, health.offline)
    health.under_min_isr = _below_min_isr(client, health.under_replicated, needed_of)
    away = sorted(replicas.keys() - live.keys())
    for broker in sorted(replicas):
        is_here = broker in live
        health.brokers.append(
            {
                "broker": broker,
                "address": f"{live[broker].host}:{live[broker].port}" if is_here else None,
                "rack": live[broker].rack if is_here else None,
                "leads": leads.get(broker, 0),
                "replicas": replicas[broker],
                "state": _state(health, broker) if is_here else "away",
            }
        )
    idle = sorted(broker for broker in live if not replicas[broker]) if health.partitions else []
    health.advice = advice(health, away, misplaced, single if len(live) > 1 else 0, idle)
    return health


def _state(health: Health, broker: int) -> str:
    if broker in health.silent:
        return "silent"
    if broker in health.refusing:
        return "refuses"
    if broker in health.without_zookeeper:
        return "without ZooKeeper"
    return "controller" if broker == health.controller else "runs"


def _seen_by(client: BlockingCluster, broker: int) -> DescribeClusterResponse | None:
    """What one broker says of the cluster; None if it does not answer."""
    try:
        answer: DescribeClusterResponse = client.request(
            broker, DescribeClusterRequest(), timeout_ms=ANSWERS_WITHIN_MS
        )
    except KafkaError:
        return None
    return answer


def _lines(told: str | None) -> list[str]:
    return told.splitlines() if told else []


def _refuses(host: str, port: int) -> bool:
    """Whether no process listens there any more."""
    try:
        socket.create_connection((host, port), PORT_ANSWERS_WITHIN_S).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False


def _moving(client: BlockingCluster) -> dict[tuple[str, int], tuple[Sequence[int], Sequence[int]]]:
    """Of each partition that is being moved: who is to come, and who is to go."""
    try:
        answer = client.request(None, ListPartitionReassignmentsRequest(topics=None))
    except KafkaError:
        return {}
    return {
        (topic.name, row.partition_index): (row.adding_replicas, row.removing_replicas)
        for topic in answer.topics
        for row in topic.partitions
    }


def _below_min_isr(
    client: BlockingCluster, suspects: list[dict[str, Any]], needed_of: dict[tuple[str, int], int]
) -> list[dict[str, Any]]:
    """Those that take no acks=all. Only topics with a replica missing are asked about."""
    names = sorted({row["topic"] for row in suspects})
    needed: dict[str, int] = {}
    for start in range(0, len(names), ASKED_AT_ONCE):
        resources = [
            DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=TOPIC_RESOURCE, resource_name=name, configuration_keys=["min.insync.replicas"]
            )
            for name in names[start : start + ASKED_AT_ONCE]
        ]
        for result in client.request_retrying(DescribeConfigsRequest(resources=resources)).results:
            for config in result.configs:
                needed[result.resource_name] = int(config.value or 1)
    return [
        row
        for row in suspects
        if len(row["in_sync"]) < min(needed.get(row["topic"], 1), needed_of[row["topic"], row["partition"]])
    ]


def _add_eligible(client: BlockingCluster, offline: list[dict[str, Any]]) -> None:
    """Who besides those in sync may lead without a loss. A cluster that does not know of this has nobody."""
    names = sorted({row["topic"] for row in offline})
    eligible: dict[tuple[str, int], list[int]] = {}
    for start in range(0, len(names), ASKED_AT_ONCE):
        asked = names[start : start + ASKED_AT_ONCE]
        topics = [DescribeTopicPartitionsRequest.TopicRequest(name=name) for name in asked]
        cursor: DescribeTopicPartitionsRequest.Cursor | None = None
        while True:
            try:
                answer = client.request(None, DescribeTopicPartitionsRequest(topics=topics, cursor=cursor))
            except KafkaError:
                break
            for topic in answer.topics:
                for part in topic.partitions:
                    eligible[topic.name, part.partition_index] = list(part.eligible_leader_replicas or ())
            if answer.next_cursor is None:
                break
            cursor = DescribeTopicPartitionsRequest.Cursor(
                topic_name=answer.next_cursor.topic_name, partition_index=answer.next_cursor.partition_index
            )
    for row in offline:
        row["eligible"] = eligible.get((row["topic"], row["partition"]), [])


def _count(number: int, noun: str = "partition") -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _what_is_offline(health: Health) -> list[str]:
    """Whom to start, for each set of brokers that may lead without a loss."""
    groups: dict[tuple[int, ...], int] = {}
    for row in health.offline:
        wanted = tuple(sorted({*row["in_sync"], *row["eligible"]}))
        groups[wanted] = groups.get(wanted, 0) + 1
    lines = []
    here = {row["broker"] for row in health.brokers if row["address"] is not None}
    unclean = "kafka-leader-election --election-type unclean, which loses records"
    for wanted, number in sorted(groups.items()):
        has = "it has all its" if number == 1 else "they have all their"
        begin = f"{_count(number)} {'has' if number == 1 else 'have'} no leader"
        who = f"broker{'s' if len(wanted) > 1 else ''} {', '.join(map(str, wanted))}"
        if not wanted:
            lines.append(f"{begin}, and no broker is known to have all records. What there is is led after {unclean}.")
        elif {*wanted} <= here:
            lines.append(f"{begin}: {has} records on {who}. Look at the log there, why it does not lead.")
        elif len(wanted) == 1:
            lines.append(f"{begin}: {has} records on {who}, so start that. Only if it is lost for good: {unclean}.")
        else:
            lines.append(
                f"{begin}: {has} records on each of {who}, so start one of them. Only if they are lost for good: "
                f"{unclean}."
            )
    return lines


def _brokers(numbers: Sequence[int]) -> str:
    return f"Broker {numbers[0]} is" if len(numbers) == 1 else f"Brokers {', '.join(map(str, numbers))} are"


def advice(
    health: Health, away: list[int], misplaced: int, single: int = 0, idle: Sequence[int] = ()
) -> list[str]:
    """What to do, the most urgent first, in words. `single` partitions have one replica, `idle` brokers hold none."""
    lines = []
    gone = ", ".join(map(str, away))
    if health.controller is None:
        lines.append(
            "Nobody is the controller, so nobody elects leaders: is ZooKeeper running, and do the brokers reach it? "
            "Meanwhile nobody takes the place of a broker that ends: start it again."
        )
    if health.silent:
        lines.append(
            f"{_brokers(health.silent)} registered and did not answer within {ANSWERS_WITHIN_MS // 1000} s: frozen, "
            "overloaded, or not to be reached from here. ZooKeeper takes a frozen one for dead after "
            "zookeeper.session.timeout.ms; if it stays like this, look at its process, its log and the network."
        )
    if health.refusing:
        lines.append(
            f"{_brokers(health.refusing)} registered, and the port refuses connections: the process has ended. Start "
            "it again on the same data. Others take over what it leads when they notice, at the latest after "
            "zookeeper.session.timeout.ms."
        )
    if health.without_zookeeper:
        lines.append(
            f"{_brokers(health.without_zookeeper)} cut off from ZooKeeper: look at the network between them. Others "
            "take over what it leads when its session ends."
        )
    if health.unreadable:
        lines.append(
            "Nodes in ZooKeeper cannot be read: what they are about stays as it was, and no broker can be started. "
            "Were they changed by hand? Put back what was in them; who removes the node of a topic removes the topic:"
        )
        lines += [f"  {line}" for line in health.unreadable]
    if away:
        lines.append(
            f"Broker{'s' if len(away) > 1 else ''} {gone} hold{'' if len(away) > 1 else 's'} replicas and "
            f"{'are' if len(away) > 1 else 'is'} not running. Start {'them' if len(away) > 1 else 'it'} again on the "
            "same data. If a machine is lost for good: semel cluster balance "
            + " ".join(f"--remove {broker}" for broker in away)
        )
    lines += _what_is_offline(health)
    if health.under_min_isr:
        lines.append(
            f"{_count(len(health.under_min_isr))} {'refuses' if len(health.under_min_isr) == 1 else 'refuse'} acks=all "
            "until another replica is in sync (min.insync.replicas)."
        )
    missed = {broker for row in health.under_replicated for broker in row["missing"]}
    lagging = sorted(missed - {*away, *health.silent, *health.refusing})
    if lagging:
        who, does = ("Brokers", "do") if len(lagging) > 1 else ("Broker", "does")
        lines.append(
            f"{who} {', '.join(map(str, lagging))} {does} not keep up with a leader. After a restart that is so for a "
            "moment. If it stays: look at the disk, the network and the log there."
        )
    if health.waiting_for:
        lines.append(
            f"{_count(len(health.moving))} on the way to other brokers, and {_brokers(health.waiting_for).lower()} not "
            "there. Start it, or take the moves back: kafka-reassign-partitions --cancel"
        )
    if health.is_well:
        lines.append("All is well.")
    if health.moving and not health.waiting_for:
        lines.append(
            f"{_count(len(health.moving))} {'is' if len(health.moving) == 1 else 'are'} on the way to other brokers, "
            "written and read meanwhile. How far: semel cluster balance"
        )
    if health.is_well and misplaced and not health.moving:
        lines.append(
            f"{_count(misplaced)} {'is' if misplaced == 1 else 'are'} led by another than the first replica, as after "
            "a restart. They go back by themselves, or by kafka-leader-election --election-type preferred "
            "--all-topic-partitions."
        )
    if single:
        lines.append(
            f"{_count(single)} {'has' if single == 1 else 'have'} one replica: with its broker the records are lost. "
            "More replicas: semel "
            f"cluster balance --replication-factor {min(3, sum(row['address'] is not None for row in health.brokers))}"
        )
    if idle:
        who = "Broker " + str(idle[0]) if len(idle) == 1 else "Brokers " + ", ".join(map(str, idle))
        lines.append(f"{who} hold{'s' if len(idle) == 1 else ''} no replicas. Their share: semel cluster balance")
    return lines
