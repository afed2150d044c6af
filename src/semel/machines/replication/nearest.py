"""From which replica a client reads (KIP-392), as Kafka's RackAwareReplicaSelector decides.

Guarantees: only a replica in the in-sync set, whose log has the offset, is named. Where the leader is as near, it is
the leader.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from semel.machines.replication.leader import LeaderReplica


class Candidate(NamedTuple):
    """A live follower, and where its log begins."""

    broker: int
    rack: str | None
    start_offset: int


def nearest_replica(
    leader: LeaderReplica, leader_rack: str | None, followers: Iterable[Candidate], client_rack: str, offset: int
) -> int | None:
    """The broker that a client in this rack should read from; None: the leader."""
    if not client_rack or leader_rack == client_rack:
        return None
    found: tuple[int, int, int] | None = None
    for follower in followers:
        progress = leader.followers.get(follower.broker)
        if (
            follower.rack == client_rack
            and progress is not None
            and follower.broker in leader.state.isr
            and 0 <= follower.start_offset <= offset <= progress.offset
        ):
            # The one that has most; of several the one that was caught up last.
            seen = progress.offset, progress.last_caught_up_ms, -follower.broker
            if found is None or seen > found:
                found = seen
    return None if found is None else -found[2]
