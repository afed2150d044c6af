"""The consumer protocol (KIP-848): epochs, fencing, revocation before assignment, static members, time."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from semel.errors import ErrorCode
from semel.machines.groups.classic.group import ClassicGroup
from semel.machines.groups.consumer import heartbeat as consumer_rebalance
from semel.machines.groups.consumer import sessions as consumer_sessions
from semel.machines.groups.consumer.group import ConsumerGroup
from semel.machines.groups.coordinator import GroupSettings, TopicInfo
from semel.machines.groups.registry import GroupTimeouts
from semel.machines.name_pattern import NamePattern
from semel.wire import encode
from semel.wire.messages.consumer_groups import ConsumerGroupDescribeRequest, ConsumerGroupHeartbeatResponse
from semel.wire.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from tests.machines.groups.group_driver import GROUP, TOPICS, GroupDriver

LEDGER, AUDIT = TOPICS["ledger"].topic_id, TOPICS["audit"].topic_id


@pytest.fixture
def driver() -> GroupDriver:
    return GroupDriver()


def group_of(driver: GroupDriver) -> ConsumerGroup:
    group = driver.coordinator.groups[GROUP]
    assert isinstance(group, ConsumerGroup)
    return group


def given(reply: ConsumerGroupHeartbeatResponse) -> dict[UUID, list[int]] | None:
    assert reply.error_code == ErrorCode.NONE, reply
    if reply.assignment is None:
        return None
    return {part.topic_id: part.partitions for part in reply.assignment.topic_partitions}


def code(reply: ConsumerGroupHeartbeatResponse) -> ErrorCode:
    encode(reply, 1)
    return ErrorCode(reply.error_code)


def two_members(driver: GroupDriver) -> None:
    """`a` has ledger 0 and 1, `b` has 2 and 3, both at epoch 3."""
    driver.consumer_heartbeat("a", 0)
    driver.consumer_heartbeat("b", 0)
    driver.consumer_heartbeat("a", 2)
    driver.consumer_heartbeat("a", 2, owned={LEDGER: [0, 1]})
    driver.consumer_heartbeat("b", 3)
    assert group_of(driver).state.value == "Stable"


def test_the_first_member_gets_everything(driver: GroupDriver) -> None:
    reply = driver.consumer_heartbeat("a", 0)
    assert given(reply) == {LEDGER: [0, 1, 2, 3]}
    assert (reply.member_id, reply.member_epoch, reply.heartbeat_interval_ms) == ("a", 2, 5000)


def test_a_partition_is_given_only_once_its_owner_let_go(driver: GroupDriver) -> None:
    driver.consumer_heartbeat("a", 0)
    assert given(driver.consumer_heartbeat("b", 0)) == {}, "a still has everything"
    asked = driver.consumer_heartbeat("a", 2)
    assert given(asked) == {LEDGER: [0, 1]} and asked.member_epoch == 2, "a is asked to revoke, and stays in its epoch"
    assert given(driver.consumer_heartbeat("b", 3)) is None, "a has not said that it let go"
    assert driver.consumer_heartbeat("a", 2, owned={LEDGER: [0, 1, 2]}).member_epoch == 2
    assert driver.consumer_heartbeat("a", 2, owned={LEDGER: [0, 1]}).member_epoch == 3
    assert given(driver.consumer_heartbeat("b", 3)) == {LEDGER: [2, 3]}
    assert group_of(driver).state.value == "Stable"


def test_states_go_by_kafkas_names(driver: GroupDriver) -> None:
    driver.consumer_heartbeat("a", 0)
    assert group_of(driver).state.value == "Stable"
    driver.consumer_heartbeat("b", 0)
    assert group_of(driver).state.value == "Reconciling"
    driver.consumer_heartbeat("b", -1)
    assert group_of(driver).state.value == "Assigning"
    driver.consumer_heartbeat("a", -1)
    assert group_of(driver).state.value == "Empty"


def test_a_member_of_version_0_is_given_an_id(driver: GroupDriver) -> None:
    assert driver.consumer_heartbeat("", 0, version=0).member_id == "00000001"


# Fencing


def test_an_epoch_from_elsewhere_is_fenced(driver: GroupDriver) -> None:
    two_members(driver)
    assert code(driver.consumer_heartbeat("a", 4)) == ErrorCode.FENCED_MEMBER_EPOCH
    assert code(driver.consumer_heartbeat("b", 2)) == ErrorCode.FENCED_MEMBER_EPOCH
    assert code(driver.consumer_heartbeat("ghost", 3)) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(driver.consumer_heartbeat("a", 3, group="nowhere")) == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_member_that_lost_the_answer_may_come_with_the_epoch_before(driver: GroupDriver) -> None:
    two_members(driver)
    assert code(driver.consumer_heartbeat("a", 2)) == ErrorCode.FENCED_MEMBER_EPOCH, "it must say what it has"
    assert code(driver.consumer_heartbeat("a", 2, owned={LEDGER: [2]})) == ErrorCode.FENCED_MEMBER_EPOCH
    reply = driver.consumer_heartbeat("a", 2, owned={LEDGER: [0, 1]})
    assert code(reply) == ErrorCode.NONE and reply.member_epoch == 3


def test_a_fenced_member_comes_back_with_nothing(driver: GroupDriver) -> None:
    two_members(driver)
    reply = driver.consumer_heartbeat("a", 0)
    assert given(reply) == {LEDGER: [0, 1]} and reply.member_epoch == 3


def test_a_full_group_takes_no_more() -> None:
    driver = GroupDriver(GroupSettings(group_consumer_max_size=1))
    driver.consumer_heartbeat("a", 0)
    assert code(driver.consumer_heartbeat("b", 0)) == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert code(driver.consumer_heartbeat("a", 2)) == ErrorCode.NONE


@pytest.mark.parametrize(
    "wrong",
    [
        {"member_id": "", "epoch": 0},
        {"member_id": "", "epoch": 1, "version": 0},
        {"member_id": "a", "epoch": 0, "rebalance_ms": -1},
        {"member_id": "a", "epoch": 0, "owned": {LEDGER: [0]}},
        {"member_id": "a", "epoch": -2},
        {"member_id": "a", "epoch": -3},
        {"member_id": "a", "epoch": 0, "instance": ""},
        {"member_id": "a", "epoch": 0, "group": ""},
    ],
)
def test_what_no_member_sends_is_refused(driver: GroupDriver, wrong: dict[str, Any]) -> None:
    assert code(driver.consumer_heartbeat(**wrong)) == ErrorCode.INVALID_REQUEST


def test_an_assignor_that_is_not_there_is_refused(driver: GroupDriver) -> None:
    assert code(driver.consumer_heartbeat("a", 0, assignor="best")) == ErrorCode.UNSUPPORTED_ASSIGNOR
    assert code(driver.consumer_heartbeat("a", 0, assignor="range")) == ErrorCode.NONE
    assert group_of(driver).members["a"].server_assignor == "range"


# Static members


def test_a_static_member_in_use_keeps_its_instance_id(driver: GroupDriver) -> None:
    driver.consumer_heartbeat("a", 0, instance="i")
    assert code(driver.consumer_heartbeat("b", 0, instance="i")) == ErrorCode.UNRELEASED_INSTANCE_ID
    assert code(driver.consumer_heartbeat("b", 2, instance="i")) == ErrorCode.FENCED_INSTANCE_ID
    assert code(driver.consumer_heartbeat("b", 2, instance="j")) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_did_not_hear_of_its_join_may_join_again(driver: GroupDriver) -> None:
    first = driver.consumer_heartbeat("a", 0, instance="i")
    again = driver.consumer_heartbeat("a", 0, instance="i")
    assert code(again) == ErrorCode.NONE
    assert (again.member_epoch, given(again)) == (first.member_epoch, given(first))


def test_a_static_member_that_means_to_return_finds_its_partitions(driver: GroupDriver) -> None:
    driver.consumer_heartbeat("a", 0, instance="i")
    driver.consumer_heartbeat("b", 0, instance="j")
    driver.consumer_heartbeat("a", 2, instance="i")
    driver.consumer_heartbeat("a", 2, instance="i", owned={LEDGER: [0, 1]})
    driver.consumer_heartbeat("b", 3, instance="j")
    assert driver.consumer_heartbeat("a", -2, instance="i").member_epoch == -2
    assert given(driver.consumer_heartbeat("b", 3, instance="j")) is None, "nothing moves while it is away"
    reply = driver.consumer_heartbeat("c", 0, instance="i")
    assert given(reply) == {LEDGER: [0, 1]} and reply.member_epoch == 3
    assert group_of(driver).static_members == {"i": "c", "j": "b"}
    assert driver.restarted().coordinator.groups[GROUP].members == group_of(driver).members


def test_a_static_member_that_does_not_return_is_out_when_its_session_ends(driver: GroupDriver) -> None:
    driver.consumer_heartbeat("a", 0, instance="i")
    driver.consumer_heartbeat("a", -2, instance="i")
    driver.pass_ms(45_000)
    assert group_of(driver).members == {}


def test_a_static_member_may_leave_for_good(driver: GroupDriver) -> None:
    driver.consumer_heartbeat("a", 0, instance="i")
    assert code(driver.consumer_heartbeat("b", -1, instance="i")) == ErrorCode.FENCED_INSTANCE_ID
    assert driver.consumer_heartbeat("a", -1, instance="i").member_epoch == -1
    assert group_of(driver).members == {}


# Time


def test_a_silent_member_loses_its_partitions(driver: GroupDriver) -> None:
    two_members(driver)
    driver.pass_ms(44_000)
    driver.consumer_heartbeat("a", 3)
    driver.pass_ms(1_000)
    assert list(group_of(driver).members) == ["a"]
    reply = driver.consumer_heartbeat("a", 3)
    assert given(reply) == {LEDGER: [0, 1, 2, 3]} and reply.member_epoch == 4


def test_several_members_may_fall_silent_at_once(driver: GroupDriver) -> None:
    two_members(driver)
    driver.pass_ms(100_000)
    group = group_of(driver)
    assert group.members == {} and group.owners == {} and group.epoch == 5


def a_member_that_never_revokes_is_put_out() -> None:
    driver = GroupDriver()
    driver.consumer_heartbeat("a", 0)
    driver.consumer_heartbeat("b", 0)
    driver.consumer_heartbeat("a", 2)
    for _ in range(6):
        driver.pass_ms(5_000)
        driver.consumer_heartbeat("a", 2)
        driver.consumer_heartbeat("b", 3)
    driver.pass_ms(5_000)
    assert list(group_of(driver).members) == ["b"]


def test_a_member_that_never_revokes_is_put_out() -> None:
    a_member_that_never_revokes_is_put_out()


def test_a_group_with_a_shorter_session_of_its_own_loses_silent_members_sooner(driver: GroupDriver) -> None:
    epoch = driver.consumer_heartbeat("a", 0).member_epoch
    driver.coordinator.set_timeouts(GROUP, GroupTimeouts(10_000, 3000))
    assert driver.consumer_heartbeat("a", epoch).heartbeat_interval_ms == 3000
    driver.pass_ms(9999)
    assert list(group_of(driver).members) == ["a"]
    driver.pass_ms(1)
    assert group_of(driver).members == {}


def test_after_a_restart_every_member_has_a_full_session(driver: GroupDriver) -> None:
    two_members(driver)
    driver.pass_ms(44_000)
    other = driver.restarted()
    other.pass_ms(44_000)
    assert code(other.consumer_heartbeat("a", 3)) == ErrorCode.NONE
    other.pass_ms(1_000)
    assert list(other.coordinator.groups[GROUP].members) == ["a"]


# Topics


def change_topics(driver: GroupDriver, **topics: TopicInfo) -> None:
    for decision in driver.coordinator.topics_changed({**TOPICS, **topics}, driver.now_ms):
        driver.do(decision)


def test_new_partitions_are_assigned_with_the_next_heartbeat(driver: GroupDriver) -> None:
    driver.consumer_heartbeat("a", 0)
    change_topics(driver, ledger=TopicInfo(LEDGER, 5))
    reply = driver.consumer_heartbeat("a", 2)
    assert given(reply) == {LEDGER: [0, 1, 2, 3, 4]} and reply.member_epoch == 3


def test_topics_nobody_reads_change_nothing(driver: GroupDriver) -> None:
    driver.consumer_heartbeat("a", 0)
    change_topics(driver, audit=TopicInfo(AUDIT, 9))
    assert driver.consumer_heartbeat("a", 2).member_epoch == 2


def test_a_regular_expression_follows_the_topics_there_are(driver: GroupDriver) -> None:
    assert given(driver.consumer_heartbeat("a", 0, regex="aud.*")) == {AUDIT: [0, 1]}
    change_topics(driver, auditing=TopicInfo(UUID(int=9), 1))
    assert given(driver.consumer_heartbeat("a", 2)) == {AUDIT: [0, 1], UUID(int=9): [0]}
    assert driver.restarted().coordinator.groups[GROUP].regexes == group_of(driver).regexes
    driver.consumer_heartbeat("a", 3, topics=["ledger"], regex="")
    assert group_of(driver).regexes == {}


def test_when_topics_change_only_new_names_are_matched_with_the_expressions(
    driver: GroupDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One heartbeat does it for all members of the group, and each may have an expression of its own."""
    many = {f"audit-{number}": TopicInfo(UUID(int=100 + number), 1) for number in range(50)}
    change_topics(driver, **many)
    for name in "abcde":
        driver.consumer_heartbeat(name, 0, regex=f"audit-.*|{name}.*")
    matched: list[str] = []
    matches = NamePattern.matches

    def counted(self: NamePattern, name: str) -> bool:
        matched.append(name)
        return matches(self, name)

    monkeypatch.setattr(NamePattern, "matches", counted)
    del many["audit-7"]
    change_topics(driver, **many, **{"audit-new": TopicInfo(UUID(int=9), 1)})
    driver.consumer_heartbeat("a", group_of(driver).members["a"].member_epoch)
    assert matched == ["audit-new"] * 5
    found = {"audit-new", *many}
    assert [resolved.topics for resolved in group_of(driver).regexes.values()] == [found | {"audit"}, *[found] * 4]
    assert driver.restarted().coordinator.groups[GROUP].regexes == group_of(driver).regexes


def test_a_regular_expression_finds_internal_topics_too(driver: GroupDriver) -> None:
    change_topics(driver, __audit_state=TopicInfo(UUID(int=9), 1))
    assert given(driver.consumer_heartbeat("a", 0, regex=".*audit.*")) == {AUDIT: [0, 1], UUID(int=9): [0]}


def test_a_regular_expression_that_cannot_be_read_is_refused(driver: GroupDriver) -> None:
    assert code(driver.consumer_heartbeat("a", 0, regex="(")) == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert GROUP not in driver.coordinator.groups


def test_a_topic_a_member_no_longer_reads_is_taken_back_at_once(driver: GroupDriver) -> None:
    driver.consumer_heartbeat("a", 0, topics=["ledger", "audit"])
    reply = driver.consumer_heartbeat("a", 2, topics=["audit"])
    assert given(reply) == {AUDIT: [0, 1]} and reply.member_epoch == 2
    assert driver.consumer_heartbeat("a", 2, owned={AUDIT: [0, 1]}).member_epoch == 3


# Offsets


def test_only_a_member_in_its_epoch_commits(driver: GroupDriver) -> None:
    two_members(driver)
    assert driver.commit(member_id="a", generation=3) == ErrorCode.NONE
    assert driver.commit(member_id="a", generation=4) == ErrorCode.STALE_MEMBER_EPOCH
    assert driver.commit(member_id="ghost", generation=3) == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit() == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.commit(member_id="a", generation=3, version=8) == ErrorCode.UNSUPPORTED_VERSION
    assert driver.txn_commit(member_id="a", generation=4) == ErrorCode.ILLEGAL_GENERATION
    assert driver.txn_commit(member_id="a", generation=3) == ErrorCode.NONE
    assert driver.txn_commit() == ErrorCode.NONE


def test_a_member_behind_commits_what_it_has_had_all_along(driver: GroupDriver) -> None:
    two_members(driver)
    assert driver.commit(member_id="a", generation=2, partition=0) == ErrorCode.NONE
    assert driver.commit(member_id="a", generation=2, partition=2) == ErrorCode.STALE_MEMBER_EPOCH
    assert driver.commit(member_id="b", generation=2, partition=2) == ErrorCode.STALE_MEMBER_EPOCH
    assert driver.txn_commit(member_id="b", generation=2, partition=2) == ErrorCode.ILLEGAL_GENERATION


# Changing protocols


def test_a_group_without_members_may_change_its_protocol(driver: GroupDriver) -> None:
    driver.commit(5)
    driver.consumer_heartbeat("a", 0)
    assert isinstance(driver.coordinator.groups[GROUP], ConsumerGroup)
    driver.consumer_heartbeat("a", -1)
    members, _ = driver.stable_group(1)
    assert isinstance(driver.coordinator.groups[GROUP], ClassicGroup)
    assert isinstance(driver.restarted().coordinator.groups[GROUP], ClassicGroup)
    driver.leave((members[0], None))
    driver.consumer_heartbeat("b", 0)
    assert isinstance(driver.coordinator.groups[GROUP], ConsumerGroup)
    again = driver.restarted()
    assert isinstance(again.coordinator.groups[GROUP], ConsumerGroup)
    assert again.fetched() == (5, ErrorCode.NONE)


def test_a_group_whose_assignment_cannot_be_read_keeps_its_protocol(driver: GroupDriver) -> None:
    driver.stable_group(1)
    assert code(driver.consumer_heartbeat("a", 0)) == ErrorCode.GROUP_ID_NOT_FOUND
    assert isinstance(driver.coordinator.groups[GROUP], ClassicGroup)


def test_a_change_of_protocol_that_could_not_be_written_did_not_happen(driver: GroupDriver) -> None:
    driver.consumer_heartbeat("a", 0)
    driver.consumer_heartbeat("a", -1)
    driver.fail_next = True
    driver.join()
    assert isinstance(driver.coordinator.groups[GROUP], ConsumerGroup)


# Memory


def test_what_could_not_be_written_did_not_happen(driver: GroupDriver) -> None:
    driver.fail_next = True
    assert code(driver.consumer_heartbeat("a", 0)) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert GROUP not in driver.coordinator.groups
    two_members(driver)
    driver.fail_next = True
    assert code(driver.consumer_heartbeat("b", -1)) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert list(group_of(driver).members) == ["a", "b"]
    driver.pass_ms(45_000)
    assert group_of(driver).members == {}, "the session of a member that could not be removed goes on"


def test_a_change_of_topics_is_noticed_again_if_it_could_not_be_written(driver: GroupDriver) -> None:
    driver.consumer_heartbeat("a", 0)
    change_topics(driver, ledger=TopicInfo(LEDGER, 5))
    driver.fail_next = True
    driver.consumer_heartbeat("a", 2)
    assert given(driver.consumer_heartbeat("a", 2)) == {LEDGER: [0, 1, 2, 3, 4]}


# Administration


def test_describe_shows_assignment_and_target(driver: GroupDriver) -> None:
    driver.consumer_heartbeat("a", 0)
    driver.consumer_heartbeat("b", 0)
    request = ConsumerGroupDescribeRequest(group_ids=[GROUP, "nowhere"])
    there, missing = driver.do(driver.coordinator.consumer_group_describe(request, 1, driver.now_ms)).groups
    assert (there.group_state, there.group_epoch, there.assignment_epoch, there.assignor_name) == (
        "Reconciling",
        3,
        3,
        "uniform",
    )
    first = next(member for member in there.members if member.member_id == "a")
    assert first.assignment.topic_partitions[0].partitions == [0, 1, 2, 3]
    assert first.target_assignment.topic_partitions[0].partitions == [0, 1]
    assert first.target_assignment.topic_partitions[0].topic_name == "ledger"
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    older = driver.do(
        driver.coordinator.describe_groups(DescribeGroupsRequest(groups=[GROUP]), 6, driver.now_ms)
    ).groups[0]
    assert older.error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_consumer_group_is_listed_and_deleted_like_any_other(driver: GroupDriver) -> None:
    driver.consumer_heartbeat("a", 0)
    driver.commit(member_id="a", generation=2)
    listed = driver.do(
        driver.coordinator.list_groups(ListGroupsRequest(types_filter=["Consumer"]), 5, driver.now_ms)
    ).groups
    assert [(row.group_id, row.group_type, row.protocol_type) for row in listed] == [(GROUP, "consumer", "consumer")]
    request = DeleteGroupsRequest(groups_names=[GROUP])
    refused = driver.do(driver.coordinator.delete_groups(request, 2, driver.now_ms)).results[0]
    assert refused.error_code == ErrorCode.NON_EMPTY_GROUP
    driver.consumer_heartbeat("a", -1)
    assert (
        driver.do(driver.coordinator.delete_groups(request, 2, driver.now_ms)).results[0].error_code == ErrorCode.NONE
    )
    assert GROUP not in driver.coordinator.groups and GROUP not in driver.restarted().coordinator.groups


def test_without_the_revocation_timer_a_member_could_hold_the_group_up(monkeypatch: pytest.MonkeyPatch) -> None:
    on_timer = consumer_rebalance.ConsumerRebalance.on_timer

    def deaf(self: Any, group: Any, timer: Any, *rest: Any) -> None:
        if timer.kind != consumer_sessions.REVOCATION:
            on_timer(self, group, timer, *rest)

    monkeypatch.setattr(consumer_rebalance.ConsumerRebalance, "on_timer", deaf)
    with pytest.raises(AssertionError):
        a_member_that_never_revokes_is_put_out()


def test_without_waiting_for_release_a_partition_would_have_two_owners(
    driver: GroupDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    reconcile = consumer_rebalance.reconcile

    def impatient(member: Any, epoch: Any, target: Any, subscribed: Any, said: Any, held: Any, **options: Any) -> Any:
        return reconcile(member, epoch, target, subscribed, said, lambda *_: False, **options)

    monkeypatch.setattr(consumer_rebalance, "reconcile", impatient)
    driver.consumer_heartbeat("a", 0)
    assert given(driver.consumer_heartbeat("b", 0)) == {LEDGER: [2, 3]}
    assert group_of(driver).members["a"].assigned[LEDGER].keys() == {0, 1, 2, 3}
