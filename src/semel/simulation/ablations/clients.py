"""The safeguards of clients and of groups."""

from __future__ import annotations

from typing import Any

from semel.client.session import AsyncTransactSession
from semel.errors import ErrorCode
from semel.machines.groups.classic.member import ClassicMembership
from semel.machines.groups.offsets import GroupOffsets
from semel.machines.producing.accumulator import with_producer
from semel.machines.producing.sender import Sender
from semel.machines.transactions.requests import GroupMetadata
from semel.simulation.ablations import Patch, ablation, nothing


@ablation("offsets are committed in the transaction", "copying-eager", faults=("client killed", "slow network"))
def without_offsets_are_committed_in_the_transaction(patch: Patch) -> None:
    async def commit(self: AsyncTransactSession) -> None:
        if self._producer.in_transaction:
            await self._producer.commit_transaction()
            await self._consumer.commit()

    patch.set(AsyncTransactSession, "commit", commit)


@ablation("a stale member's offsets are refused", "copying-eager", "copying-consumer", faults=("client paused",),
          duration_s=25)
def without_a_stale_member_s_offsets_are_refused(patch: Patch) -> None:
    patch.set(GroupOffsets, "_validate_txn_commit", nothing)


@ablation("a batch that did not commit is read again", "copying-eager", faults=("cut", "disk full", "I/O error once"))
def without_a_batch_that_did_not_commit_is_read_again(patch: Patch) -> None:
    from semel.client.consumer.consumer import AsyncConsumer

    patch.set(AsyncConsumer, "rewind", nothing)


@ablation("a refused commit does not disturb a join", "reading-cooperative", faults=("pieces",), duration_s=20)
def without_a_refused_commit_does_not_disturb_a_join(patch: Patch) -> None:
    """An old bug: a member whose commit was refused while it joined forgot its id, and the group waited for it."""

    def on_commit_refused(self: ClassicMembership, code: ErrorCode, committed_as: GroupMetadata) -> None:
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.member_id = ""
            self._lose()

    patch.set(ClassicMembership, "on_commit_refused", on_commit_refused)


@ablation(
    "retries keep their order",
    "in-flight", faults=("lost answers", "reset", "broker killed"),
    unseen_because="the broker refuses what comes out of order",
)
def without_retries_keep_their_order(patch: Patch) -> None:
    """Whatever may be sent again is sent again, whoever is before it."""

    def sendable(self: Sender, partition: Any) -> int | None:
        lane = self._lanes.get(partition)
        again = [] if lane is None else [batch for batch in lane.unfinished if not batch.on_wire]
        return min(batch.not_before_ms for batch in again) if again else original(self, partition)

    def take(self: Sender, partition: Any) -> Any:
        lane = self._lanes.get(partition)
        again = [] if lane is None else [batch for batch in lane.unfinished if not batch.on_wire]
        if not again:
            return original_take(self, partition)
        batch = again[-1]
        batch.on_wire = True
        batch.attempts += 1
        return batch

    original, original_take = Sender._sendable_at_ms, Sender._take
    patch.set(Sender, "_sendable_at_ms", sendable)
    patch.set(Sender, "_take", take)


@ablation("a retry is the same bytes", "idempotent", faults=("lost answers", "reset"))
def without_a_retry_is_the_same_bytes(patch: Patch) -> None:
    """A retry is encoded anew, under the next sequence that is free."""
    original = Sender._take

    def take(self: Sender, partition: Any) -> Any:
        batch = original(self, partition)
        if batch.attempts > 1 and batch.identity is not None:
            lane = self._lanes[partition]
            identity = batch.identity
            batch.data = with_producer(
                batch.data or b"", identity.producer_id, identity.producer_epoch, lane.next_sequence, False
            )
        return batch

    patch.set(Sender, "_take", take)
