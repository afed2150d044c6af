"""What administrators ask for: topics, partitions, reassignments, elections (E7, E9, E10). Any broker may decide it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from semel.errors import ErrorCode, Refused
from semel.machines.controller import elections
from semel.machines.controller.image import Image, Topic
from semel.machines.controller.packing import MULTI_MAX_BYTES, Change, pack
from semel.machines.controller.writing import checks_of, create_state, write_state
from semel.machines.replication.values import PartitionState, state_with_isr
from semel.machines.values import TopicPartition
from semel.machines.znodes import paths
from semel.machines.znodes.operations import Check, Create, Delete, Multi, Operation, SetData
from semel.machines.znodes.values import TopicAssignment, encode_config, encode_state


@dataclass(frozen=True, slots=True)
class CreateTopic:
    name: str
    topic_id: str
    partitions: Mapping[int, tuple[int, ...]]
    settings: Mapping[str, str] = field(default_factory=dict)
    #: Whether settings of an earlier topic of this name are still there.
    replaces_config: bool = False


@dataclass(frozen=True, slots=True)
class DeleteTopic:
    name: str


@dataclass(frozen=True, slots=True)
class AddPartitions:
    name: str
    partitions: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Reassign:
    name: str
    targets: Mapping[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class CancelReassignment:
    name: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ElectLeaders:
    """The preferred leader, or with `unclean` anybody where nobody else can lead."""

    partitions: tuple[TopicPartition, ...]
    unclean: bool = False


AdminEvent = CreateTopic | DeleteTopic | AddPartitions | Reassign | CancelReassignment | ElectLeaders


def decide(image: Image, event: AdminEvent) -> list[Multi]:
    match event:
        case CreateTopic():
            return _create(image, event)
        case DeleteTopic(name):
            return _delete(image, _topic(image, name))
        case AddPartitions(name, partitions):
            return _add(image, _topic(image, name), partitions)
        case Reassign(name, targets):
            return _reassign(image, _topic(image, name), targets)
        case CancelReassignment(name, numbers):
            return _cancel(image, _topic(image, name), numbers)
        case ElectLeaders(partitions, unclean):
            return _elect(image, partitions, unclean)


def _topic(image: Image, name: str) -> Topic:
    topic = image.topics.get(name)
    if topic is None:
        raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    return topic


def _check_replicas(image: Image, replicas: tuple[int, ...]) -> None:
    if not replicas or len(set(replicas)) != len(replicas):
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{list(replicas)} is no list of different brokers")
    unknown = [broker for broker in replicas if broker not in image.brokers]
    if unknown:
        raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"there are no brokers {unknown}")


def check_assignment(image: Image, partitions: Mapping[int, tuple[int, ...]]) -> None:
    """Refuse what Kafka refuses of the replicas that somebody has chosen for new partitions."""
    size = None
    for number, replicas in partitions.items():
        _check_replicas(image, replicas)
        size = size or len(replicas)
        if len(replicas) != size:
            why = f"partition {number} has {len(replicas)} replicas and others have {size}: all need as many"
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, why)
        if not any(map(image.may_lead, replicas)):
            why = f"none of the brokers {list(replicas)} for partition {number} is running"
            raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, why)


# Creation and deletion (E7)


def _create(image: Image, event: CreateTopic) -> list[Multi]:
    """One multi, states and leaders included. Of a topic too large for one, the rest of the states follows; if they do
    not come, the controller makes them, as for any partition without a state."""
    if event.name in image.topics:
        raise Refused(ErrorCode.TOPIC_ALREADY_EXISTS, f"the topic {event.name} is there already")
    for replicas in event.partitions.values():
        _check_replicas(image, replicas)
    assignment = TopicAssignment(event.topic_id, event.partitions)
    config_path, config = paths.config("topics", event.name), encode_config(event.settings)
    topic_itself: Change = (
        Create(paths.topic(event.name), assignment.encode()),
        Create(paths.partitions(event.name)),
        SetData(config_path, config) if event.replaces_config else Create(config_path, config),
    )
    states: list[Change] = []
    for number, replicas in event.partitions.items():
        state = elections.first_state(replicas, image)
        states.append(
            (
                *checks_of(image, None, state),
                Create(paths.partition(event.name, number)),
                Create(paths.state(event.name, number), encode_state(state)),
            )
        )
    return pack((topic_itself, *states))


def _delete(image: Image, topic: Topic) -> list[Multi]:
    """One multi, children first; of a large topic in pieces, and until the last `/admin/delete_topics/<t>` says so. The
    last one also notes that the topic was deleted: brokers remove nothing of a topic that has merely vanished."""
    unchanged = Check(paths.topic(topic.name), topic.version)
    pieces: list[Change] = []
    for number in sorted(topic.assignment.partitions, reverse=True):
        if TopicPartition(topic.name, number) in image.states:
            pieces.append((Delete(paths.state(topic.name, number)), Delete(paths.partition(topic.name, number))))
    rest: list[Operation] = [Delete(paths.partitions(topic.name)), Delete(paths.topic(topic.name), topic.version)]
    if topic.has_config:
        rest.append(Delete(paths.config("topics", topic.name)))
    if topic.assignment.topic_id is not None:
        rest.append(Create(paths.deletion(topic.assignment.topic_id), sequential=True))
    begun = topic.name in image.deleting
    whole = pack([tuple(operation for piece in (*pieces, tuple(rest)) for operation in piece)])
    if not begun and whole[0].size_bytes() <= MULTI_MAX_BYTES:
        return whole
    mark = paths.deleted_topic(topic.name)
    begin = [] if begun else [Multi((unchanged, Create(mark)))]
    return begin + pack(pieces, (unchanged,)) + [Multi((*rest, Delete(mark)))]


def _add(image: Image, topic: Topic, partitions: Mapping[int, tuple[int, ...]]) -> list[Multi]:
    known = topic.assignment.partitions
    if sorted(partitions) != list(range(len(known), len(known) + len(partitions))) or not partitions:
        raise Refused(ErrorCode.INVALID_PARTITIONS, f"{topic.name} has {len(known)} partitions; new ones follow them")
    for replicas in partitions.values():
        _check_replicas(image, replicas)
    assignment = TopicAssignment(
        topic.assignment.topic_id,
        {**known, **partitions},
        topic.assignment.adding,
        topic.assignment.removing,
    )
    changes: list[Change] = [(SetData(paths.topic(topic.name), assignment.encode(), topic.version),)]
    grown = Topic(topic.name, assignment, topic.version + 1)
    for number, replicas in partitions.items():
        # Not checked against the topic's version: in the first multi that is the one before this very change.
        change = create_state(image, grown, number, elections.first_state(replicas, image))
        changes.append(change[1:])
    return pack(changes)


# Reassignment (E9, KIP-455)


def _reassign(image: Image, topic: Topic, targets: Mapping[int, tuple[int, ...]]) -> list[Multi]:
    """First the union of the old and the new replicas; when the new ones are in sync, `finished_reassignments`."""
    partitions, adding, removing = _mutable(topic.assignment)
    states: list[Operation] = []
    for number, target in targets.items():
        if number not in partitions:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has no partition {number}")
        _check_replicas(image, target)
        origin = tuple(broker for broker in partitions[number] if broker not in adding.get(number, ()))
        whole = tuple(dict.fromkeys((*target, *origin)))
        if not set(partitions[number]) <= set(whole):
            # Another target than before: who was on the way in, and is not any more, leaves the set as well.
            change = _settle(image, topic, number, whole)
            if change is None:
                why = f"none of the other replicas of {topic.name}-{number} is in sync"
                raise Refused(ErrorCode.INVALID_REPLICA_ASSIGNMENT, why)
            states += change
        _put(partitions, adding, removing, number, whole)
        _keep(adding, number, tuple(broker for broker in whole if broker not in origin))
        _keep(removing, number, tuple(broker for broker in origin if broker not in target))
    return pack([(_set_assignment(topic, partitions, adding, removing), *states)])


def _cancel(image: Image, topic: Topic, numbers: tuple[int, ...]) -> list[Multi]:
    partitions, adding, removing = _mutable(topic.assignment)
    states: list[Change] = []
    for number in numbers:
        if number not in partitions:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic.name} has no partition {number}")
        if number not in adding and number not in removing:
            raise Refused(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS, f"{topic.name}-{number} is not being reassigned")
        origin = tuple(broker for broker in partitions[number] if broker not in adding.get(number, ()))
        change = _settle(image, topic, number, origin)
        if change is None:
            raise Refused(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"none of the old replicas of {topic.name}-{number} is in sync"
            )
        states.append(change)
        _put(partitions, adding, removing, number, origin)
    whole = (_set_assignment(topic, partitions, adding, removing), *(each for change in states for each in change))
    return pack([whole])


@dataclass(frozen=True, slots=True)
class Finished:
    """The reassignments of a topic that are done: one change, for they share the topic's node."""

    partitions: frozenset[int]
    change: Change


def finished_reassignments(image: Image, topic: Topic) -> Finished | None:
    """Where all of the target is in sync: replicas, set and leader are changed together, under a new leader epoch."""
    partitions, adding, removing = _mutable(topic.assignment)
    operations: list[Operation] = []
    done: set[int] = set()
    for number in sorted({*topic.assignment.adding, *topic.assignment.removing}):
        target = topic.assignment.target(number)
        known = image.states.get(TopicPartition(topic.name, number))
        if known is None or not set(target) <= set(known[0].isr):
            continue
        change = _settle(image, topic, number, target)
        size_bytes = Multi((*operations, *(change or ()))).size_bytes()
        if change is None or size_bytes + len(topic.assignment.encode()) > MULTI_MAX_BYTES - 4096:
            continue  # nobody of the target can lead yet, or there is no room left: next time
        operations += change
        done.add(number)
        _put(partitions, adding, removing, number, target)
    if not done:
        return None
    return Finished(frozenset(done), (_set_assignment(topic, partitions, adding, removing), *operations))


def _settle(image: Image, topic: Topic, number: int, replicas: tuple[int, ...]) -> Change | None:
    """The register for these replicas and no others; None if none of them can lead."""
    partition = TopicPartition(topic.name, number)
    known = image.states.get(partition)
    if known is None:
        return None
    state, version = known
    isr = tuple(member for member in state.isr if member in replicas)
    needed = min(topic.min_insync_replicas, len(replicas))
    kept = state_with_isr(state, isr, needed)
    kept = kept._replace(elr=tuple(member for member in kept.elr if member in replicas))
    able = [broker for broker in replicas if broker in isr and image.may_lead(broker)]
    leader = state.leader if state.leader in able else able[0] if able else None
    if leader is None:
        return None
    new = elections.led_by(leader, kept, image)
    return (*checks_of(image, state, new), write_state(partition, new, version))


_Replicas = dict[int, tuple[int, ...]]


def _mutable(assignment: TopicAssignment) -> tuple[_Replicas, _Replicas, _Replicas]:
    return dict(assignment.partitions), dict(assignment.adding), dict(assignment.removing)


def _put(
    partitions: _Replicas, adding: _Replicas, removing: _Replicas, number: int, replicas: tuple[int, ...]
) -> None:
    """These replicas, and nothing on its way."""
    partitions[number] = replicas
    adding.pop(number, None)
    removing.pop(number, None)


def _keep(table: _Replicas, number: int, replicas: tuple[int, ...]) -> None:
    if replicas:
        table[number] = replicas


def _set_assignment(topic: Topic, partitions: _Replicas, adding: _Replicas, removing: _Replicas) -> SetData:
    data = TopicAssignment(topic.assignment.topic_id, partitions, adding, removing).encode()
    return SetData(paths.topic(topic.name), data, topic.version)


# Elections on demand


def _elect(image: Image, partitions: tuple[TopicPartition, ...], unclean: bool) -> list[Multi]:
    changes: list[Change] = []
    for partition in partitions:
        topic = _topic(image, partition.topic)
        known = image.states.get(partition)
        if known is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {partition}")
        state, version = known
        new = _by_force(image, topic, partition, state) if unclean else _preferred(image, topic, partition, state)
        if new is not None:
            changes.append((*checks_of(image, state, new), write_state(partition, new, version)))
    return pack(changes)


def _preferred(image: Image, topic: Topic, partition: TopicPartition, state: PartitionState) -> PartitionState | None:
    preferred = topic.assignment.target(partition.partition)[0]
    if preferred == state.leader:
        return None
    if preferred not in state.isr or not image.may_lead(preferred):
        raise Refused(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, f"broker {preferred} cannot lead {partition}: it is not in sync"
        )
    return elections.led_by(preferred, state, image)


def _by_force(image: Image, topic: Topic, partition: TopicPartition, state: PartitionState) -> PartitionState | None:
    if image.is_live(state.leader):
        return None
    replicas = topic.assignment.partitions[partition.partition]
    new = elections.next_state(state, replicas, topic.needed(partition.partition), image, unclean_allowed=True)
    if new is None or new.leader < 0:
        raise Refused(ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE, f"no replica of {partition} is on a broker that lives")
    return new
