"""The values that the admin client takes and returns."""

from __future__ import annotations

from dataclasses import dataclass, field

from semel.client.cluster.metadata import Node
from semel.machines.values import TopicPartition


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 means the broker's default."""

    name: str
    partitions: int = -1
    replication_factor: int = -1
    configs: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting of a topic or broker, and where its value comes from."""

    name: str
    value: str | None
    source: str
    is_default: bool
    is_sensitive: bool
    is_read_only: bool


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    """The brokers of a cluster, and which of them is the controller."""

    cluster_id: str
    controller_id: int
    nodes: tuple[Node, ...]
    finalized_features: dict[str, int]


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What can be known of a user's credential."""

    mechanism: str
    iterations: int


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in a list of groups."""

    group_id: str
    state: str
    type: str
    protocol_type: str


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """One member of a group and its partitions."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members. `type` is "classic" or "consumer" (KIP-848)."""

    group_id: str
    state: str
    type: str
    assignor: str
    coordinator: int
    members: tuple[MemberDescription, ...]


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id in a list of them."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """What a coordinator knows of a transactional id; `started_ms` is -1 when no transaction is open."""

    transactional_id: str
    coordinator: int
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """What a partition knows of a producer; `transaction_start_offset` is -1 when it has no transaction open there."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp_ms: int
    coordinator_epoch: int
    transaction_start_offset: int
