"""What all parts of the group coordinator share: settings, the groups by id, loaded partitions and timers.

A group belongs to the partition of `__consumer_offsets` that its id hashes to (Java's string hash). It is served only
while that partition is loaded.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from semel.errors import ErrorCode, Refused
from semel.machines.contract import AnswerParked, Decision, Effect, StateRecord, Token
from semel.machines.groups.classic.group import ClassicGroup
from semel.machines.groups.consumer.group import ConsumerGroup
from semel.machines.internal_topics import partition_for


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The broker settings that the coordinator obeys, under Kafka's names."""

    offsets_topic_num_partitions: int = 50
    offset_metadata_max_bytes: int = 4096
    offsets_retention_minutes: int = 10080
    offsets_retention_check_interval_ms: int = 600_000
    group_initial_rebalance_delay_ms: int = 3000
    group_min_session_timeout_ms: int = 6000
    group_max_session_timeout_ms: int = 1_800_000
    group_max_size: int = 2**31 - 1
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5000
    group_consumer_max_size: int = 2**31 - 1
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    group_consumer_migration_policy: str = "bidirectional"

    @property
    def allows_upgrade(self) -> bool:
        return self.group_consumer_migration_policy.lower() in ("bidirectional", "upgrade")

    @property
    def allows_downgrade(self) -> bool:
        return self.group_consumer_migration_policy.lower() in ("bidirectional", "downgrade")

    @property
    def offsets_retention_ms(self) -> int:
        return self.offsets_retention_minutes * 60_000


class GroupTimeouts(NamedTuple):
    """Session timeout and heartbeat interval of a consumer group's members."""

    session_timeout_ms: int
    heartbeat_interval_ms: int


class TopicInfo(NamedTuple):
    """What the coordinator needs to know of a topic."""

    topic_id: UUID
    partitions: int


#: All topics of the cluster by name.
TopicsView = Mapping[str, TopicInfo]
#: Whether the client of a request may see a topic.
MaySee = Callable[[str], bool]

Group = ClassicGroup | ConsumerGroup


class Timer(NamedTuple):
    """A time at which something may be due. When it comes, the code that set it checks whether it still is."""

    at_ms: int
    order: int
    kind: str
    group_id: str
    member_id: str


@dataclass(slots=True)
class Timers:
    """A heap of timers. None is cancelled: an obsolete timer is ignored when it fires."""

    heap: list[Timer] = field(default_factory=list)
    order: int = 0

    def set(self, at_ms: int, kind: str, group_id: str, member_id: str = "") -> None:
        self.order += 1
        heapq.heappush(self.heap, Timer(at_ms, self.order, kind, group_id, member_id))

    def due(self, now_ms: int) -> Iterator[Timer]:
        while self.heap and self.heap[0].at_ms <= now_ms:
            yield heapq.heappop(self.heap)

    @property
    def next_at_ms(self) -> int | None:
        return self.heap[0].at_ms if self.heap else None


@dataclass(slots=True)
class DecisionDraft:
    """Collects the records and effects of a decision while it is made."""

    records: list[StateRecord] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)

    def answer(self, token: Token, reply: object) -> None:
        self.effects.append(AnswerParked(token, reply))

    def decision(self, reply: object | None = None, *, token: Token | None = None) -> Decision[object]:
        """The decision. With a `token`, the answer to that request becomes the reply."""
        effects = self.effects
        if token is not None and reply is None:
            for position, effect in enumerate(effects):
                if isinstance(effect, AnswerParked) and effect.token == token:
                    reply = effect.reply
                    effects = effects[:position] + effects[position + 1 :]
                    break
        return Decision(reply, tuple(self.records), tuple(effects))


class GroupRegistry:
    """The groups of this broker, and which partitions are loaded."""

    __slots__ = (
        "_by_partition",
        "_loaded",
        "_loading",
        "_partitions",
        "_topic_names",
        "_topics",
        "groups",
        "own_timeouts",
        "settings",
        "timers",
    )

    def __init__(self, settings: GroupSettings) -> None:
        self.settings = settings
        #: By id. Changed only by `put` and `remove`.
        self.groups: dict[str, Group] = {}
        #: Timeouts of groups with their own settings, by group id. The group need not exist.
        self.own_timeouts: dict[str, GroupTimeouts] = {}
        self._by_partition: dict[int, set[str]] = {}
        self.timers = Timers()
        self._topics: TopicsView | None = None
        self._topic_names: dict[UUID, str] = {}
        self._loading: set[int] = set()
        self._loaded: set[int] = set()
        self._partitions = settings.offsets_topic_num_partitions

    def timeouts_of(self, group_id: str) -> GroupTimeouts:
        own = self.own_timeouts.get(group_id)
        if own is not None:
            return own
        settings = self.settings
        return GroupTimeouts(settings.group_consumer_session_timeout_ms, settings.group_consumer_heartbeat_interval_ms)

    def partition_for(self, group_id: str) -> int:
        return partition_for(group_id, self._partitions)

    def set_partition_count(self, count: int) -> None:
        self._partitions = count

    def require_served(self, group_id: str) -> None:
        partition = self.partition_for(group_id)
        if partition not in self._loaded:
            raise Refused(
                ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if partition in self._loading else ErrorCode.NOT_COORDINATOR,
                f"group {group_id} belongs to __consumer_offsets-{partition}",
            )

    @property
    def loading(self) -> bool:
        return bool(self._loading)

    def is_loaded(self, partition: int) -> bool:
        return partition in self._loaded

    def begin_loading(self, partition: int) -> None:
        self.drop(partition)
        self._loading.add(partition)

    def finish_loading(self, partition: int) -> None:
        self._loading.discard(partition)
        self._loaded.add(partition)

    def drop(self, partition: int) -> list[Group]:
        """Forget a partition and its groups. Returns these groups."""
        self._loading.discard(partition)
        self._loaded.discard(partition)
        return [self.groups.pop(group_id) for group_id in self._by_partition.pop(partition, ())]

    def groups_of(self, partition: int) -> list[Group]:
        return [self.groups[group_id] for group_id in self._by_partition.get(partition, ())]

    def put(self, group: Group) -> None:
        self.groups[group.group_id] = group
        self._by_partition.setdefault(self.partition_for(group.group_id), set()).add(group.group_id)

    def remove(self, group_id: str) -> None:
        del self.groups[group_id]
        self._by_partition[self.partition_for(group_id)].discard(group_id)

    @property
    def topics(self) -> TopicsView | None:
        """The topics of the cluster; None until the host has set them."""
        return self._topics

    @topics.setter
    def topics(self, topics: TopicsView | None) -> None:
        self._topics = topics
        self._topic_names = {info.topic_id: name for name, info in (topics or {}).items()}

    def topic_name(self, topic_id: UUID) -> str | None:
        return self._topic_names.get(topic_id)

    def knows_partition(self, topic: str, partition: int) -> bool:
        """Whether the partition exists. Until the topics are set, the answer is yes."""
        if self._topics is None:
            return True
        info = self._topics.get(topic)
        return info is not None and 0 <= partition < info.partitions
