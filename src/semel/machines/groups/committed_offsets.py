"""The committed offsets of all groups, and the pending ones of open transactions.

An offset that is committed in a transaction is *pending* from the replay of its record until the marker. With the
marker all offsets of the transaction become visible at once: a reader sees the whole commit or none of it. Offsets are
ordered by their position in the log: a transaction that ends late never overwrites a commit that was written after its
own.

A broker stores an offset per group and partition until it expires. So committed offsets are packed into bytes, and a
group with a single offset has no dictionary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import Struct
from sys import intern
from typing import NamedTuple
from uuid import UUID

NO_TOPIC_ID = UUID(int=0)
NO_EXPIRY = -1

#: (topic, partition)
Place = tuple[str, int]
#: offset, leader epoch, commit timestamp, expire timestamp, order, topic id; the metadata follows
_FIXED = Struct(">qiqqq16s")


class CommittedOffset(NamedTuple):
    """One committed offset. `order` is its position in the replayed log: the higher one wins."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int
    topic_id: UUID
    order: int

    def is_expired(self, base_timestamp_ms: int, retention_ms: int, now_ms: int) -> bool:
        if self.expire_timestamp_ms != NO_EXPIRY:
            return now_ms >= self.expire_timestamp_ms
        return now_ms - base_timestamp_ms >= retention_ms

    def to_bytes(self) -> bytes:
        """The offset packed into bytes, less than half the size."""
        offset, leader_epoch, metadata, committed_at_ms, expires_at_ms, topic_id, order = self
        fixed = _FIXED.pack(offset, leader_epoch, committed_at_ms, expires_at_ms, order, topic_id.bytes)
        return fixed + metadata.encode() if metadata else fixed

    @classmethod
    def from_bytes(cls, packed: bytes) -> CommittedOffset:
        offset, leader_epoch, committed_at_ms, expires_at_ms, order, topic_id = _FIXED.unpack_from(packed)
        metadata = packed[_FIXED.size :].decode()
        return cls(offset, leader_epoch, metadata, committed_at_ms, expires_at_ms, UUID(bytes=topic_id), order)


#: One partition with its packed offset, or a dictionary of them.
_Held = tuple[Place, bytes] | dict[Place, bytes]


class GroupView:
    """A snapshot of the offsets of one group."""

    __slots__ = ("_committed", "_pending")

    def __init__(self, committed: _Held | None, pending: Iterable[Place]) -> None:
        self._committed = dict((committed,)) if isinstance(committed, tuple) else dict(committed or {})
        self._pending = frozenset(pending)

    def committed(self, topic: str, partition: int) -> CommittedOffset | None:
        packed = self._committed.get((topic, partition))
        return None if packed is None else CommittedOffset.from_bytes(packed)

    def is_pending(self, topic: str, partition: int) -> bool:
        return (topic, partition) in self._pending

    def without_committed(self) -> GroupView:
        return GroupView(None, self._pending)


class CommittedOffsets:
    """The committed and pending offsets of all groups of this broker. Changed by replay alone."""

    __slots__ = ("_committed", "_pending", "_pending_producers", "_places", "_replayed")

    def __init__(self) -> None:
        self._committed: dict[str, _Held] = {}
        #: (partition of __consumer_offsets, producer id) -> (group, topic, partition) -> offset
        self._pending: dict[tuple[int, int], dict[tuple[str, str, int], CommittedOffset]] = {}
        #: group -> place -> producers with an open transaction there
        self._pending_producers: dict[str, dict[Place, set[int]]] = {}
        self._replayed = 0
        #: One shared key object per partition, because many groups have an offset in the same partition.
        self._places: dict[Place, Place] = {}

    # Reading

    def committed(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        packed = self._packed(group_id, (topic, partition))
        return None if packed is None else CommittedOffset.from_bytes(packed)

    def view(self, group_id: str) -> GroupView:
        return GroupView(self._committed.get(group_id), self._pending_producers.get(group_id, ()))

    def of_group(self, group_id: str) -> dict[Place, CommittedOffset]:
        held = self._committed.get(group_id)
        if held is None:
            return {}
        if isinstance(held, tuple):
            place, packed = held
            return {place: CommittedOffset.from_bytes(packed)}
        return {place: CommittedOffset.from_bytes(packed) for place, packed in held.items()}

    def places(self, group_id: str) -> list[Place]:
        """The partitions in which the group has a committed offset."""
        held = self._committed.get(group_id)
        if held is None:
            return []
        return [held[0]] if isinstance(held, tuple) else list(held)

    def __len__(self) -> int:
        """How many offsets are committed."""
        return sum(1 if isinstance(held, tuple) else len(held) for held in self._committed.values())

    @property
    def pending_count(self) -> int:
        """How many offsets wait for the end of their transaction."""
        return sum(map(len, self._pending.values()))

    def is_pending(self, group_id: str, topic: str, partition: int) -> bool:
        return (topic, partition) in self._pending_producers.get(group_id, {})

    def pending_places(self, group_id: str) -> list[Place]:
        return list(self._pending_producers.get(group_id, {}))

    def groups_with_topic(self, topics: set[str]) -> Iterator[tuple[str, list[Place]]]:
        """Groups holding offsets, committed or pending, of any of these topics."""
        for group_id in self._committed.keys() | self._pending_producers.keys():
            places = {place for place in self.places(group_id) if place[0] in topics}
            places |= {place for place in self._pending_producers.get(group_id, ()) if place[0] in topics}
            if places:
                yield group_id, sorted(places)

    # Replay

    def replay(
        self, state_partition: int, group_id: str, topic: str, partition: int, offset: CommittedOffset, producer_id: int
    ) -> None:
        place = (intern(topic), partition)
        self._replayed += 1
        offset = offset._replace(order=self._replayed)
        if producer_id < 0:
            self._commit(group_id, place, offset)
            return
        self._pending.setdefault((state_partition, producer_id), {})[(group_id, *place)] = offset
        self._pending_producers.setdefault(group_id, {}).setdefault(place, set()).add(producer_id)

    def replay_tombstone(self, state_partition: int, group_id: str, topic: str, partition: int) -> None:
        """Delete an offset, also a pending one: a late commit must not bring it back."""
        self._places.pop((topic, partition), None)
        held = self._committed.get(group_id)
        if isinstance(held, dict):
            held.pop((topic, partition), None)
            if not held:
                del self._committed[group_id]
        elif held is not None and held[0] == (topic, partition):
            del self._committed[group_id]
        for producer_id in list(self._pending_producers.get(group_id, {}).get((topic, partition), ())):
            del self._pending[(state_partition, producer_id)][(group_id, topic, partition)]
            self._forget_pending(group_id, (topic, partition), producer_id)

    def complete(self, state_partition: int, producer_id: int, *, commit: bool) -> None:
        """A marker was written to this partition: commit or drop the producer's pending offsets."""
        pending = self._pending.pop((state_partition, producer_id), {})
        for (group_id, topic, partition), offset in pending.items():
            self._forget_pending(group_id, (topic, partition), producer_id)
            if commit:
                current = self.committed(group_id, topic, partition)
                if current is None or current.order < offset.order:
                    self._commit(group_id, (topic, partition), offset)

    def drop_partition(self, state_partition: int, group_ids: set[str]) -> None:
        for group_id in group_ids:
            self._committed.pop(group_id, None)
            self._pending_producers.pop(group_id, None)
        for key in [key for key in self._pending if key[0] == state_partition]:
            del self._pending[key]

    def _packed(self, group_id: str, place: Place) -> bytes | None:
        held = self._committed.get(group_id)
        if isinstance(held, tuple):
            return held[1] if held[0] == place else None
        return None if held is None else held.get(place)

    def _commit(self, group_id: str, place: Place, offset: CommittedOffset) -> None:
        place = self._places.setdefault(place, place)
        held = self._committed.get(group_id)
        if isinstance(held, dict):
            held[place] = offset.to_bytes()
        elif held is None or held[0] == place:
            self._committed[group_id] = (place, offset.to_bytes())
        else:
            self._committed[group_id] = {held[0]: held[1], place: offset.to_bytes()}

    def _forget_pending(self, group_id: str, place: Place, producer_id: int) -> None:
        by_place = self._pending_producers[group_id]
        producers = by_place[place]
        producers.discard(producer_id)
        if not producers:
            del by_place[place]
            if not by_place:
                del self._pending_producers[group_id]
