"""What the znodes hold: Apache Kafka 3.9's JSON, with two fields of ours in a partition's state.

Kafka reads what we write and we read what Kafka writes: fields that are not known are left alone, and ours have a value
that stands for their absence. What cannot be read raises `UnreadableZnode`, which names the path. So does what can be
read and cannot be so, as a partition without replicas: whoever acted on it would fail later, where it harms others.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from semel.machines.replication.values import NO_LEADER, PartitionState

T = TypeVar("T")
#: What reading raises where something else was written than is expected.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
_UUID = re.compile(r"[A-Za-z0-9_-]{21}[AQgw]\Z")


class UnreadableZnode(Exception):
    """A znode that does not hold what Kafka or Semel would write there."""

    @classmethod
    def at(cls, path: str, error: Exception) -> UnreadableZnode:
        return cls(f"{path} in ZooKeeper cannot be read: {error!r}")


def _encode(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _decode(data: bytes, path: str, read: Callable[[Any], T]) -> T:
    try:
        return read(json.loads(data))
    except UNREADABLE as error:
        raise UnreadableZnode.at(path, error) from None


def _number(value: Any, least: int = 0, most: int = INT32_MAX) -> int:
    number = int(value)
    if not least <= number <= most:
        raise ValueError(f"{number} is not from {least} to {most}")
    return number


def _brokers(values: Any) -> tuple[int, ...]:
    if not isinstance(values, list):
        raise ValueError(f"{values!r:.100} is no list of brokers")
    numbers = tuple(_number(value) for value in values)
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"{values!r:.100} names a broker twice")
    return numbers


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.100} is no text")
    return value


# Brokers


class Endpoint(NamedTuple):
    listener: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.listener}://{self.host}:{self.port}"

    @classmethod
    def of(cls, text: str) -> Endpoint:
        listener, _, address = text.partition("://")
        host, _, port = address.rpartition(":")
        return cls(listener, host, _number(port, 0, 2**16 - 1))


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """`/brokers/ids/<n>`: where a broker that lives can be reached."""

    endpoints: tuple[Endpoint, ...]
    #: Which security protocol each listener speaks.
    protocols: Mapping[str, str]
    timestamp_ms: int
    rack: str | None = None

    def encode(self) -> bytes:
        plain = next((each for each in self.endpoints if self.protocols.get(each.listener) == "PLAINTEXT"), None)
        value: dict[str, Any] = {
            "listener_security_protocol_map": dict(self.protocols),
            "endpoints": list(map(str, self.endpoints)),
            "jmx_port": -1,
            "features": {},
            "host": plain.host if plain else None,
            "timestamp": str(self.timestamp_ms),
            "port": plain.port if plain else -1,
            "version": 5,
        }
        if self.rack is not None:
            value["rack"] = self.rack
        return _encode(value)

    @classmethod
    def decode(cls, data: bytes, path: str) -> BrokerRegistration:
        def read(value: Any) -> BrokerRegistration:
            endpoints = tuple(map(Endpoint.of, value["endpoints"]))
            own_names = {each.listener: each.listener for each in endpoints}
            protocols = dict(value.get("listener_security_protocol_map") or own_names)
            rack = value.get("rack")
            timestamp_ms = _number(value.get("timestamp", -1), -1, INT64_MAX)
            return cls(endpoints, protocols, timestamp_ms, None if rack is None else _text(rack))

        return _decode(data, path, read)


@dataclass(frozen=True, slots=True)
class BrokerLife:
    """`/semel/brokers/<n>`: which data directory the broker has, and whether it is about to stop (E8)."""

    directory_id: str
    leaving: bool = False
    #: Where it can be reached while it lives: clients are told for a while after it is gone.
    endpoints: tuple[Endpoint, ...] = ()

    def encode(self) -> bytes:
        endpoints = list(map(str, self.endpoints))
        value = {"version": 1, "directory_id": self.directory_id, "leaving": self.leaving, "endpoints": endpoints}
        return _encode(value)

    @classmethod
    def decode(cls, data: bytes, path: str) -> BrokerLife:
        def read(value: Any) -> BrokerLife:
            endpoints = tuple(map(Endpoint.of, value.get("endpoints", ())))
            return cls(str(value["directory_id"]), bool(value.get("leaving", False)), endpoints)

        return _decode(data, path, read)


@dataclass(frozen=True, slots=True)
class Joining:
    """`/semel/joining`: which broker is bringing the topics that it had alone, and from which data directory."""

    broker: int
    directory_id: str

    def encode(self) -> bytes:
        return _encode({"version": 1, "broker": self.broker, "directory_id": self.directory_id})

    @classmethod
    def decode(cls, data: bytes) -> Joining:
        return _decode(data, "/semel/joining", lambda value: cls(int(value["broker"]), str(value["directory_id"])))


def encode_controller(broker_id: int, timestamp_ms: int) -> bytes:
    return _encode({"version": 2, "brokerid": broker_id, "timestamp": str(timestamp_ms), "kraftControllerEpoch": -1})


def decode_controller(data: bytes) -> int:
    return _decode(data, "/controller", lambda value: _number(value["brokerid"]))


def encode_controller_epoch(epoch: int) -> bytes:
    return str(epoch).encode()


def decode_controller_epoch(data: bytes) -> int:
    return _decode(data, "/controller_epoch", _number)


def encode_cluster_id(cluster_id: str) -> bytes:
    return _encode({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    return _decode(data, "/cluster/id", lambda value: str(value["id"]))


# Topics


@dataclass(frozen=True, slots=True)
class TopicAssignment:
    """`/brokers/topics/<t>`: who holds each partition. While replicas move, old and new ones are there (E9)."""

    topic_id: str | None
    partitions: Mapping[int, tuple[int, ...]]
    adding: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    removing: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    def encode(self) -> bytes:
        def by_name(values: Mapping[int, tuple[int, ...]]) -> dict[str, list[int]]:
            return {str(number): list(replicas) for number, replicas in sorted(values.items())}

        value: dict[str, Any] = {
            "partitions": by_name(self.partitions),
            "topic_id": self.topic_id,
            "adding_replicas": by_name(self.adding),
            "removing_replicas": by_name(self.removing),
            "version": 3,
        }
        if self.topic_id is None:
            del value["topic_id"]
        return _encode(value)

    @classmethod
    def decode(cls, data: bytes, path: str) -> TopicAssignment:
        def by_number(values: Any) -> dict[int, tuple[int, ...]]:
            return {_number(number): _brokers(replicas) for number, replicas in values.items()}

        def read(value: Any) -> TopicAssignment:
            found = cls(
                value.get("topic_id"),
                by_number(value["partitions"]),
                by_number(value.get("adding_replicas", {})),
                by_number(value.get("removing_replicas", {})),
            )
            found._check()
            return found

        return _decode(data, path, read)

    def _check(self) -> None:
        """ValueError where no topic can be so."""
        if self.topic_id is not None and not _UUID.match(self.topic_id):
            raise ValueError(f"topic_id {self.topic_id[:100]!r} is no id of a topic")
        if not self.partitions or max(self.partitions) != len(self.partitions) - 1:
            raise ValueError("the partitions are not numbered from 0 on without a gap")
        for number, replicas in self.partitions.items():
            moving = {*self.adding.get(number, ()), *self.removing.get(number, ())}
            if not moving <= {*replicas} or not self.target(number):
                raise ValueError(f"partition {number} cannot have replicas {list(replicas)}, of which {moving} move")
        if not {*self.adding, *self.removing} <= self.partitions.keys():
            raise ValueError("a partition moves that is not there")

    def origin(self, number: int) -> tuple[int, ...]:
        """Where a partition was before it began to move."""
        coming = self.adding.get(number, ())
        return tuple(broker for broker in self.partitions[number] if broker not in coming)

    def target(self, number: int) -> tuple[int, ...]:
        """Where a partition is to be when all has moved."""
        leaving = self.removing.get(number, ())
        return tuple(broker for broker in self.partitions[number] if broker not in leaving)


def encode_state(state: PartitionState) -> bytes:
    return _encode(
        {
            "controller_epoch": state.controller_epoch,
            "leader": state.leader,
            "version": 1,
            "leader_epoch": state.leader_epoch,
            "isr": list(state.isr),
            "leader_broker_epoch": state.leader_broker_epoch,
            "elr": list(state.elr),
        }
    )


def decode_state(data: bytes, path: str) -> PartitionState:
    """A state that Kafka wrote names no life of its leader, so its leader must be elected anew (R1)."""
    return _decode(
        data,
        path,
        lambda value: PartitionState(
            _number(value["leader"], NO_LEADER),
            _number(value["leader_epoch"]),
            _brokers(value["isr"]),
            _number(value.get("leader_broker_epoch", -1), -1),
            _brokers(value.get("elr", [])),
            _number(value["controller_epoch"], -1),
        ),
    )


# Settings, access, producer ids


def encode_config(settings: Mapping[str, str]) -> bytes:
    """Settings of a topic or broker, quotas and SCRAM credentials of a user: all have one form."""
    return _encode({"version": 1, "config": dict(settings)})


def decode_config(data: bytes, path: str) -> dict[str, str]:
    if not data:
        return {}
    return _decode(data, path, lambda value: {str(name): str(text) for name, text in value.get("config", {}).items()})


def encode_config_change(entity_path: str) -> bytes:
    """`entity_path` is, for example, topics/payments."""
    return _encode({"version": 2, "entity_path": entity_path})


def decode_config_change(data: bytes, path: str) -> str:
    return _decode(data, path, lambda value: str(value["entity_path"]))


class AclEntry(NamedTuple):
    """One access rule, in the words of Kafka's tools."""

    principal: str
    permission: str
    operation: str
    host: str


def encode_acls(entries: tuple[AclEntry, ...]) -> bytes:
    acls = [
        {"principal": each.principal, "permissionType": each.permission, "operation": each.operation, "host": each.host}
        for each in entries
    ]
    return _encode({"version": 1, "acls": acls})


def decode_acls(data: bytes, path: str) -> tuple[AclEntry, ...]:
    return _decode(
        data,
        path,
        lambda value: tuple(
            AclEntry(*(_text(each[name]) for name in ("principal", "permissionType", "operation", "host")))
            for each in value["acls"]
        ),
    )


class ProducerIdBlock(NamedTuple):
    """`/latest_producer_id_block`: the ids that were given out last, both ends included."""

    broker: int
    start: int
    end: int

    def encode(self) -> bytes:
        return _encode(
            {"version": 1, "broker": self.broker, "block_start": str(self.start), "block_end": str(self.end)}
        )

    @classmethod
    def decode(cls, data: bytes) -> ProducerIdBlock:
        return _decode(
            data,
            "/latest_producer_id_block",
            lambda value: cls(
                _number(value["broker"]),
                _number(value["block_start"], 0, INT64_MAX),
                _number(value["block_end"], 0, INT64_MAX),
            ),
        )

    def next(self, broker: int, size: int = 1_000) -> ProducerIdBlock:
        """The block after this one, for this broker (Z8)."""
        return ProducerIdBlock(broker, self.end + 1, self.end + size)
