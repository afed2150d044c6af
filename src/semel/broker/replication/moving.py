"""Replicas on other brokers and leaders by hand: AlterPartitionReassignments, ListPartitionReassignments, ElectLeaders.

Any broker serves them (E10). A reassignment that was asked for is written at once; the controller ends it when the new
replicas are in sync (E9). Every partition has an answer of its own: one that is wrong keeps no other back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from semel.broker.replication.topics import carry_out, known_here
from semel.errors import ErrorCode, Refused
from semel.machines.controller.admin import CancelReassignment, ElectLeaders, Reassign
from semel.machines.controller.decide import decide
from semel.machines.values import TopicPartition
from semel.wire.messages.admin import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ElectLeadersRequest,
    ElectLeadersResponse,
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.replication.membership import Membership
    from semel.machines.controller.image import Image

PREFERRED = 0


async def alter_reassignments(
    cluster: Membership, request: AlterPartitionReassignmentsRequest, call: Call
) -> AlterPartitionReassignmentsResponse:
    """Begin to move partitions, or cancel a move."""
    await cluster.know_brokers()
    keeps_factor = call.version >= 1 and not request.allow_replication_factor_change
    responses = []
    for row in request.topics:
        targets: dict[int, tuple[int, ...]] = {}
        cancelled: list[int] = []
        answers = {}
        for asked in row.partitions:
            number = asked.partition_index
            answer = answers[number] = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse(
                partition_index=number, error_message=None
            )
            try:
                if asked.replicas is None:
                    decide(cluster.image, CancelReassignment(row.name, (number,)))
                    cancelled.append(number)
                else:
                    target = tuple(asked.replicas)
                    _check_target(cluster.image, row.name, number, target, keeps_factor=keeps_factor)
                    targets[number] = target
            except Refused as error:
                answer.error_code, answer.error_message = error.code, error.why
        if targets:
            numbers = tuple(targets)
            await _try(carry_out(cluster, Reassign(row.name, targets)), [answers[number] for number in numbers])
        if cancelled:
            if targets:
                await cluster.know_brokers()  # the topic's node has another version now
            event = CancelReassignment(row.name, tuple(cancelled))
            await _try(carry_out(cluster, event), [answers[number] for number in cancelled])
        responses.append(
            AlterPartitionReassignmentsResponse.ReassignableTopicResponse(
                name=row.name, partitions=list(answers.values())
            )
        )
    # Whoever asks next whether it is done must not be told that nothing has begun.
    await cluster.know_brokers()
    return AlterPartitionReassignmentsResponse(
        allow_replication_factor_change=request.allow_replication_factor_change,
        error_message=None,
        responses=responses,
    )


def _check_target(image: Image, name: str, number: int, target: tuple[int, ...], *, keeps_factor: bool) -> None:
    decide(image, Reassign(name, {number: target}))
    dead = [broker for broker in target if not image.is_live(broker)]
    if dead:
        why = f"brokers {dead} are not running: nothing can be moved there"
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, why)
    present = image.topics[name].assignment
    before = len(present.partitions[number]) - len(present.adding.get(number, ()))
    if keeps_factor and len(target) != before:
        why = f"{name}-{number} has {before} replicas; the request does not allow another number"
        raise Refused(ErrorCode.INVALID_REPLICATION_FACTOR, why)


async def _try(change: Any, answers: list[Any]) -> None:
    try:
        await change
    except Refused as error:
        for answer in answers:
            answer.error_code, answer.error_message = error.code, error.why


def list_reassignments(
    cluster: Membership, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """What is being moved."""
    wanted = None
    if request.topics is not None:
        wanted = {(row.name, number) for row in request.topics for number in row.partition_indexes}
    topics = []
    for name, topic in sorted(cluster.image.topics.items()):
        assignment = topic.assignment
        moving = sorted({*assignment.adding, *assignment.removing})
        rows = [
            ListPartitionReassignmentsResponse.OngoingPartitionReassignment(
                partition_index=number,
                replicas=list(assignment.partitions[number]),
                adding_replicas=list(assignment.adding.get(number, ())),
                removing_replicas=list(assignment.removing.get(number, ())),
            )
            for number in moving
            if wanted is None or (name, number) in wanted
        ]
        if rows:
            topics.append(ListPartitionReassignmentsResponse.OngoingTopicReassignment(name=name, partitions=rows))
    return ListPartitionReassignmentsResponse(error_message=None, topics=topics)


async def elect(cluster: Membership, request: ElectLeadersRequest) -> ElectLeadersResponse:
    """Elect the preferred leaders, or, unclean, any that lives where nobody leads."""
    await cluster.know_brokers()
    unclean = request.election_type != PREFERRED
    image = cluster.image
    asked_for_all = request.topic_partitions is None
    if request.topic_partitions is None:
        asked = [TopicPartition(name, number) for name, topic in image.topics.items()
                 for number in topic.assignment.partitions]
    else:
        asked = [TopicPartition(row.topic, number) for row in request.topic_partitions for number in row.partitions]
    answers: dict[TopicPartition, ElectLeadersResponse.PartitionResult] = {}
    chosen = []
    for partition in dict.fromkeys(asked):
        answer = ElectLeadersResponse.PartitionResult(partition_id=partition.partition, error_message=None)
        try:
            if decide(image, ElectLeaders((partition,), unclean)):
                chosen.append(partition)
            elif asked_for_all:
                continue  # as in Kafka: told only where it was asked for by name
            else:
                leader = image.states[partition][0].leader
                raise Refused(ErrorCode.ELECTION_NOT_NEEDED, f"{leader} leads {partition}")
        except Refused as error:
            answer.error_code, answer.error_message = error.code, error.why
        answers[partition] = answer
    if chosen:
        await _try(carry_out(cluster, ElectLeaders(tuple(chosen), unclean)), [answers[each] for each in chosen])
        before = {each: image.states[each][0].leader_epoch for each in chosen}
        await _try(
            known_here(
                cluster,
                lambda: all(
                    each not in cluster.image.states or cluster.image.states[each][0].leader_epoch > epoch
                    for each, epoch in before.items()
                ),
                "the leader",
            ),
            [],
        )
    by_topic: dict[str, list[ElectLeadersResponse.PartitionResult]] = {}
    for partition, answer in answers.items():
        by_topic.setdefault(partition.topic, []).append(answer)
    return ElectLeadersResponse(
        replica_election_results=[
            ElectLeadersResponse.ReplicaElectionResult(topic=topic, partition_result=rows)
            for topic, rows in by_topic.items()
        ]
    )
