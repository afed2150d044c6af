"""What is known about a partition's replicas, and what a replica asks to be done."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

NO_LEADER = -1


class PartitionState(NamedTuple):
    """The register of a partition in ZooKeeper. It changes only by a write at the version that was read (Z1)."""

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    #: The life of the leader that was elected: a broker that has restarted since does not lead (R1).
    leader_broker_epoch: int = -1
    #: Eligible leaders: who left the in-sync set while it was too small, and so has all that was committed (E5).
    elr: tuple[int, ...] = ()
    controller_epoch: int = 0


def state_with_isr(
    state: PartitionState, isr: Iterable[int], needed: int, unclean: frozenset[int] = frozenset()
) -> PartitionState:
    """The state with another in-sync set (E5): who leaves while fewer than `needed` are in sync stays eligible.

    `unclean` are those that lost what they had written, and are not eligible for anything.
    """
    isr = tuple(isr)
    if len(isr) >= needed:
        elr: tuple[int, ...] = ()
    else:
        elr = tuple(sorted({*state.elr, *state.isr} - set(isr) - unclean))
    return state._replace(isr=isr, elr=elr)


class Epochs(Protocol):
    """Where each leader epoch began in a log (the leader epoch checkpoint)."""

    @property
    def latest(self) -> int: ...

    def end_offset_for(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """(the largest epoch that is not above `epoch`, its end offset); (-1, -1) where there is none."""


class FetchFrom(NamedTuple):
    """A fetch of a follower: what it has, and under which leadership it asks."""

    follower: int
    #: The life of the follower (R8).
    broker_epoch: int
    leader_epoch: int
    offset: int
    #: The leader epoch of its last record; -1 if it has none (R7).
    last_fetched_epoch: int


class Diverging(NamedTuple):
    """The leader's answer to a follower whose log is no part of its own: the last epoch they may share, and its end."""

    epoch: int
    end_offset: int


# What a replica asks to be done


@dataclass(frozen=True, slots=True)
class BeginEpoch:
    """Write (epoch, start) into the leader epoch checkpoint, before anything else is done (R4)."""

    leader_epoch: int
    start_offset: int


@dataclass(frozen=True, slots=True)
class DropEmptyEpochs:
    """Remove the entries of the leader epoch checkpoint at or past the end of the log (R5)."""

    end_offset: int


@dataclass(frozen=True, slots=True)
class HighWatermark:
    """Everything below it is committed."""

    offset: int


@dataclass(frozen=True, slots=True)
class WriteState:
    """Write the register at this version. `joining` is (broker, its epoch), to be checked in the same multi (R8)."""

    state: PartitionState
    version: int
    joining: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ReadState:
    """Sync, then read the register: what it says now decides (Z3)."""


@dataclass(frozen=True, slots=True)
class StepDown:
    """Another leads, or nobody. Whoever waits for this leader is told NOT_LEADER_OR_FOLLOWER."""


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the log, and the leader epoch checkpoint with it. Nothing at or past the offset is kept (R7)."""

    offset: int


@dataclass(frozen=True, slots=True)
class RestartAt:
    """Drop the whole log and begin at the leader's first offset: nothing of ours is there any more."""

    offset: int


@dataclass(frozen=True, slots=True)
class Append:
    """Write the leader's bytes as they are, then say so with `appended` (R10)."""

    base_offset: int
    end_offset: int


Effect = (
    BeginEpoch
    | DropEmptyEpochs
    | HighWatermark
    | WriteState
    | ReadState
    | StepDown
    | Truncate
    | RestartAt
    | Append
)
