"""The leader of a partition: how far is committed, who is in sync, and when it must stop leading.

Guarantees: what is below the high watermark is on every replica that ZooKeeper may name as in sync (R2), also while a
change of the set is on its way or its answer is lost. A follower enters the set only with all that is committed and all
of this leadership's beginning (R8), and leaves it only by a write (R9). Below the needed number of replicas nothing is
committed (R3). Another leader epoch in the register ends this one.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from semel.errors import ErrorCode
from semel.machines.replication.values import (
    Diverging,
    Effect,
    Epochs,
    FetchFrom,
    HighWatermark,
    PartitionState,
    ReadState,
    StepDown,
    WriteState,
    state_with_isr,
)
from semel.machines.table import StateTable


class LeadershipState(enum.Enum):
    """Whether a change of the in-sync set is on its way."""

    STABLE = "the in-sync set is the one that was read"
    GROWING = "a follower was asked into the set"
    SHRINKING = "followers were asked out of the set"
    UNSURE = "the write was refused or its answer is lost"
    RESIGNED = "another leads"


class LeadershipEvent(enum.Enum):
    """What changes it. The value is the event's name on the page."""

    CAUGHT_UP = "a follower has caught up"
    LAGS = "a follower lags"
    WRITTEN = "the write is done"
    REFUSED = "the write is refused"
    ANSWER_LOST = "the answer is lost"
    READ = "the register names this leadership"
    REPLACED = "the register names another"


_S, _E = LeadershipState, LeadershipEvent

#: A blank cell changes nothing.
LEADERSHIP_STEPS: dict[LeadershipState, dict[LeadershipEvent, LeadershipState]] = {
    _S.STABLE: {_E.CAUGHT_UP: _S.GROWING, _E.LAGS: _S.SHRINKING, _E.READ: _S.STABLE, _E.REPLACED: _S.RESIGNED},
    _S.GROWING: {
        _E.WRITTEN: _S.STABLE,
        _E.REFUSED: _S.UNSURE,
        _E.ANSWER_LOST: _S.UNSURE,
        _E.READ: _S.STABLE,
        _E.REPLACED: _S.RESIGNED,
    },
    _S.SHRINKING: {
        _E.WRITTEN: _S.STABLE,
        _E.REFUSED: _S.UNSURE,
        _E.ANSWER_LOST: _S.UNSURE,
        _E.READ: _S.STABLE,
        _E.REPLACED: _S.RESIGNED,
    },
    _S.UNSURE: {_E.READ: _S.STABLE, _E.REPLACED: _S.RESIGNED},
    _S.RESIGNED: {},
}

LEADERSHIP_TABLE: StateTable[LeadershipState, LeadershipEvent, LeadershipState | None] = StateTable(
    LeadershipState, LeadershipEvent, LEADERSHIP_STEPS, blank=None
)


class Progress(NamedTuple):
    """How far a follower has come, by its fetches under this leadership. Kafka's arithmetic (R9)."""

    #: -1 before its first fetch.
    offset: int = -1
    broker_epoch: int = -1
    last_fetch_ms: int = 0
    #: The leader's end when it fetched last: at or past that, it was caught up then.
    leader_end_then: int = -1
    last_caught_up_ms: int = 0

    def after(self, fetch: FetchFrom, leader_end: int, now_ms: int) -> Progress:
        caught_up_ms = self.last_caught_up_ms
        if fetch.offset >= leader_end:
            caught_up_ms = max(caught_up_ms, now_ms)
        elif fetch.offset >= self.leader_end_then >= 0:
            caught_up_ms = max(caught_up_ms, self.last_fetch_ms)
        return Progress(fetch.offset, fetch.broker_epoch, now_ms, leader_end, caught_up_ms)


class Fetched(NamedTuple):
    """What a fetch leads to: an error, the point where the logs part, or data from the offset on; and what to do."""

    error: ErrorCode = ErrorCode.NONE
    diverging: Diverging | None = None
    effects: tuple[Effect, ...] = ()


@dataclass(slots=True)
class LeaderReplica:
    """One leadership, from the register that gave it to the register that ends it."""

    broker_id: int
    replicas: tuple[int, ...]
    #: The number of replicas in sync that it takes to commit: min(min.insync.replicas, replication factor).
    needed: int
    lag_time_max_ms: int
    state: PartitionState
    #: The register's version that `state` was read at.
    version: int
    end_offset: int
    high_watermark: int
    #: Where this leader epoch begins.
    start_offset: int
    now_ms: int = 0
    followers: dict[int, Progress] = field(default_factory=dict)
    status: LeadershipState = LeadershipState.STABLE
    #: The state that was asked for, until the register shows what has become of it.
    wished: PartitionState | None = None
    #: With fsync: how far this broker's own disk has the log. None: what is written counts.
    durable_offset: int | None = None

    def __post_init__(self) -> None:
        if not self.followers:
            in_sync = set(self.state.isr)
            self.followers = {
                follower: Progress(last_caught_up_ms=self.now_ms if follower in in_sync else 0)
                for follower in self.replicas
                if follower != self.broker_id
            }

    # --- what is committed

    @property
    def counted(self) -> set[int]:
        """Who must have a record before it is committed: the set, united with the one that was asked for (R2)."""
        return {*self.state.isr, *(self.wished.isr if self.wished is not None else ())}

    @property
    def has_enough_replicas(self) -> bool:
        """Whether a produce with acks=all is taken (P3).

        Nor while somebody is eligible: `needed` may have been lowered since, and who is eligible lacks what would be
        committed now.
        """
        return len(self.state.isr) >= self.needed and not self.state.elr

    @property
    def knows_its_high_watermark(self) -> bool:
        """Before, LATEST is answered with OFFSET_NOT_AVAILABLE, and no coordinator serves (R12)."""
        return self.high_watermark >= self.start_offset

    def appended(self, end_offset: int, seen: Iterable[tuple[int, int]] = ()) -> list[Effect]:
        """The log has grown to this end. `seen`: when followers that do not repeat where they are have fetched last:
        one at the old end was caught up until then (R9)."""
        if end_offset > self.end_offset:
            for follower, seen_ms in seen:
                progress = self.followers.get(follower)
                if (
                    progress is not None
                    and progress.offset == self.end_offset
                    and seen_ms > progress.last_caught_up_ms
                ):
                    self.followers[follower] = progress._replace(last_caught_up_ms=seen_ms)
        self.end_offset = end_offset
        return self._advance()

    def durable(self, offset: int) -> list[Effect]:
        """With fsync: this broker's disk has everything below this offset."""
        self.durable_offset = offset
        return self._advance()

    def _advance(self) -> list[Effect]:
        if not self.has_enough_replicas:  # R3
            return []
        offset = self.end_offset if self.durable_offset is None else min(self.end_offset, self.durable_offset)
        for member in self.counted:
            if member != self.broker_id:
                progress = self.followers.get(member)
                offset = min(offset, progress.offset if progress is not None else -1)
        if offset <= self.high_watermark:
            return []
        self.high_watermark = offset
        return [HighWatermark(offset)]

    def assigned(self, replicas: tuple[int, ...], needed: int) -> list[Effect]:
        """The partition has other replicas now (E9), or takes another number of them to commit."""
        self.replicas, self.needed = replicas, needed
        for follower in replicas:
            if follower != self.broker_id:
                self.followers.setdefault(follower, Progress())
        for follower in self.followers.keys() - {*replicas} - self.counted:
            del self.followers[follower]
        return self._advance()

    # --- followers

    def fetched(self, fetch: FetchFrom, epochs: Epochs, now_ms: int, *, may_join: bool = True) -> Fetched:
        """A follower asks. `epochs` is this log's checkpoint; `may_join` is False for a broker that is leaving."""
        error = self._fence(fetch)
        if error is not ErrorCode.NONE:
            return Fetched(error)
        diverging = self._diverging(fetch, epochs)
        if diverging is not None and diverging.epoch >= 0:
            return Fetched(diverging=diverging)
        if diverging is not None or fetch.offset > self.end_offset:
            return Fetched(ErrorCode.OFFSET_OUT_OF_RANGE)
        progress = self.followers.get(fetch.follower)
        if progress is None:
            return Fetched(ErrorCode.NOT_LEADER_OR_FOLLOWER)  # no replica of it is assigned there
        if fetch.broker_epoch < progress.broker_epoch:
            return Fetched(ErrorCode.STALE_BROKER_EPOCH)  # a late fetch of an earlier life
        self.followers[fetch.follower] = progress.after(fetch, self.end_offset, now_ms)
        effects = self._advance()
        if may_join and self._may_enter(fetch):
            isr = (*self.state.isr, fetch.follower)
            effects += self._ask(LeadershipEvent.CAUGHT_UP, isr, (fetch.follower, fetch.broker_epoch))
        return Fetched(effects=tuple(effects))

    def _fence(self, fetch: FetchFrom) -> ErrorCode:
        """Both sides must speak of the same leadership (R6)."""
        if self.status is LeadershipState.RESIGNED:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if fetch.leader_epoch < self.state.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        if fetch.leader_epoch > self.state.leader_epoch:
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE

    def _diverging(self, fetch: FetchFrom, epochs: Epochs) -> Diverging | None:
        """Where the follower's log stops being a part of this one; None if it is one (R7)."""
        if fetch.last_fetched_epoch < 0:
            return None
        epoch, end = epochs.end_offset_for(fetch.last_fetched_epoch, self.end_offset)
        if epoch == fetch.last_fetched_epoch and fetch.offset <= end:
            return None
        return Diverging(epoch, end)

    def _may_enter(self, fetch: FetchFrom) -> bool:
        """All that is committed, and at least this leadership's beginning (R8)."""
        return fetch.follower not in self.counted and fetch.offset >= max(self.high_watermark, self.start_offset)

    def tick(self, now_ms: int) -> list[Effect]:
        """Followers that were not caught up for replica.lag.time.max.ms leave the set (R9)."""
        lagging = {follower for follower in self.state.isr if self._lags(follower, now_ms)}
        if not lagging:
            return []
        return self._ask(LeadershipEvent.LAGS, (each for each in self.state.isr if each not in lagging), None)

    def _lags(self, follower: int, now_ms: int) -> bool:
        if follower == self.broker_id:
            return False
        progress = self.followers.get(follower, Progress())
        return progress.offset != self.end_offset and now_ms - progress.last_caught_up_ms > self.lag_time_max_ms

    def next_tick_ms(self, now_ms: int) -> int | None:
        """When `tick` might have something to do; None if every follower in the set is at the end of the log."""
        waits = [
            self.followers.get(follower, Progress()).last_caught_up_ms + self.lag_time_max_ms + 1
            for follower in self.state.isr
            if follower != self.broker_id and self.followers.get(follower, Progress()).offset != self.end_offset
        ]
        return max(now_ms, min(waits)) if waits else None

    # --- the register

    def _step(self, event: LeadershipEvent) -> bool:
        target = LEADERSHIP_TABLE.step(self.status, event)
        if target is None:
            return False
        self.status = target
        return True

    def _ask(self, event: LeadershipEvent, isr: Iterable[int], joining: tuple[int, int] | None) -> list[Effect]:
        """Ask for another set, one change at a time. Until it is decided both sets count."""
        if not self._step(event):
            return []
        self.wished = state_with_isr(self.state, isr, self.needed)
        return [WriteState(self.wished, self.version, joining)]

    def written(self, asked_version: int, version: int) -> list[Effect]:
        """The write that was asked for at `asked_version` is done; the register has `version` now."""
        if asked_version != self.version or self.wished is None or not self._step(LeadershipEvent.WRITTEN):
            return []
        self.state, self.version, self.wished = self.wished, version, None
        return self._advance()

    def not_written(self, asked_version: int, *, refused: bool) -> list[Effect]:
        """Refused, or nobody knows (Z3): the wish counts until the register was read again."""
        event = LeadershipEvent.REFUSED if refused else LeadershipEvent.ANSWER_LOST
        if asked_version != self.version or not self._step(event):
            return []
        return [ReadState()]

    def register(self, state: PartitionState, version: int, *, synced: bool = False) -> list[Effect]:
        """What ZooKeeper says. Only a newer version counts (Z7); after a sync the same one decides the wish."""
        if version < self.version or (version == self.version and not (synced and self.wished is not None)):
            return []
        mine = (self.broker_id, self.state.leader_epoch, self.state.leader_broker_epoch)
        if (state.leader, state.leader_epoch, state.leader_broker_epoch) != mine:
            if not self._step(LeadershipEvent.REPLACED):
                return []
            self.wished = None
            return [StepDown()]
        if not self._step(LeadershipEvent.READ):
            return []
        self.state, self.version, self.wished = state, version, None
        return self._advance()
