"""The rules of the coordinators of a cluster (C1 to C4 of docs/replication.md)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from semel.broker.coordinators.host import CoordinatorHost
from semel.broker.replication import durability
from semel.broker.replication.admission import Admissions, Asked, Verification
from semel.broker.replication.coordinators import Coordinators
from semel.broker.replication.markers import ClusterMarkerSender
from semel.broker.replication.replica import LocalReplica
from semel.errors import ErrorCode, Refused
from semel.machines.producing.producer_state import ProducerStates
from semel.machines.values import TopicPartition
from semel.simulation.ablations import Patch, ablation, nothing

in_a_cluster = partial(ablation, brokers=3, faults_per_minute=60)


def _done() -> asyncio.Future[ErrorCode]:
    done: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    done.set_result(ErrorCode.NONE)
    return done


MOVES = ("leader killed", "session expired", "brokers cut off from each other", "broker cut off from all others")


@in_a_cluster("C1: what a coordinator has written counts once it is committed", "transfers", faults=MOVES)
def without_c1(patch: Patch) -> None:
    patch.set(durability, "committed", lambda partition: _done())


@in_a_cluster(
    "C2: a coordinator serves once all of its log is committed",
    "transfers",
    faults=("coordinator dies before its log is committed",),
    faults_per_minute=10,
)
def without_c2(patch: Patch) -> None:
    def may_load(self: Coordinators, topic_name: str, index: int) -> bool:
        topic = self._broker.topics.topics.get(topic_name)
        return topic is not None and topic.partitions[index].is_served

    patch.set(Coordinators, "may_load", may_load)


@in_a_cluster("C2: a coordinator forgets what it no longer leads", "transfers", faults=MOVES)
def without_c2_forgetting(patch: Patch) -> None:
    patch.set(CoordinatorHost, "unload", nothing)


@in_a_cluster("C3: the coordinator is asked before the first batch", "transfers", faults=MOVES)
def without_c3(patch: Patch) -> None:
    async def ask(
        self: Admissions, asked: Asked, verifications: Mapping[TopicPartition, Verification]
    ) -> dict[TopicPartition, ErrorCode]:
        return dict.fromkeys(verifications, ErrorCode.NONE)

    patch.set(Admissions, "ask", ask)


@in_a_cluster(
    "C3: no append between verification and marker",
    "hurried",
    faults=("coordinator's answers arrive late",),
    faults_per_minute=30,
)
def without_c3_guard(patch: Patch) -> None:
    patch.set(ProducerStates, "check_verified", nothing)


@in_a_cluster("C4: markers go again to whoever leads", "transfers", faults=MOVES)
def without_c4(patch: Patch) -> None:
    patch.set(ClusterMarkerSender, "_later", nothing)


@in_a_cluster(
    "C4: a marker of an older coordinator is refused",
    "transfers-v1",
    faults=("markers arrive late",),
    faults_per_minute=30,
)
def without_c4_epoch(patch: Patch) -> None:
    check_marker = ProducerStates.check_marker

    def check(self: ProducerStates, producer_id: int, producer_epoch: int, epoch: int, version: int) -> Any:
        try:
            return check_marker(self, producer_id, producer_epoch, epoch, version)
        except Refused as refused:
            if refused.code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
                return None
            raise

    patch.set(ProducerStates, "check_marker", check)


@in_a_cluster("P3: acks=all is answered once it is committed", "idempotent", faults=MOVES)
def without_p3(patch: Patch) -> None:
    patch.set(LocalReplica, "tell_when_committed", lambda self, offset, tell: ErrorCode.NONE)
