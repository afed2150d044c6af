"""Committed offsets: what a group has consumed, and what a transaction says it will have.

An offset committed inside a transaction is *pending* from the moment its record is replayed and becomes visible when
the marker is, in the same step for every partition of the group: a reader sees the whole commit or none of it. Offsets
are ordered by their place in the log, so a transaction that ends late never overwrites a commit written after its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from sys import intern
from typing import NamedTuple
from uuid import UUID

NO_TOPIC_ID = UUID(int=0)
NO_EXPIRY = -1

#: (topic, partition)
Place = tuple[str, int]


class CommittedOffset(NamedTuple):
    """One committed position. `order` is its place in the replayed log, which decides who came last."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int
    topic_id: UUID
    order: int

    def expired(self, base_timestamp_ms: int, retention_ms: int, now_ms: int) -> bool:
        if self.expire_timestamp_ms != NO_EXPIRY:
            return now_ms >= self.expire_timestamp_ms
        return now_ms - base_timestamp_ms >= retention_ms


class CommittedOffsets:
    """Every committed and pending offset of the groups this broker coordinates; changed by replay alone."""

    __slots__ = ("_committed", "_pending", "_pending_producers", "_replayed", "_topic_ids")

    def __init__(self) -> None:
        self._committed: dict[str, dict[Place, CommittedOffset]] = {}
        #: (partition of __consumer_offsets, producer id) -> (group, topic, partition) -> offset
        self._pending: dict[tuple[int, int], dict[tuple[str, str, int], CommittedOffset]] = {}
        #: group -> place -> producers with an open transaction there
        self._pending_producers: dict[str, dict[Place, set[int]]] = {}
        self._replayed = 0
        #: One object per topic id, however many offsets name it.
        self._topic_ids: dict[UUID, UUID] = {NO_TOPIC_ID: NO_TOPIC_ID}

    # What is asked

    def committed(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self._committed.get(group_id, {}).get((topic, partition))

    def of_group(self, group_id: str) -> dict[Place, CommittedOffset]:
        return self._committed.get(group_id, {})

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        return (topic, partition) in self._pending_producers.get(group_id, {})

    def pending_places(self, group_id: str) -> list[Place]:
        return list(self._pending_producers.get(group_id, {}))

    def groups_with_topic(self, topics: set[str]) -> Iterator[tuple[str, list[Place]]]:
        """Groups holding offsets, committed or pending, of any of these topics."""
        for group_id in self._committed.keys() | self._pending_producers.keys():
            places = {place for place in self._committed.get(group_id, ()) if place[0] in topics}
            places |= {place for place in self._pending_producers.get(group_id, ()) if place[0] in topics}
            if places:
                yield group_id, sorted(places)

    # What is replayed

    def replay(
        self, state_partition: int, group_id: str, topic: str, partition: int, offset: CommittedOffset, producer_id: int
    ) -> None:
        place = (intern(topic), partition)
        self._replayed += 1
        topic_id = self._topic_ids.setdefault(offset.topic_id, offset.topic_id)
        offset = offset._replace(topic_id=topic_id, order=self._replayed)
        if producer_id < 0:
            self._committed.setdefault(group_id, {})[place] = offset
            return
        self._pending.setdefault((state_partition, producer_id), {})[(group_id, *place)] = offset
        self._pending_producers.setdefault(group_id, {}).setdefault(place, set()).add(producer_id)

    def replay_tombstone(self, state_partition: int, group_id: str, topic: str, partition: int) -> None:
        """Forget an offset, and any pending one: what is deleted must not come back with a late commit."""
        offsets = self._committed.get(group_id)
        if offsets is not None:
            offsets.pop((topic, partition), None)
            if not offsets:
                del self._committed[group_id]
        for producer_id in list(self._pending_producers.get(group_id, {}).get((topic, partition), ())):
            del self._pending[(state_partition, producer_id)][(group_id, topic, partition)]
            self._settled(group_id, (topic, partition), producer_id)

    def complete(self, state_partition: int, producer_id: int, *, commit: bool) -> None:
        """A marker was written to this partition: the producer's offsets count now, or never did."""
        pending = self._pending.pop((state_partition, producer_id), {})
        for (group_id, topic, partition), offset in pending.items():
            self._settled(group_id, (topic, partition), producer_id)
            if commit:
                offsets = self._committed.setdefault(group_id, {})
                current = offsets.get((topic, partition))
                if current is None or current.order < offset.order:
                    offsets[(topic, partition)] = offset

    def drop_partition(self, state_partition: int, group_ids: set[str]) -> None:
        for group_id in group_ids:
            self._committed.pop(group_id, None)
            self._pending_producers.pop(group_id, None)
        for key in [key for key in self._pending if key[0] == state_partition]:
            del self._pending[key]

    def _settled(self, group_id: str, place: Place, producer_id: int) -> None:
        by_place = self._pending_producers[group_id]
        producers = by_place[place]
        producers.discard(producer_id)
        if not producers:
            del by_place[place]
            if not by_place:
                del self._pending_producers[group_id]
