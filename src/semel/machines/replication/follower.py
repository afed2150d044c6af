"""A follower of a partition: it makes its log a copy of the leader's, and takes nothing that the leader has not.

Guarantees: under each leader epoch the log is validated before anything is taken (R7). Where the logs part, ours is
cut, and nothing else is taken from that answer. An answer to a fetch of another leader epoch is dropped (R6). The high
watermark never passes our own end (R10).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

from semel.machines.replication.values import (
    Append,
    Diverging,
    Effect,
    Epochs,
    FetchFrom,
    HighWatermark,
    PartitionState,
    RestartAt,
    Truncate,
)
from semel.machines.table import StateTable


class FollowingState(enum.Enum):
    """What the next request to the leader is for."""

    VALIDATING = "is our log a part of the leader's?"
    FETCHING = "our log is a part of the leader's: more of it"
    OUT_OF_RANGE = "our offset is not in the leader's log: where does it begin and end?"
    WAITING = "after an error, or without a leader"


class FollowingEvent(enum.Enum):
    """What answers it. The value is the event's name on the page."""

    DATA = "data"
    DIVERGING = "the logs part"
    FENCED = "FENCED_LEADER_EPOCH"
    UNKNOWN_EPOCH = "UNKNOWN_LEADER_EPOCH"
    OFFSET_OUT_OF_RANGE = "OFFSET_OUT_OF_RANGE"
    OFFSETS = "the leader's first and last offset"
    DISCONNECTED = "no answer, or another error"
    BACK_OFF_OVER = "the wait is over"
    REGISTER = "another leadership"


_S, _E = FollowingState, FollowingEvent

#: A blank cell changes nothing: the answer came too late, or to another question.
FOLLOWING_STEPS: dict[FollowingState, dict[FollowingEvent, FollowingState]] = {
    _S.VALIDATING: {
        _E.DATA: _S.FETCHING,
        _E.DIVERGING: _S.VALIDATING,
        _E.FENCED: _S.WAITING,
        _E.UNKNOWN_EPOCH: _S.WAITING,
        _E.OFFSET_OUT_OF_RANGE: _S.OUT_OF_RANGE,
        _E.DISCONNECTED: _S.WAITING,
        _E.REGISTER: _S.VALIDATING,
    },
    _S.FETCHING: {
        _E.DATA: _S.FETCHING,
        _E.DIVERGING: _S.VALIDATING,
        _E.FENCED: _S.WAITING,
        _E.UNKNOWN_EPOCH: _S.WAITING,
        _E.OFFSET_OUT_OF_RANGE: _S.OUT_OF_RANGE,
        _E.DISCONNECTED: _S.WAITING,
        _E.REGISTER: _S.VALIDATING,
    },
    _S.OUT_OF_RANGE: {
        _E.FENCED: _S.WAITING,
        _E.UNKNOWN_EPOCH: _S.WAITING,
        _E.OFFSETS: _S.VALIDATING,
        _E.DISCONNECTED: _S.WAITING,
        _E.REGISTER: _S.VALIDATING,
    },
    _S.WAITING: {_E.BACK_OFF_OVER: _S.VALIDATING, _E.REGISTER: _S.VALIDATING},
}

FOLLOWING_TABLE: StateTable[FollowingState, FollowingEvent, FollowingState | None] = StateTable(
    FollowingState, FollowingEvent, FOLLOWING_STEPS, blank=None
)


class AskOffsets(NamedTuple):
    """ListOffsets to the leader: its first and its last offset."""

    leader: int
    leader_epoch: int


@dataclass(slots=True)
class FollowerReplica:
    broker_id: int
    broker_epoch: int
    state: PartitionState
    version: int
    #: The end of what is written; with fsync, of what is on disk: from there it fetches (R10).
    end_offset: int
    high_watermark: int
    #: The leader epoch of the last record; -1 in an empty log.
    last_epoch: int = -1
    back_off_ms: int = 1_000
    status: FollowingState = FollowingState.VALIDATING
    #: While WAITING: until when.
    waits_until_ms: int = 0

    def _step(self, event: FollowingEvent) -> bool:
        target = FOLLOWING_TABLE.step(self.status, event)
        if target is None:
            return False
        self.status = target
        return True

    # --- asking

    def next_request(self, now_ms: int) -> FetchFrom | AskOffsets | None:
        """What to send to the leader now. None: nobody leads, or it is not time yet (`waits_until_ms`)."""
        if self.state.leader < 0:
            return None
        if self.status is FollowingState.WAITING:
            if now_ms < self.waits_until_ms:
                return None
            self._step(FollowingEvent.BACK_OFF_OVER)
        if self.status is FollowingState.OUT_OF_RANGE:
            return AskOffsets(self.state.leader, self.state.leader_epoch)
        return FetchFrom(
            self.broker_id, self.broker_epoch, self.state.leader_epoch, self.end_offset, self.last_epoch
        )

    # --- answers; each carries the leader epoch of its request

    def _is_late(self, leader_epoch: int) -> bool:
        return leader_epoch != self.state.leader_epoch

    def data(self, leader_epoch: int, base_offset: int, end_offset: int, high_watermark: int) -> list[Effect]:
        """Records from `base_offset` to `end_offset`; both are our end if there are none."""
        if self._is_late(leader_epoch) or base_offset != self.end_offset or not self._step(FollowingEvent.DATA):
            return []
        if end_offset > base_offset:
            return [Append(base_offset, end_offset), *self._know(high_watermark, end_offset)]
        return self._know(high_watermark, self.end_offset)

    def _know(self, high_watermark: int, end_offset: int) -> list[Effect]:
        offset = min(high_watermark, end_offset)  # R10
        if offset <= self.high_watermark:
            return []
        self.high_watermark = offset
        return [HighWatermark(offset)]

    def appended(self, end_offset: int, last_epoch: int) -> None:
        """What `Append` asked for is written."""
        self.end_offset, self.last_epoch = end_offset, last_epoch

    def diverging(self, leader_epoch: int, diverging: Diverging, epochs: Epochs) -> list[Effect]:
        """The logs part: cut ours where the last epoch that both know ends on either side (R7)."""
        if self._is_late(leader_epoch) or not self._step(FollowingEvent.DIVERGING):
            return []
        _, own_end = epochs.end_offset_for(diverging.epoch, self.end_offset)
        if own_end < 0:
            own_end = self.end_offset
        return [Truncate(min(diverging.end_offset, own_end, self.end_offset))]

    def truncated(self, end_offset: int, last_epoch: int) -> None:
        """What `Truncate` or `RestartAt` asked for is done."""
        self.end_offset, self.last_epoch = end_offset, last_epoch
        self.high_watermark = min(self.high_watermark, end_offset)

    def offsets(self, leader_epoch: int, start_offset: int, end_offset: int) -> list[Effect]:
        """Where the leader's log begins and ends, after OFFSET_OUT_OF_RANGE."""
        if self._is_late(leader_epoch) or not self._step(FollowingEvent.OFFSETS):
            return []
        if end_offset < self.end_offset:
            return [Truncate(end_offset)]
        if start_offset > self.end_offset:
            return [RestartAt(start_offset)]
        return []

    def failed(self, leader_epoch: int, event: FollowingEvent, now_ms: int) -> None:
        """An error in place of an answer: FENCED, UNKNOWN_EPOCH, OFFSET_OUT_OF_RANGE or DISCONNECTED."""
        if not self._is_late(leader_epoch) and self._step(event) and self.status is FollowingState.WAITING:
            self.waits_until_ms = now_ms + self.back_off_ms

    # --- the register

    def register(self, state: PartitionState, version: int) -> None:
        """What ZooKeeper says, if it is newer (Z7). Every other leadership is validated anew (R7)."""
        if version <= self.version:
            return
        if (state.leader, state.leader_epoch) != (self.state.leader, self.state.leader_epoch):
            self._step(FollowingEvent.REGISTER)
        self.state, self.version = state, version
