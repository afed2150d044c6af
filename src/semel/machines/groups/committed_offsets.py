"""Committed offsets: what a group has consumed, and what a transaction says it will have.

An offset committed inside a transaction is *pending* from the moment its record is replayed and becomes visible when
the marker is, in the same step for every partition of the group: a reader sees the whole commit or none of it. Offsets
are ordered by their place in the log, so a transaction that ends late never overwrites a commit written after its own.

A broker remembers an offset for every group and partition there ever was until it expires, so what is committed is
kept packed, and a group that holds one position only pays for one.
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

    def packed(self) -> bytes:
        """The same in one object of less than half the size."""
        offset, leader_epoch, metadata, committed_at_ms, expires_at_ms, topic_id, order = self
        fixed = _FIXED.pack(offset, leader_epoch, committed_at_ms, expires_at_ms, order, topic_id.bytes)
        return fixed + metadata.encode() if metadata else fixed

    @classmethod
    def unpacked(cls, packed: bytes) -> CommittedOffset:
        offset, leader_epoch, committed_at_ms, expires_at_ms, order, topic_id = _FIXED.unpack_from(packed)
        metadata = packed[_FIXED.size :].decode()
        return cls(offset, leader_epoch, metadata, committed_at_ms, expires_at_ms, UUID(bytes=topic_id), order)


#: One place and its packed offset, or several.
_Held = tuple[Place, bytes] | dict[Place, bytes]


class GroupView:
    """The offsets of one group as they are now, whatever is committed later."""

    __slots__ = ("_committed", "_pending")

    def __init__(self, committed: _Held | None, pending: Iterable[Place]) -> None:
        self._committed = dict((committed,)) if isinstance(committed, tuple) else dict(committed or {})
        self._pending = frozenset(pending)

    def committed(self, topic: str, partition: int) -> CommittedOffset | None:
        packed = self._committed.get((topic, partition))
        return None if packed is None else CommittedOffset.unpacked(packed)

    def is_pending(self, topic: str, partition: int) -> bool:
        return (topic, partition) in self._pending

    def without_committed(self) -> GroupView:
        return GroupView(None, self._pending)


class CommittedOffsets:
    """Every committed and pending offset of the groups this broker coordinates; changed by replay alone."""

    __slots__ = ("_committed", "_pending", "_pending_producers", "_places", "_replayed")

    def __init__(self) -> None:
        self._committed: dict[str, _Held] = {}
        #: (partition of __consumer_offsets, producer id) -> (group, topic, partition) -> offset
        self._pending: dict[tuple[int, int], dict[tuple[str, str, int], CommittedOffset]] = {}
        #: group -> place -> producers with an open transaction there
        self._pending_producers: dict[str, dict[Place, set[int]]] = {}
        self._replayed = 0
        #: One object per place for the many groups that hold an offset there; forgotten with any of them, at no loss.
        self._places: dict[Place, Place] = {}

    # What is asked

    def committed(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        packed = self._packed(group_id, (topic, partition))
        return None if packed is None else CommittedOffset.unpacked(packed)

    def view(self, group_id: str) -> GroupView:
        return GroupView(self._committed.get(group_id), self._pending_producers.get(group_id, ()))

    def of_group(self, group_id: str) -> dict[Place, CommittedOffset]:
        held = self._committed.get(group_id)
        if held is None:
            return {}
        if isinstance(held, tuple):
            place, packed = held
            return {place: CommittedOffset.unpacked(packed)}
        return {place: CommittedOffset.unpacked(packed) for place, packed in held.items()}

    def places(self, group_id: str) -> list[Place]:
        """Where the group has committed an offset."""
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

    # What is replayed

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
        """Forget an offset, and any pending one: what is deleted must not come back with a late commit."""
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
            self._settled(group_id, (topic, partition), producer_id)

    def complete(self, state_partition: int, producer_id: int, *, commit: bool) -> None:
        """A marker was written to this partition: the producer's offsets count now, or never did."""
        pending = self._pending.pop((state_partition, producer_id), {})
        for (group_id, topic, partition), offset in pending.items():
            self._settled(group_id, (topic, partition), producer_id)
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
            held[place] = offset.packed()
        elif held is None or held[0] == place:
            self._committed[group_id] = (place, offset.packed())
        else:
            self._committed[group_id] = {held[0]: held[1], place: offset.packed()}

    def _settled(self, group_id: str, place: Place, producer_id: int) -> None:
        by_place = self._pending_producers[group_id]
        producers = by_place[place]
        producers.discard(producer_id)
        if not producers:
            del by_place[place]
            if not by_place:
                del self._pending_producers[group_id]
