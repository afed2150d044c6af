"""A member's half of a group whose coordinator assigns: one heartbeat for everything."""

from __future__ import annotations

from uuid import UUID

import pytest

from semel.errors import ErrorCode, MemberFenced
from semel.machines.groups.consumer.member import (
    CONSUMER_MEMBERSHIP_STEPS,
    ConsumerMembership,
    ConsumerMembershipEvent,
    ConsumerMembershipState,
)
from semel.machines.values import TopicPartition
from semel.wire.messages.consumer_groups import ConsumerGroupHeartbeatResponse

TOPIC = UUID(int=1)
NAMES = {TOPIC: "ledger"}
P0, P1 = TopicPartition("ledger", 0), TopicPartition("ledger", 1)


def answer(epoch: int = 1, *numbers: int, code: ErrorCode = ErrorCode.NONE, unchanged: bool = False) -> object:
    rows = [ConsumerGroupHeartbeatResponse.TopicPartitions(topic_id=TOPIC, partitions=list(numbers))]
    return ConsumerGroupHeartbeatResponse(
        error_code=int(code),
        member_epoch=epoch,
        heartbeat_interval_ms=1_000,
        assignment=None if unchanged else ConsumerGroupHeartbeatResponse.Assignment(topic_partitions=rows),
    )


def member(*numbers: int, instance_id: str | None = None) -> ConsumerMembership:
    """A member that owns these partitions, and has said so."""
    machine = ConsumerMembership("readers", "me", instance_id)
    machine.subscribe(["ledger"])
    assert machine.heartbeat_request(0) is not None
    machine.on_response(answer(1, *numbers), 0, 100)
    machine.take_on(machine.wanted(NAMES))
    if numbers:
        assert machine.heartbeat_request(0) is not None
        machine.on_response(answer(1, unchanged=True), 0, 100)
    return machine


def test_joining_says_everything_and_owns_nothing() -> None:
    machine = ConsumerMembership("readers", "me", "instance", "rack", 5_000, "range")
    assert machine.heartbeat_request(0) is None, "not subscribed"
    machine.subscribe(["ledger"])
    request = machine.heartbeat_request(0)
    assert request is not None
    assert (request.member_epoch, request.subscribed_topic_names, request.topic_partitions) == (0, ["ledger"], [])
    assert (request.rebalance_timeout_ms, request.server_assignor, request.rack_id) == (5_000, "range", "rack")
    assert machine.heartbeat_request(0) is None, "one at a time"


def test_what_is_taken_on_is_acknowledged_at_once_and_then_only_the_pulse_goes_on() -> None:
    machine = ConsumerMembership("readers", "me")
    machine.subscribe(["ledger"])
    machine.heartbeat_request(0)
    machine.on_response(answer(1, 0, 1), 0, 100)
    assert machine.wanted(NAMES) == {P0, P1}
    assert machine.heartbeat_request(0) is None, "nothing to say before it is done"
    machine.take_on({P0, P1})
    request = machine.heartbeat_request(0)
    assert request is not None
    assert [(row.topic_id, row.partitions) for row in request.topic_partitions or ()] == [(TOPIC, [0, 1])]
    assert (request.member_epoch, request.subscribed_topic_names) == (1, None)
    machine.on_response(answer(1, unchanged=True), 0, 100)
    assert machine.heartbeat_request(999) is None
    request = machine.heartbeat_request(1_000)
    assert request is not None
    assert request.topic_partitions is None


def test_what_is_taken_away_is_let_go_of_and_acknowledged() -> None:
    machine = member(0, 1)
    machine.heartbeat_request(1_000)
    machine.on_response(answer(2, 1), 1_000, 100)
    assert machine.owned - machine.wanted(NAMES) == {P0}
    machine.let_go({P0})
    request = machine.heartbeat_request(1_000)
    assert request is not None
    assert [row.partitions for row in request.topic_partitions or ()] == [[1]]


def test_a_topic_known_only_by_its_id_waits_for_its_name() -> None:
    machine = ConsumerMembership("readers", "me")
    machine.subscribe(["ledger"])
    machine.heartbeat_request(0)
    machine.on_response(answer(1, 0), 0, 100)
    assert machine.unnamed({})
    assert machine.wanted({}) == frozenset()


@pytest.mark.parametrize(
    "code", [ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.GROUP_ID_NOT_FOUND]
)
def test_a_fenced_member_loses_everything_and_joins_again_under_its_own_id(code: ErrorCode) -> None:
    machine = member(0)
    machine.heartbeat_request(1_000)
    machine.on_response(answer(code=code), 1_000, 100)
    assert (machine.lost, machine.state) == ({P0}, ConsumerMembershipState.JOINING)
    assert machine.heartbeat_request(1_000) is None, "not before the loss was told"
    machine.let_go({P0})
    request = machine.heartbeat_request(1_000)
    assert request is not None
    assert (request.member_id, request.member_epoch, request.topic_partitions) == ("me", 0, [])


def test_a_fenced_member_still_commits_in_its_old_epoch_so_as_to_be_refused() -> None:
    machine = member(0)
    as_member = machine.metadata
    assert (as_member.generation_id, as_member.member_id) == (1, "me")
    machine.fence()
    assert machine.metadata == as_member
    machine.leave_request()
    assert machine.metadata == as_member


def test_after_silence_everything_is_said_again() -> None:
    machine = member(0)
    machine.heartbeat_request(1_000)
    machine.on_no_answer(1_000, 100)
    assert machine.heartbeat_request(1_099) is None
    request = machine.heartbeat_request(1_100)
    assert request is not None
    assert request.subscribed_topic_names == ["ledger"]
    assert [row.partitions for row in request.topic_partitions or ()] == [[0]]


def test_a_coordinator_that_moved_is_asked_again_later() -> None:
    machine = member(0)
    machine.heartbeat_request(1_000)
    assert machine.on_response(answer(code=ErrorCode.NOT_COORDINATOR), 1_000, 100) is ErrorCode.NOT_COORDINATOR
    assert machine.owned == {P0}
    assert machine.heartbeat_request(1_100) is not None


def test_a_group_that_a_new_member_cannot_make_is_an_error() -> None:
    """A classic group has the name. A member hears the same code where the brokers have lost its group."""
    machine = ConsumerMembership("readers", "me")
    machine.subscribe(["ledger"])
    machine.heartbeat_request(0)
    machine.on_response(answer(code=ErrorCode.GROUP_ID_NOT_FOUND), 0, 100)
    assert machine.state is ConsumerMembershipState.FAILED


def test_a_double_of_a_static_member_ends_it() -> None:
    machine = member(0, instance_id="one")
    machine.heartbeat_request(1_000)
    machine.on_response(answer(code=ErrorCode.FENCED_INSTANCE_ID), 1_000, 100)
    assert (machine.state, machine.lost) == (ConsumerMembershipState.FAILED, {P0})
    assert isinstance(machine.error, MemberFenced)


@pytest.mark.parametrize(("instance_id", "epoch"), [(None, -1), ("one", -2)])
def test_leaving_says_whether_it_is_for_good(instance_id: str | None, epoch: int) -> None:
    machine = member(0, instance_id=instance_id)
    request = machine.leave_request()
    assert request is not None
    assert request.member_epoch == epoch
    assert machine.leave_request() is None
    assert machine.owned == frozenset()


def test_an_answer_after_leaving_changes_nothing() -> None:
    machine = member(0)
    machine.heartbeat_request(1_000)
    machine.leave_request()
    machine.on_response(answer(9, 0, 1), 1_000, 100)
    assert (machine.state, machine.target) == (ConsumerMembershipState.IDLE, frozenset())


def test_every_state_is_in_the_table() -> None:
    assert set(CONSUMER_MEMBERSHIP_STEPS) == set(ConsumerMembershipState)
    for state in (ConsumerMembershipState.JOINING, ConsumerMembershipState.MEMBER):
        assert CONSUMER_MEMBERSHIP_STEPS[state][ConsumerMembershipEvent.FENCED] is ConsumerMembershipState.JOINING


def test_a_commit_of_an_earlier_life_that_is_refused_does_not_cost_this_one() -> None:
    machine = member(0)
    committed_as = machine.metadata
    machine.fence()
    machine.let_go(machine.lost)
    assert machine.heartbeat_request(0) is not None
    machine.on_response(answer(5, 0), 0, 100)
    machine.take_on(machine.wanted(NAMES))
    for code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.STALE_MEMBER_EPOCH):
        machine.on_commit_refused(code, committed_as)
        assert (machine.state, machine.owned, machine.lost) == (ConsumerMembershipState.MEMBER, {P0}, set())
    machine.on_commit_refused(ErrorCode.UNKNOWN_MEMBER_ID, machine.metadata)
    assert (machine.state, machine.lost) == (ConsumerMembershipState.JOINING, {P0})
