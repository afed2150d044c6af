"""A consumer's position in each of its partitions, and what it must look up before it can fetch.

Guarantees: a partition is read from exactly one position. Data that was fetched before a seek, a reset or a new
assignment is dropped. A position moves only by records that were returned, or by a call of the user. Records that were
returned last are kept apart until the user asks for more: they may not be processed yet. Without a committed offset, or
if the offset is out of range, `auto.offset.reset` decides; "none" raises an error.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from semel.errors import ErrorCode, KafkaError, Misuse, OffsetOutOfRange
from semel.machines.table import StateTable
from semel.machines.values import TopicPartition

#: Special timestamps of ListOffsets.
LATEST, EARLIEST = -1, -2
_RESET_TIMESTAMPS = {"earliest": EARLIEST, "latest": LATEST}


class PositionState(enum.Enum):
    """What is known about a partition's position."""

    NEEDS_COMMITTED = "the committed offset must be looked up"
    NEEDS_RESET = "an offset must be looked up by timestamp"
    FETCHING = "the position is known"


class PositionEvent(enum.Enum):
    """What changes it. The value is the event's name on the page."""

    COMMITTED_FOUND = "a committed offset"
    COMMITTED_MISSING = "no committed offset"
    OFFSET_FOUND = "an offset by timestamp"
    OUT_OF_RANGE = "the offset is gone"
    SEEK = "seek()"
    SEEK_BY_TIME = "seek_to_beginning() or seek_to_end()"
    REWIND = "rewind()"


#: From (state, event) to the next state; a blank cell means that the event came too late and is ignored.
POSITION_STEPS: dict[PositionState, dict[PositionEvent, PositionState]] = {
    PositionState.NEEDS_COMMITTED: {
        PositionEvent.COMMITTED_FOUND: PositionState.FETCHING,
        PositionEvent.COMMITTED_MISSING: PositionState.NEEDS_RESET,
        PositionEvent.SEEK: PositionState.FETCHING,
        PositionEvent.SEEK_BY_TIME: PositionState.NEEDS_RESET,
        PositionEvent.REWIND: PositionState.NEEDS_COMMITTED,
    },
    PositionState.NEEDS_RESET: {
        PositionEvent.OFFSET_FOUND: PositionState.FETCHING,
        PositionEvent.SEEK: PositionState.FETCHING,
        PositionEvent.SEEK_BY_TIME: PositionState.NEEDS_RESET,
        PositionEvent.REWIND: PositionState.NEEDS_COMMITTED,
    },
    PositionState.FETCHING: {
        PositionEvent.OUT_OF_RANGE: PositionState.NEEDS_RESET,
        PositionEvent.SEEK: PositionState.FETCHING,
        PositionEvent.SEEK_BY_TIME: PositionState.NEEDS_RESET,
        PositionEvent.REWIND: PositionState.NEEDS_COMMITTED,
    },
}

POSITION_TABLE: StateTable[PositionState, PositionEvent, PositionState | None] = StateTable(
    PositionState, PositionEvent, POSITION_STEPS, blank=None
)


@dataclass(slots=True)
class PartitionPosition:
    """The position in one partition."""

    state: PositionState = PositionState.NEEDS_COMMITTED
    position: int = -1
    leader_epoch: int = -1
    reset_timestamp: int = LATEST
    paused: bool = False
    #: Changes with every jump. The answer to a fetch of an older generation is dropped.
    generation: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    #: The topic that the position is in. A topic that is deleted and created again has another id.
    topic_id: UUID | None = None
    #: Position and leader epoch before the records that the caller holds now; None if it holds none.
    before: tuple[int, int] | None = None

    @property
    def done(self) -> tuple[int, int]:
        """The position up to which the caller is done, and the leader epoch there."""
        return (self.position, self.leader_epoch) if self.before is None else self.before


@dataclass(slots=True)
class FetchPositions:
    """The positions of one consumer. `reset_policy` is auto.offset.reset."""

    reset_policy: str = "latest"
    partitions: dict[TopicPartition, PartitionPosition] = field(default_factory=dict)
    #: Counted over all partitions, so that a partition that is revoked and assigned again gets a new generation.
    _generations: int = 0
    #: The partitions of the records that were returned last.
    _in_hand: list[PartitionPosition] = field(default_factory=list)

    def assign(self, wanted: Iterable[TopicPartition], *, with_group: bool) -> None:
        """Read these partitions and no others. Partitions that were assigned before keep their position.

        Without a group there are no committed offsets: a new partition starts where the reset policy says. If that is
        "none", the caller has to seek first; whoever looks for the committed offset finds none and says so.
        """
        wanted = list(wanted)
        for gone in set(self.partitions) - set(wanted):
            del self.partitions[gone]
        for partition in wanted:
            if partition not in self.partitions:
                self._generations += 1
                self.partitions[partition] = PartitionPosition(generation=self._generations)
                if not with_group and self.reset_policy in _RESET_TIMESTAMPS:
                    self.on_committed(partition, None)

    def __getitem__(self, partition: TopicPartition) -> PartitionPosition:
        found = self.partitions.get(partition)
        if found is None:
            raise Misuse(ErrorCode.INVALID_REQUEST, f"{partition} is not assigned to this consumer")
        return found

    # --- calls of the user ----------------------------------------------------------------------------------------

    def seek(self, partition: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        if offset < 0:
            raise Misuse(ErrorCode.OFFSET_OUT_OF_RANGE, f"seek of {partition} to {offset}: offsets start at 0")
        self._jump(self[partition], PositionEvent.SEEK, offset, leader_epoch)

    def seek_by_time(self, partition: TopicPartition, timestamp: int) -> None:
        """Look up an offset by `EARLIEST`, `LATEST` or a timestamp in milliseconds."""
        entry = self[partition]
        entry.reset_timestamp = timestamp
        self._jump(entry, PositionEvent.SEEK_BY_TIME, -1)

    def rewind(self) -> None:
        """Go back to the committed offset in every partition."""
        for entry in self.partitions.values():
            self._jump(entry, PositionEvent.REWIND, -1)

    def pause(self, partition: TopicPartition) -> None:
        self[partition].paused = True

    def resume(self, partition: TopicPartition) -> None:
        self[partition].paused = False

    @property
    def paused(self) -> set[TopicPartition]:
        return {partition for partition, entry in self.partitions.items() if entry.paused}

    # --- what must be looked up -----------------------------------------------------------------------------------

    def needing_committed(self) -> list[TopicPartition]:
        return [p for p, entry in self.partitions.items() if entry.state is PositionState.NEEDS_COMMITTED]

    def needing_reset(self) -> dict[TopicPartition, int]:
        """The partitions whose offset must be looked up, each with the timestamp to look it up by."""
        return {
            p: entry.reset_timestamp for p, entry in self.partitions.items() if entry.state is PositionState.NEEDS_RESET
        }

    def on_committed(
        self, partition: TopicPartition, offset: int | None, leader_epoch: int = -1, *, asked_in: int | None = None
    ) -> None:
        """Take the group's committed offset, or None if there is none.

        `asked_in` is the generation of the question. An answer from before the partition was revoked and assigned again
        is too old: another member may have committed since.
        """
        entry = self.partitions.get(partition)
        if (
            entry is None
            or entry.state is not PositionState.NEEDS_COMMITTED
            or asked_in not in (None, entry.generation)
        ):
            return
        if offset is not None and offset >= 0:
            self._jump(entry, PositionEvent.COMMITTED_FOUND, offset, leader_epoch)
            return
        entry.reset_timestamp = self._reset_timestamp(partition, "there is no committed offset for it")
        self._jump(entry, PositionEvent.COMMITTED_MISSING, -1)

    def on_offset(self, partition: TopicPartition, timestamp: int, offset: int, leader_epoch: int = -1) -> None:
        """Take the offset that was looked up by `timestamp`."""
        entry = self.partitions.get(partition)
        if entry is not None and entry.reset_timestamp == timestamp:
            self._jump(entry, PositionEvent.OFFSET_FOUND, offset, leader_epoch)

    # --- reading --------------------------------------------------------------------------------------------------

    def fetchable(self) -> list[tuple[TopicPartition, PartitionPosition]]:
        """The partitions to fetch from."""
        return [
            (partition, entry)
            for partition, entry in self.partitions.items()
            if entry.state is PositionState.FETCHING and not entry.paused
        ]

    def is_current(self, partition: TopicPartition, generation: int) -> bool:
        """Whether data that was fetched in this generation may still be used."""
        entry = self.partitions.get(partition)
        return entry is not None and entry.generation == generation and entry.state is PositionState.FETCHING

    def advance(self, partition: TopicPartition, position: int, leader_epoch: int) -> None:
        """Records up to `position` were returned to the caller."""
        entry = self[partition]
        if position > entry.position:
            if entry.before is None:
                entry.before = entry.done
                self._in_hand.append(entry)
            entry.position, entry.leader_epoch = position, leader_epoch

    def came_back(self) -> None:
        """The caller is done with the records it was given: it asked for more, or said so."""
        for entry in self._in_hand:
            entry.before = None
        self._in_hand.clear()

    def take_back(self) -> None:
        """The records returned last did not reach the caller: read them again."""
        for entry in self._in_hand:
            if entry.before is not None:
                self._jump(entry, PositionEvent.SEEK, *entry.before)
        self._in_hand.clear()

    def on_commit(self, partition: TopicPartition, offset: int) -> None:
        """The caller has committed this offset: it is done with the records below it."""
        entry = self.partitions.get(partition)
        if entry is not None and entry.before is not None and offset > entry.before[0]:
            entry.before = None if offset >= entry.position else (offset, entry.leader_epoch)

    def on_out_of_range(self, partition: TopicPartition, generation: int) -> None:
        """The broker does not have the position. Raises `OffsetOutOfRange` if the policy is "none"."""
        if not self.is_current(partition, generation):
            return
        entry = self.partitions[partition]
        entry.reset_timestamp = self._reset_timestamp(partition, f"offset {entry.position} is no longer in the log")
        self._jump(entry, PositionEvent.OUT_OF_RANGE, -1)

    def on_another_topic(self, partition: TopicPartition) -> None:
        """The topic was deleted, and another one has its name: the position says nothing about that one.

        It is read from its beginning, also where the policy is "latest": all of it came after what was read so far.
        Raises `OffsetOutOfRange` if the policy is "none".
        """
        entry = self.partitions[partition]
        why = f"the topic was deleted and created again, so offset {entry.position} means nothing there"
        self._reset_timestamp(partition, why)
        entry.reset_timestamp = EARLIEST
        self._jump(entry, PositionEvent.SEEK_BY_TIME, -1)

    def positions(self) -> Mapping[TopicPartition, PartitionPosition]:
        """The partitions whose position is known: a commit stores these."""
        return {p: entry for p, entry in self.partitions.items() if entry.state is PositionState.FETCHING}

    def _jump(self, entry: PartitionPosition, event: PositionEvent, position: int, leader_epoch: int = -1) -> None:
        following = POSITION_TABLE.step(entry.state, event)
        if following is None:
            return
        entry.state, entry.position, entry.leader_epoch, entry.before = following, position, leader_epoch, None
        entry.topic_id = None
        self._generations += 1
        entry.generation = self._generations

    def _reset_timestamp(self, partition: TopicPartition, why: str) -> int:
        timestamp = _RESET_TIMESTAMPS.get(self.reset_policy)
        if timestamp is None:
            raise self._no_reset(partition, why)
        return timestamp

    def _no_reset(self, partition: TopicPartition, why: str) -> KafkaError:
        return OffsetOutOfRange(ErrorCode.OFFSET_OUT_OF_RANGE, f"{partition}: {why}, and auto.offset.reset=none")
