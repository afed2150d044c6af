"""Whom clients are told of: also a broker that is just gone, and always the one that they ask."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from semel.broker.replication.named_brokers import NAMED_FOR_MS, NamedBrokers
from semel.broker.replication.topics import placement
from semel.errors import ErrorCode, Refused
from semel.machines.controller.image import Broker
from semel.machines.znodes.values import BrokerLife, BrokerRegistration, Endpoint


def at(port: int) -> BrokerRegistration:
    return BrokerRegistration((Endpoint("PLAINTEXT", "host", port),), {"PLAINTEXT": "PLAINTEXT"}, 0)


class World:
    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.registrations: dict[int, BrokerRegistration] = {}
        self.lives: dict[int, BrokerLife] = {}
        reader = SimpleNamespace(registrations=self.registrations, lives=lambda: self.lives)
        self.named = NamedBrokers(1, cast("Any", reader), lambda: self.now_ms, lambda: at(1))

    def ports(self) -> dict[int, int]:
        return {broker: each.endpoints[0].port for broker, each in self.named.all().items() if each.endpoints}


def test_a_broker_that_is_not_registered_yet_names_itself() -> None:
    assert World().ports() == {1: 1}


def test_a_broker_that_is_gone_is_named_for_a_while() -> None:
    world = World()
    world.registrations[2] = at(2)
    world.named.look()
    del world.registrations[2]
    world.now_ms += NAMED_FOR_MS
    assert world.ports() == {1: 1, 2: 2}
    world.now_ms += 1
    assert world.ports() == {1: 1}
    world.registrations[2] = at(3)
    assert world.ports() == {1: 1, 2: 3}


def test_a_broker_that_was_gone_before_this_one_came_is_named_too() -> None:
    world = World()
    world.lives[2] = BrokerLife("directory", endpoints=at(2).endpoints)
    world.lives[3] = BrokerLife("of an older version")
    assert world.ports() == {1: 1, 2: 2}
    world.now_ms += NAMED_FOR_MS + 1
    assert world.ports() == {1: 1}, "and not for ever"


def test_only_who_was_there_lately_gets_replicas() -> None:
    """A topic can be created while a broker is restarted. One that was removed long ago gets nothing of it."""
    world = World()
    world.registrations[2] = at(2)
    world.lives[3] = BrokerLife("gone before this broker came", endpoints=at(3).endpoints)
    world.named.look()
    del world.registrations[2]
    image = SimpleNamespace(brokers={1: Broker(1, 0), 2: Broker(2, 0, live=False), 3: Broker(3, 0, live=False)})
    membership: Any = SimpleNamespace(image=image, named_brokers=world.named)
    assert placement(membership, "t", 1, 1) == {0: (1,)}
    assert set(placement(membership, "t", 1, 2)[0]) == {1, 2}
    with pytest.raises(Refused) as refused:
        placement(membership, "t", 1, 3)
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR
    world.now_ms += NAMED_FOR_MS + 1
    with pytest.raises(Refused):
        placement(membership, "t", 1, 2)
