"""Each safeguard of the coordinator is needed: with it a story ends well, without it the same story fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from semel.errors import ErrorCode, InvariantViolation, Refused
from semel.machines.transactions import coordinator as transaction_coordinator
from semel.machines.transactions import metadata as transaction_metadata
from semel.machines.transactions.shard import Shard
from semel.machines.transactions.states import TransactionState
from semel.machines.values import ProducerIdentity
from tests.machines.transactions.transaction_driver import T0, T1, TransactionDriver, metadata_in

Story = Callable[[TransactionDriver], None]
Remove = Callable[[pytest.MonkeyPatch], None]


def a_zombie_cannot_add_to_or_end_what_its_successor_does(driver: TransactionDriver) -> None:
    zombie = driver.producer()
    successor = driver.producer()
    assert driver.produce(successor, T0) is ErrorCode.NONE
    assert driver.add(zombie, T1) is ErrorCode.PRODUCER_FENCED
    assert driver.commit(zombie, version=4) is ErrorCode.PRODUCER_FENCED
    assert driver.metadata().partitions == {T0}
    assert driver.commit(successor) is ErrorCode.NONE


def a_zombie_cannot_end_its_successors_transaction_under_v2(driver: TransactionDriver) -> None:
    zombie = driver.producer()
    successor = driver.producer()
    assert driver.produce(successor, T0) is ErrorCode.NONE
    assert driver.commit(zombie) is ErrorCode.PRODUCER_FENCED
    assert driver.commit(successor) is ErrorCode.NONE


def a_zombie_cannot_renew_itself(driver: TransactionDriver) -> None:
    zombie = driver.producer()
    successor = driver.producer()
    driver.produce(successor, T0)
    assert driver.init(identity=zombie).error_code == ErrorCode.PRODUCER_FENCED
    assert driver.state() == "Ongoing"


def nobody_decides_while_a_decision_is_being_written(driver: TransactionDriver) -> None:
    producer = driver.producer()
    driver.produce(producer, T0)
    commit = driver.end_decision(producer, True)
    assert driver.abort(producer) is ErrorCode.CONCURRENT_TRANSACTIONS
    driver.perform(commit)
    driver.write_markers()
    assert {sent.commit for sent, _ in driver.written} == {True}


def a_delayed_end_cannot_end_the_next_transaction(driver: TransactionDriver) -> None:
    producer = driver.producer()
    driver.produce(producer, T0)
    following = driver.commit_v2(producer)
    driver.produce(following, T0)
    assert driver.abort(producer) is ErrorCode.PRODUCER_FENCED
    assert driver.state() == "Ongoing"


def an_absent_owner_is_fenced_by_timeout(driver: TransactionDriver) -> None:
    owner = driver.producer()
    driver.produce(owner, T0)
    driver.tick(60_001)
    driver.write_markers()
    assert driver.produce(owner, T0) is ErrorCode.PRODUCER_FENCED


def a_report_from_before_a_reload_completes_nothing(driver: TransactionDriver) -> None:
    producer = driver.producer()
    driver.produce(producer, T0)
    driver.commit(producer)
    before = driver.waiting[0]
    driver.start()
    assert driver.waiting[0].coordinator_epoch > before.coordinator_epoch
    driver.perform(driver.coordinator.markers_written(before, driver.now_ms))
    assert driver.state() == "PrepareCommit"
    driver.write_markers()
    assert driver.state() == "CompleteCommit"


def a_commit_is_completed_once_however_often_it_is_reported(driver: TransactionDriver) -> None:
    producer = driver.producer()
    driver.produce(producer, T0)
    driver.commit(producer)
    sent = driver.waiting[0]
    first = driver.coordinator.markers_written(sent, driver.now_ms)
    assert driver.coordinator.markers_written(sent, driver.now_ms).records == ()
    driver.perform(first)
    assert driver.state() == "CompleteCommit"


def the_last_epoch_is_never_exceeded(driver: TransactionDriver) -> None:
    driver.place(_at_epoch(32766))
    reply = driver.end(ProducerIdentity(77, 32766), True)
    assert (reply.error_code, reply.producer_epoch) == (ErrorCode.NONE, 0)
    assert reply.producer_id != 77
    driver.write_markers()
    assert driver.produce(ProducerIdentity(reply.producer_id, 0), T0) is ErrorCode.NONE


def a_failed_write_is_forgotten(driver: TransactionDriver) -> None:
    producer = driver.producer()
    driver.append_fails = True
    driver.produce(producer, T0)
    driver.append_fails = False
    assert driver.produce(producer, T0) is ErrorCode.NONE


def _at_epoch(epoch: int) -> transaction_metadata.TransactionMetadata:
    return metadata_in(TransactionState.ONGOING, epoch=epoch)


def without_epoch_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transaction_coordinator, "writer_of", lambda metadata, identity: metadata)


def without_owner_epoch_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transaction_metadata, "owner_of", lambda metadata, identity: metadata)
    patch.setattr(transaction_metadata, "is_repeated_end", lambda metadata, identity: False)


def without_renewal_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transaction_coordinator, "may_renew", lambda metadata, expected: True)


def without_pending_check(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shard, "check_not_pending", lambda self, transactional_id: None)


def without_epoch_bump_at_end(patch: pytest.MonkeyPatch) -> None:
    original = transaction_metadata.after_prepare

    def unbumped(old: Any, state: Any, version: int, *rest: Any) -> Any:
        return original(old, state, 0, *rest)

    patch.setattr(transaction_metadata, "after_prepare", unbumped)


def without_epoch_bump_for_an_absent_owner(patch: pytest.MonkeyPatch) -> None:
    def unbumped(old: Any, version: int, now_ms: int, *rest: Any) -> Any:
        return transaction_metadata.after_prepare(old, TransactionState.PREPARE_ABORT, 0, now_ms, None)

    patch.setattr(transaction_coordinator, "after_fence", unbumped)


def without_identity_of_reports(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Shard, "completion_of", lambda self, sent: self.completions.get(sent.transactional_id))


def without_rotation(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(transaction_metadata.TransactionMetadata, "is_exhausted", lambda self: False)


def without_clearing_after_failure(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        transaction_coordinator.TransactionCoordinator,
        "append_failed",
        lambda self, decision, code=None: decision.reply,
    )


class _NeverPending(dict[str, Any]):
    def __contains__(self, key: object) -> bool:
        return False


def without_exactly_once_completion(patch: pytest.MonkeyPatch) -> None:
    original = Shard.completion_of

    def forgetful(self: Shard, sent: Any) -> Any:
        self.pending = _NeverPending(self.pending)
        return original(self, sent)

    patch.setattr(Shard, "completion_of", forgetful)


PAIRS: list[tuple[Story, Remove]] = [
    (a_zombie_cannot_add_to_or_end_what_its_successor_does, without_epoch_check),
    (a_zombie_cannot_end_its_successors_transaction_under_v2, without_owner_epoch_check),
    (a_zombie_cannot_renew_itself, without_renewal_check),
    (nobody_decides_while_a_decision_is_being_written, without_pending_check),
    (a_delayed_end_cannot_end_the_next_transaction, without_epoch_bump_at_end),
    (an_absent_owner_is_fenced_by_timeout, without_epoch_bump_for_an_absent_owner),
    (a_report_from_before_a_reload_completes_nothing, without_identity_of_reports),
    (a_commit_is_completed_once_however_often_it_is_reported, without_exactly_once_completion),
    (the_last_epoch_is_never_exceeded, without_rotation),
    (a_failed_write_is_forgotten, without_clearing_after_failure),
]
each_pair = pytest.mark.parametrize(
    ("story", "remove"), PAIRS, ids=[f"{story.__name__}-{remove.__name__}" for story, remove in PAIRS]
)


@each_pair
def test_with_the_safeguard_the_story_ends_well(story: Story, remove: Remove) -> None:
    story(TransactionDriver())


@each_pair
def test_without_the_safeguard_the_story_fails(story: Story, remove: Remove, monkeypatch: pytest.MonkeyPatch) -> None:
    remove(monkeypatch)
    with pytest.raises((AssertionError, InvariantViolation, Refused)):
        story(TransactionDriver())
