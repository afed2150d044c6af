"""The rules of replication (docs/replication.md), in a cluster of three brokers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from semel.broker.replication.feeding import Fed
from semel.broker.replication.membership import Membership
from semel.errors import ErrorCode
from semel.log.following import Following
from semel.log.partition_log import PartitionLog
from semel.machines.controller import admin, decide, elections, registration, writing
from semel.machines.replication import leader
from semel.machines.replication.follower import FollowerReplica, FollowingState
from semel.machines.replication.leader import LeaderReplica
from semel.machines.replication.replica import Replica
from semel.machines.replication.values import FetchFrom, PartitionState, StepDown, WriteState
from semel.machines.values import TopicPartition
from semel.machines.znodes import paths
from semel.machines.znodes.operations import ANY_VERSION, Multi, SetData
from semel.machines.znodes.values import encode_state
from semel.simulation.ablations import Patch, ablation, nothing

in_a_cluster = partial(ablation, brokers=3, faults_per_minute=60)

CUTS = ("brokers cut off from each other", "broker cut off from all others")
KILLS = ("leader killed", "broker killed", "session expired")
LOST = ("answers of ZooKeeper lost", "ZooKeeper lags")
DIES_WHILE = "leader dies while a follower catches up"
POWER = ("last in sync loses its power",)


@in_a_cluster(
    "Z1: a register changes only at the version that was read", "idempotent", faults=("broker taken for dead",)
)
def without_z1(patch: Patch) -> None:
    def write(partition: TopicPartition, state: PartitionState, version: int) -> SetData:
        return SetData(paths.state(*partition), encode_state(state), ANY_VERSION)

    for module in (writing, decide, registration, admin):
        patch.set(module, "write_state", write)


@in_a_cluster("E4: who lost its power leaves the in-sync sets", "idempotent", faults=("power lost",))
def without_e4(patch: Patch) -> None:
    async def stays(self: Membership) -> None:
        return

    patch.set(Membership, "_leave_uncleanly", stays)


@in_a_cluster("E5: who leaves a set that is too small becomes eligible", "idempotent", faults=POWER, duration_s=15)
def without_e5(patch: Patch) -> None:
    def none_eligible(
        state: PartitionState, isr: Iterable[int], needed: int, unclean: frozenset[int] = frozenset()
    ) -> PartitionState:
        return state._replace(isr=tuple(isr), elr=())

    for module in (leader, elections):
        patch.set(module, "state_with_isr", none_eligible)


@in_a_cluster(
    "R2: the in-sync set that was asked for counts as well",
    "idempotent",
    faults=("in-sync set grows unheard",),
    faults_per_minute=10,
)
def without_r2(patch: Patch) -> None:
    patch.set(LeaderReplica, "counted", property(lambda self: set(self.state.isr)))


@in_a_cluster(
    "R2: the in-sync set that was read counts until it is written",
    "idempotent",
    faults=("in-sync set shrinks unwritten",),
    faults_per_minute=10,
)
def without_r2_of_a_shrink(patch: Patch) -> None:
    patch.set(LeaderReplica, "counted", property(lambda self: set((self.wished or self.state).isr)))


@in_a_cluster("R3: nothing is committed while too few are in sync", "idempotent", faults=POWER, duration_s=15)
def without_r3(patch: Patch) -> None:
    patch.set(LeaderReplica, "has_enough_replicas", property(lambda self: True))


@in_a_cluster("R4: a leadership begins with its entry in the checkpoint", "idempotent", faults=(*CUTS, *KILLS))
def without_r4(patch: Patch) -> None:
    def begin(self: PartitionLog, epoch: int) -> None:
        self.leader_epoch = max(self.leader_epoch, epoch)

    patch.set(PartitionLog, "begin_leader_epoch", begin)


@in_a_cluster(
    "R5: following begins without entries past the end",
    "idempotent",
    faults=("leadership without a record",),
    faults_per_minute=10,
)
def without_r5(patch: Patch) -> None:
    def begin(self: Following, epoch: int) -> None:
        self._log.leader_epoch = max(self._log.leader_epoch, epoch)
        self._log.epoch_is_on_disk = False

    patch.set(Following, "begin", begin)


def _validated_once(patch: Patch) -> None:
    """As followers did before Fetch 12: what was validated once under a leader epoch is not looked at again."""
    next_request = FollowerReplica.next_request

    def asked(self: FollowerReplica, now_ms: int) -> Any:
        fetch = next_request(self, now_ms)
        fetching = isinstance(fetch, FetchFrom) and self.status is FollowingState.FETCHING
        return fetch._replace(last_fetched_epoch=-1) if isinstance(fetch, FetchFrom) and fetching else fetch

    patch.set(FollowerReplica, "next_request", asked)


@in_a_cluster(
    "R6: both speak of one leader epoch, where a log is validated once",
    "idempotent",
    faults=("leader is back unheard",),
    faults_per_minute=15,
)
def without_r6(patch: Patch) -> None:
    patch.set(LeaderReplica, "_fence", lambda self, fetch: ErrorCode.NONE)
    patch.set(FollowerReplica, "_is_late", lambda self, leader_epoch: False)
    read = Fed.read

    def read_under_any_epoch(self: Fed, left_bytes: int, *, is_first: bool) -> Any:
        replica = None if self.partition is None else self.partition.replica
        if replica is not None and replica.leader is not None:
            self.fetch = self.fetch._replace(leader_epoch=replica.leader.state.leader_epoch)
        return read(self, left_bytes, is_first=is_first)

    patch.set(Fed, "read", read_under_any_epoch)
    _validated_once(patch)


@in_a_cluster("R7: where logs part the follower's is cut", "idempotent", faults=(*CUTS, *KILLS))
def without_r7(patch: Patch) -> None:
    patch.set(LeaderReplica, "_diverging", lambda self, fetch, epochs: None)


def _resigns_and_forgets(patch: Patch) -> None:
    def resign(self: Replica) -> list[Any]:
        self.role = None
        return [StepDown()]

    patch.set(Replica, "resign", resign)


STOPS = ("rolling restart", "killed while writing", "broker taken for dead")


@in_a_cluster(
    "R7: who resigned knows the epoch of its last record",
    "timeouts",
    faults=STOPS,
    unseen_because="a broker that stops takes no role, and a new life reads its log",
)
def without_r7_of_who_resigned(patch: Patch) -> None:
    _resigns_and_forgets(patch)


@in_a_cluster("R7: the same, where a broker that stops takes a role", "timeouts", faults=STOPS, durability="fsync")
def without_r7_of_who_stops(patch: Patch) -> None:
    _resigns_and_forgets(patch)
    patch.set(Membership, "_has_left", property(lambda self: False, nothing), of_instances=True)


@in_a_cluster(
    "R8: who enters the set has all that is committed", "idempotent", faults=(DIES_WHILE,), faults_per_minute=10
)
def without_r8(patch: Patch) -> None:
    patch.set(LeaderReplica, "_may_enter", lambda self, fetch: fetch.follower not in self.counted)


@in_a_cluster(
    "R8: who enters the set has this leadership's beginning", "idempotent", faults=(DIES_WHILE,), faults_per_minute=10
)
def without_r8_beginning(patch: Patch) -> None:
    patch.set(
        LeaderReplica,
        "_may_enter",
        lambda self, fetch: fetch.follower not in self.counted and fetch.offset >= self.high_watermark,
    )


@in_a_cluster(
    "R8: who enters the set is in the life that has fetched",
    "idempotent",
    faults=("reboot races an entry into the set",),
    durability="os",
    faults_per_minute=10,
)
def without_r8_life(patch: Patch) -> None:
    from semel.broker.replication import replica

    def write(partition: TopicPartition, effect: WriteState) -> Multi:
        return Multi((writing.write_state(partition, effect.state, effect.version),))

    patch.set(replica, "leader_write", write)
