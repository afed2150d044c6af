"""A broker's place in the cluster: registered, leaving, certified dead; and who is the controller."""

from __future__ import annotations

from dataclasses import dataclass

from semel.machines.controller import elections
from semel.machines.controller.image import Image
from semel.machines.controller.packing import Change, pack
from semel.machines.controller.writing import write_state
from semel.machines.values import TopicPartition
from semel.machines.znodes import paths
from semel.machines.znodes.operations import Check, Create, Delete, Multi, Operation, SetData
from semel.machines.znodes.values import (
    BrokerLife,
    BrokerRegistration,
    Endpoint,
    encode_controller,
    encode_controller_epoch,
)


@dataclass(frozen=True, slots=True)
class BecomeController:
    """`/controller` is not there."""

    broker_id: int
    now_ms: int


@dataclass(frozen=True, slots=True)
class Register:
    """A new life of a broker begins (Z4). `life_version` is None before its first one.

    `stale` says that `/brokers/ids/<n>` of an earlier life is still there.
    """

    broker_id: int
    registration: BrokerRegistration
    directory_id: str
    life_version: int | None
    stale: bool = False


@dataclass(frozen=True, slots=True)
class SayLeaving:
    """A broker is about to stop: the controller moves everything away first (E8)."""

    broker_id: int
    directory_id: str
    life_version: int
    endpoints: tuple[Endpoint, ...] = ()


@dataclass(frozen=True, slots=True)
class LeaveUncleanly:
    """Before a broker registers whose machine went down without a sync: it has perhaps lost what was committed (E4)."""

    broker_id: int


@dataclass(frozen=True, slots=True)
class Certify:
    """A death certificate (E6): the broker's port has refused connections, so that life of it is over."""

    broker_id: int
    broker_epoch: int


RegistrationEvent = BecomeController | Register | SayLeaving | LeaveUncleanly | Certify


def decide(image: Image, event: RegistrationEvent) -> list[Multi]:
    match event:
        case BecomeController(broker_id, now_ms):
            epoch = encode_controller_epoch(image.controller_epoch + 1)
            return [
                Multi(
                    (
                        Create(paths.CONTROLLER, encode_controller(broker_id, now_ms), ephemeral=True),
                        SetData(paths.CONTROLLER_EPOCH, epoch, image.controller_epoch_version),
                    )
                )
            ]
        case Register():
            return [Multi(_register(event))]
        case SayLeaving(broker_id, directory_id, version, endpoints):
            life = BrokerLife(directory_id, True, endpoints)
            return [Multi((SetData(paths.life(broker_id), life.encode(), version),))]
        case LeaveUncleanly(broker_id):
            return _leave_uncleanly(image, broker_id)
        case Certify(broker_id, broker_epoch):
            return [Multi(_certificate(image, broker_id, broker_epoch))]


def _register(event: Register) -> tuple[Operation, ...]:
    data = BrokerLife(event.directory_id, endpoints=event.registration.endpoints).encode()
    path = paths.life(event.broker_id)
    life = Create(path, data) if event.life_version is None else SetData(path, data, event.life_version)
    stale = (Delete(paths.broker(event.broker_id)),) if event.stale else ()
    return (life, *stale, Create(paths.broker(event.broker_id), event.registration.encode(), ephemeral=True))


def _leave_uncleanly(image: Image, broker_id: int) -> list[Multi]:
    changes: list[Change] = []
    for (name, number), (state, version) in image.states.items():
        topic = image.topics.get(name)
        # Of a partition that is nowhere else nobody has more: it goes on with what is there, as on a broker alone.
        if topic is not None and topic.assignment.partitions.get(number) != (broker_id,):
            left = elections.without_unclean(state, broker_id, topic.needed(number))
            if left is not None:
                changes.append((write_state(TopicPartition(name, number), left, version),))
    return pack(changes)


def _certificate(image: Image, broker_id: int, broker_epoch: int) -> tuple[Operation, ...]:
    """A broker that lives after all registers again, so that a false certificate costs an election and no data."""
    dead = (Check(paths.life(broker_id), broker_epoch), Delete(paths.broker(broker_id)))
    if image.controller != broker_id:
        return dead
    return (*dead, Check(paths.CONTROLLER_EPOCH, image.controller_epoch_version), Delete(paths.CONTROLLER))
