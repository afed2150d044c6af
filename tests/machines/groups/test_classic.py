"""The classic protocol: joining, syncing, heartbeats, leaving, static members, timeouts."""

from __future__ import annotations

from typing import Any

import pytest

from semel.errors import ErrorCode
from semel.machines.groups.classic.group import ClassicGroup
from semel.machines.groups.consumer.group import ConsumerGroup
from semel.machines.groups.coordinator import GroupSettings
from semel.wire import encode
from semel.wire.messages.groups import (
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    ListGroupsRequest,
    SyncGroupRequest,
)
from tests.machines.groups.group_driver import GROUP, GroupDriver, subscription


def group_of(driver: GroupDriver, group_id: str = GROUP) -> ClassicGroup:
    group = driver.coordinator.groups[group_id]
    assert isinstance(group, ClassicGroup)
    return group


def state(driver: GroupDriver) -> str:
    return group_of(driver).state.value


@pytest.fixture
def driver() -> GroupDriver:
    return GroupDriver()


# Joining


def test_a_new_member_is_given_its_id_before_it_joins(driver: GroupDriver) -> None:
    _, asked = driver.join(client_id="spark")
    assert asked is not None
    assert asked.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert asked.member_id == "spark-00000001"
    _, joined = driver.join(asked.member_id)
    assert joined is not None
    assert (joined.error_code, joined.generation_id, joined.leader) == (ErrorCode.NONE, 1, asked.member_id)
    assert [member.member_id for member in joined.members] == [asked.member_id]


def test_an_id_that_nobody_joins_with_is_forgotten_within_a_minute_and_its_group_too(driver: GroupDriver) -> None:
    """Anybody may ask for any number of ids, with a session timeout of half an hour."""
    _, asked = driver.join(session_ms=1_800_000)
    assert asked is not None
    driver.pass_ms(59_999)
    assert asked.member_id in group_of(driver).pending_join
    driver.pass_ms(1)
    assert asked.member_id not in group_of(driver).pending_join
    _, late = driver.join(asked.member_id, session_ms=1_800_000)
    assert late is not None
    assert late.error_code == ErrorCode.UNKNOWN_MEMBER_ID


@pytest.mark.parametrize("version", range(4))
def test_before_version_4_a_member_joins_at_once(driver: GroupDriver, version: int) -> None:
    _, joined = driver.join(version=version)
    assert joined is not None
    assert joined.error_code == ErrorCode.NONE
    assert joined.member_id == "app-00000001"
    encode(joined, version)


@pytest.mark.parametrize("version", range(10))
def test_a_refused_join_can_be_said_in_every_version(driver: GroupDriver, version: int) -> None:
    _, refused = driver.join(version=version, session_ms=1)
    assert refused is not None
    assert refused.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    encode(refused, version)


@pytest.mark.parametrize(
    ("session_ms", "allowed"), [(5999, False), (6000, True), (1_800_000, True), (1_800_001, False)]
)
def test_session_timeouts_have_bounds(driver: GroupDriver, session_ms: int, allowed: bool) -> None:
    _, reply = driver.join(session_ms=session_ms)
    assert reply is not None
    assert (reply.error_code != ErrorCode.INVALID_SESSION_TIMEOUT) is allowed


def test_a_join_with_an_id_nobody_gave_is_refused(driver: GroupDriver) -> None:
    _, reply = driver.join("ghost")
    assert reply is not None and reply.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert GROUP not in driver.coordinator.groups
    driver.stable_group(1)
    _, reply = driver.join("ghost")
    assert reply is not None and reply.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_id_is_needed(driver: GroupDriver) -> None:
    _, reply = driver.join(group="")
    assert reply is not None and reply.error_code == ErrorCode.INVALID_GROUP_ID
    assert driver.heartbeat("m", 1, group="") == ErrorCode.INVALID_GROUP_ID


def test_members_must_have_a_protocol_in_common(driver: GroupDriver) -> None:
    driver.stable_group(1)
    for options in ({"protocols": [("sticky", b"")]}, {"protocol_type": "connect"}, {"protocols": []}):
        _, reply = driver.join(**options)  # type: ignore[arg-type]
        assert reply is not None and reply.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_protocol_most_members_like_best_is_chosen(driver: GroupDriver) -> None:
    driver = GroupDriver(GroupSettings(group_initial_rebalance_delay_ms=100))
    tokens = [
        driver.admitted(protocols=[(name, b"") for name in names])[1]
        for names in (["a", "b", "c"], ["b", "a"], ["b", "c", "a"])
    ]
    driver.pass_ms(1000)
    assert {driver.answers[token].protocol_name for token in tokens} == {"b"}


def test_a_full_group_takes_no_more(driver: GroupDriver) -> None:
    driver = GroupDriver(GroupSettings(group_initial_rebalance_delay_ms=0, group_max_size=2))
    members, _ = driver.stable_group(2)
    _, reply = driver.join()
    assert reply is not None and reply.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    _, reply = driver.join(members[1])
    assert reply is not None and reply.error_code == ErrorCode.NONE


def test_a_new_group_waits_for_more_members_and_longer_while_they_come() -> None:
    driver = GroupDriver(GroupSettings(group_initial_rebalance_delay_ms=3000))
    _, first, reply = driver.admitted(rebalance_ms=7000)
    assert reply is None
    driver.pass_ms(2000)
    _, second, _ = driver.admitted(rebalance_ms=7000)
    driver.pass_ms(1000)
    assert first not in driver.answers, "a member came meanwhile, so the wait begins again"
    driver.pass_ms(2999)
    assert first not in driver.answers
    driver.pass_ms(1)
    assert driver.answers[first].generation_id == driver.answers[second].generation_id == 1
    assert len(driver.answers[first].members) == 2


def test_a_new_group_never_waits_past_the_rebalance_timeout() -> None:
    driver = GroupDriver(GroupSettings(group_initial_rebalance_delay_ms=3000))
    _, first, _ = driver.admitted(rebalance_ms=7000)
    for _ in range(7):
        driver.pass_ms(1000)
        driver.admitted(rebalance_ms=7000)
    assert first in driver.answers


def test_only_the_leader_hears_who_is_in(driver: GroupDriver) -> None:
    members, _ = driver.stable_group(1)
    _, _, reply = driver.admitted()
    assert reply is None, "the newcomer waits for the others"
    assert driver.heartbeat(members[0], 1) == ErrorCode.REBALANCE_IN_PROGRESS
    _, rejoined = driver.join(members[0])
    assert rejoined is not None and len(rejoined.members) == 2
    newcomer = next(reply for reply in driver.answers.values() if isinstance(reply, JoinGroupResponse))
    assert newcomer.members == [] and newcomer.leader == members[0]


def test_a_follower_that_rejoins_unchanged_gets_the_generation_there_is(driver: GroupDriver) -> None:
    members, generation = driver.stable_group(2)
    _, reply = driver.join(members[1])
    assert reply is not None and reply.generation_id == generation
    assert state(driver) == "Stable"


def test_a_leader_that_rejoins_begins_a_rebalance(driver: GroupDriver) -> None:
    members, _ = driver.stable_group(2)
    _, reply = driver.join(members[0])
    assert reply is None
    assert state(driver) == "PreparingRebalance"


def test_a_member_that_changes_what_it_wants_begins_a_rebalance(driver: GroupDriver) -> None:
    members, _ = driver.stable_group(2)
    _, reply = driver.join(members[1], protocols=[("range", subscription("audit"))])
    assert reply is None
    assert state(driver) == "PreparingRebalance"


def test_a_member_that_lost_the_answer_to_its_join_hears_it_again(driver: GroupDriver) -> None:
    member_id, _, first = driver.admitted()
    _, again = driver.join(member_id)
    assert again is not None and first is not None
    assert again.generation_id == first.generation_id and len(again.members) == 1


def test_a_second_join_of_the_same_member_releases_the_first(driver: GroupDriver) -> None:
    members, _ = driver.stable_group(2)
    first, _ = driver.join(members[0])
    second, _ = driver.join(members[0])
    assert driver.answers[first].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    driver.join(members[1])
    assert driver.answers[second].error_code == ErrorCode.NONE


# Syncing


def test_everybody_gets_what_the_leader_gave_them(driver: GroupDriver) -> None:
    members, generation = driver.stable_group(3)
    for position, member_id in enumerate(members):
        _, reply = driver.sync(member_id, generation)
        assert reply is not None and reply.assignment == f"a{position}".encode()


def test_followers_wait_for_the_leader(driver: GroupDriver) -> None:
    members, _ = driver.stable_group(1)
    other, _, _ = driver.admitted()
    driver.join(members[0])
    token, reply = driver.sync(other, 2)
    assert reply is None
    driver.sync(members[0], 2, {other: b"mine"})
    assert driver.answers[token].assignment == b"mine"


def test_sync_says_why_not(driver: GroupDriver) -> None:
    members, generation = driver.stable_group(2)

    def code(member_id: str, generation: int, **options: Any) -> ErrorCode:
        _, reply = driver.sync(member_id, generation, **options)
        assert reply is not None
        return ErrorCode(reply.error_code)

    assert code("ghost", generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(members[0], generation - 1) == ErrorCode.ILLEGAL_GENERATION
    for wrong in (("connect", "range"), ("consumer", "sticky")):
        named = {"protocol_type": wrong[0], "protocol_name": wrong[1]}
        assert code(members[0], generation, **named) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code(members[0], generation, group="other") == ErrorCode.UNKNOWN_MEMBER_ID
    driver.join(members[0])
    assert code(members[1], generation) == ErrorCode.REBALANCE_IN_PROGRESS


def test_from_version_5_sync_names_the_protocol(driver: GroupDriver) -> None:
    members, generation = driver.stable_group(1)
    request = SyncGroupRequest(group_id=GROUP, generation_id=generation, member_id=members[0])
    reply = driver.do(driver.coordinator.sync_group(request, 5, driver.now_ms, driver.token()))
    assert reply.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    _, named = driver.sync(members[0], generation, protocol_type="consumer", protocol_name="range")
    assert named is not None and named.assignment == b"a0"


def test_a_rebalance_sends_whoever_waits_for_the_leader_back(driver: GroupDriver) -> None:
    members, _ = driver.stable_group(1)
    other, _, _ = driver.admitted()
    driver.join(members[0])
    token, _ = driver.sync(other, 2)
    driver.admitted()
    assert driver.answers[token].error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_members_that_never_sync_are_put_out(driver: GroupDriver) -> None:
    members, _ = driver.stable_group(1, rebalance_ms=20_000, session_ms=30_000)
    silent, _, _ = driver.admitted(rebalance_ms=20_000, session_ms=30_000)
    driver.join(members[0], rebalance_ms=20_000, session_ms=30_000)
    driver.sync(members[0], 2, {})
    assert state(driver) == "Stable"
    driver.pass_ms(20_000)
    assert silent not in group_of(driver).members
    assert state(driver) == "PreparingRebalance"


# Heartbeats and time


def test_a_heartbeat_says_where_the_member_stands(driver: GroupDriver) -> None:
    members, generation = driver.stable_group(1)
    assert driver.heartbeat(members[0], generation) == ErrorCode.NONE
    assert driver.heartbeat(members[0], generation + 1) == ErrorCode.ILLEGAL_GENERATION
    assert driver.heartbeat("ghost", generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(members[0], generation, group="other") == ErrorCode.UNKNOWN_MEMBER_ID
    assert driver.heartbeat(members[0], generation, instance="i") == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_out_when_its_session_ends(driver: GroupDriver) -> None:
    members, generation = driver.stable_group(2)
    driver.pass_ms(9_000)
    driver.heartbeat(members[0], generation)
    driver.pass_ms(1_000)
    assert list(group_of(driver).members) == [members[0]]
    assert driver.heartbeat(members[0], generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.heartbeat(members[1], generation) == ErrorCode.UNKNOWN_MEMBER_ID


def test_when_the_leader_fails_another_member_leads(driver: GroupDriver) -> None:
    members, generation = driver.stable_group(2)
    driver.pass_ms(9_000)
    driver.heartbeat(members[1], generation)
    driver.pass_ms(1_000)
    _, reply = driver.join(members[1])
    assert reply is not None
    assert (reply.leader, reply.generation_id) == (members[1], generation + 1)


def test_a_commit_is_as_good_as_a_heartbeat(driver: GroupDriver) -> None:
    members, generation = driver.stable_group(1)
    driver.pass_ms(9_000)
    assert driver.commit(member_id=members[0], generation=generation) == ErrorCode.NONE
    driver.pass_ms(9_000)
    assert driver.heartbeat(members[0], generation) == ErrorCode.NONE


def test_whoever_waits_in_a_join_is_not_timed_out(driver: GroupDriver) -> None:
    members, generation = driver.stable_group(2)
    token, _ = driver.join(members[0])
    for _ in range(5):
        driver.pass_ms(9_000)
        driver.heartbeat(members[1], generation)
    assert members[0] in group_of(driver).members and token not in driver.answers


def test_members_that_do_not_rejoin_in_time_are_left_behind(driver: GroupDriver) -> None:
    members, generation = driver.stable_group(2, rebalance_ms=15_000)
    token, _ = driver.join(members[0], rebalance_ms=15_000)
    driver.pass_ms(9_000)
    driver.heartbeat(members[1], generation)
    driver.pass_ms(6_000)
    assert driver.answers[token].generation_id == generation + 1
    assert list(group_of(driver).members) == [members[0]]


def test_an_id_that_is_never_used_does_not_hold_the_group_up(driver: GroupDriver) -> None:
    members, _ = driver.stable_group(1)
    driver.join()
    token, _ = driver.join(members[0])
    assert token not in driver.answers, "the newcomer may still come"
    driver.pass_ms(10_000)
    assert driver.answers[token].error_code == ErrorCode.NONE


def test_a_group_whose_members_are_gone_is_empty_and_its_generation_is_written(driver: GroupDriver) -> None:
    _, generation = driver.stable_group(2)
    driver.pass_ms(60_000)
    assert state(driver) == "Empty"
    again = group_of(driver.restarted())
    assert (again.state.value, again.generation_id, again.protocol_type) == ("Empty", generation + 1, "consumer")


# Leaving


def test_a_member_that_leaves_begins_a_rebalance(driver: GroupDriver) -> None:
    members, _ = driver.stable_group(2)
    reply = driver.leave((members[1], None))
    assert [member.error_code for member in reply.members] == [ErrorCode.NONE]
    assert state(driver) == "PreparingRebalance"


def test_leaving_answers_for_each_member(driver: GroupDriver) -> None:
    members, _ = driver.stable_group(1)
    _, asked = driver.join()
    assert asked is not None
    reply = driver.leave(("ghost", None), (members[0], None), (asked.member_id, None), ("", "nobody"))
    assert [member.error_code for member in reply.members] == [
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert state(driver) == "Empty"


@pytest.mark.parametrize("version", range(6))
def test_leaving_a_group_that_is_not_there(driver: GroupDriver, version: int) -> None:
    request = LeaveGroupRequest(
        group_id="nowhere", member_id="m", members=[LeaveGroupRequest.MemberIdentity(member_id="m")]
    )
    reply = driver.do(driver.coordinator.leave_group(request, version, driver.now_ms))
    code = reply.error_code if version < 3 else reply.members[0].error_code
    assert code == ErrorCode.UNKNOWN_MEMBER_ID
    encode(reply, version)


def test_a_member_that_leaves_while_it_waits_is_told_so(driver: GroupDriver) -> None:
    members, _ = driver.stable_group(2)
    token, _ = driver.join(members[0])
    driver.leave((members[0], None))
    assert driver.answers[token].error_code == ErrorCode.UNKNOWN_MEMBER_ID


# Static members


def static_group(driver: GroupDriver, version: int = 9) -> tuple[str, str]:
    """Two static members, `i0` leads. Returns their member ids."""
    _, first = driver.join(instance="i0", version=version)
    assert first is not None
    token, _ = driver.join(instance="i1", version=version)
    driver.join(first.member_id, instance="i0", version=version)
    second = driver.answers[token]
    driver.sync(second.member_id, 2, instance="i1")
    driver.sync(first.member_id, 2, {first.member_id: b"a0", second.member_id: b"a1"}, instance="i0")
    assert state(driver) == "Stable"
    return first.member_id, second.member_id


def test_a_static_member_restarts_without_a_rebalance(driver: GroupDriver) -> None:
    _, old = static_group(driver)
    _, reply = driver.join(instance="i1")
    assert reply is not None
    assert reply.error_code == ErrorCode.NONE and reply.generation_id == 2
    assert reply.member_id != old and not reply.skip_assignment
    assert state(driver) == "Stable"
    _, synced = driver.sync(reply.member_id, 2, instance="i1")
    assert synced is not None and synced.assignment == b"a1"


def test_the_old_self_of_a_static_member_is_fenced(driver: GroupDriver) -> None:
    _, old = static_group(driver)
    driver.join(instance="i1")
    assert driver.heartbeat(old, 2, instance="i1") == ErrorCode.FENCED_INSTANCE_ID
    assert driver.commit(member_id=old, generation=2, instance="i1") == ErrorCode.FENCED_INSTANCE_ID
    _, reply = driver.sync(old, 2, instance="i1")
    assert reply is not None and reply.error_code == ErrorCode.FENCED_INSTANCE_ID
    _, joined = driver.join(old, instance="i1")
    assert joined is not None and joined.error_code == ErrorCode.FENCED_INSTANCE_ID
    assert driver.leave((old, "i1")).members[0].error_code == ErrorCode.FENCED_INSTANCE_ID


def test_a_static_leader_that_restarts_keeps_the_assignment(driver: GroupDriver) -> None:
    static_group(driver)
    _, reply = driver.join(instance="i0", version=9)
    assert reply is not None
    assert reply.leader == reply.member_id and reply.skip_assignment
    assert len(reply.members) == 2


def test_before_version_9_a_static_leader_is_told_that_its_old_self_leads(driver: GroupDriver) -> None:
    leader, _ = static_group(driver, version=8)
    _, reply = driver.join(instance="i0", version=8)
    assert reply is not None
    assert reply.leader == leader and reply.members == [] and not reply.skip_assignment


def test_a_static_member_that_changes_the_chosen_protocol_begins_a_rebalance(driver: GroupDriver) -> None:
    driver.join(instance="i0", protocols=[("a", b""), ("b", b"")])
    leader = group_of(driver).leader_id
    assert leader is not None
    driver.sync(leader, 1, {}, instance="i0")
    _, reply = driver.join(instance="i0", protocols=[("b", b""), ("a", b"")])
    assert reply is not None and reply.generation_id == 2 and reply.protocol_name == "b"


def test_a_static_member_may_be_late_without_losing_its_place(driver: GroupDriver) -> None:
    first, second = static_group(driver)
    token, _ = driver.join(first, instance="i0", rebalance_ms=5_000, protocols=[("range", subscription("audit"))])
    group_of(driver).members[second].session_timeout_ms = 100_000
    driver.heartbeat(second, 2, instance="i1")
    driver.pass_ms(60_000)
    assert driver.answers[token].generation_id == 3
    assert second in group_of(driver).members


@pytest.mark.timeout(10)
def test_members_that_may_take_no_time_to_join_again_do_not_stop_the_clock(driver: GroupDriver) -> None:
    """Static members are not given up when nobody comes: the group waits once more, which must not be forever now."""
    _, first = driver.join(instance="a", rebalance_ms=0)
    assert first is not None
    assert driver.sync(first.member_id, 1, {}, instance="a")[1] is not None
    leaving, _ = driver.join(instance="b")
    driver.join(first.member_id, instance="a", rebalance_ms=0)
    second = driver.answers[leaving].member_id
    assert driver.sync(first.member_id, 2, {}, instance="a")[1] is not None
    assert driver.sync(second, 2, instance="b")[1] is not None
    driver.leave((second, "b"))
    driver.pass_ms(5)
    group = driver.coordinator.groups[GROUP]
    assert group.state.value == "PreparingRebalance"
    driver.pass_ms(10_000)
    assert group.state.value == "Empty", "its session has ended"


def test_an_administrator_removes_a_static_member_by_its_instance_id(driver: GroupDriver) -> None:
    _, second = static_group(driver)
    assert driver.leave(("", "i1")).members[0].error_code == ErrorCode.NONE
    assert second not in group_of(driver).members


# Memory


def test_a_generation_nobody_wrote_is_not_remembered(driver: GroupDriver) -> None:
    driver.stable_group(1)
    driver.admitted()
    before = group_of(driver.restarted())
    assert before.generation_id == 1 and len(before.members) == 1 and before.state.value == "Stable"


def test_after_a_restart_members_go_on_where_they_were(driver: GroupDriver) -> None:
    members, generation = driver.stable_group(2)
    other = driver.restarted()
    assert other.heartbeat(members[1], generation) == ErrorCode.NONE
    assert other.commit(member_id=members[1], generation=generation) == ErrorCode.NONE
    _, reply = other.sync(members[1], generation)
    assert reply is not None and reply.assignment == b"a1"
    other.pass_ms(60_000)
    assert state(other) == "Empty"


def test_a_failed_write_of_the_assignment_begins_again(driver: GroupDriver) -> None:
    members, _ = driver.stable_group(1)
    other, _, _ = driver.admitted()
    driver.join(members[0])
    token, _ = driver.sync(other, 2)
    driver.fail_next = True
    _, reply = driver.sync(members[0], 2, {members[0]: b"x", other: b"y"})
    assert reply is not None and reply.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.answers[token].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert state(driver) == "PreparingRebalance"
    assert all(member.assignment == b"" for member in group_of(driver).members.values())


def test_a_group_whose_first_record_failed_was_never_there(driver: GroupDriver) -> None:
    driver.fail_next = True
    _, reply = driver.join()
    assert reply is not None and reply.error_code != ErrorCode.NONE
    assert GROUP not in driver.coordinator.groups
    driver.fail_next = True
    _, reply = driver.join(version=3)
    assert reply is not None and reply.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert GROUP not in driver.coordinator.groups


def test_a_parked_join_is_refused_when_the_first_record_of_its_group_failed() -> None:
    driver = GroupDriver(GroupSettings(group_initial_rebalance_delay_ms=1000))
    driver.fail_next = True
    token, reply = driver.join(version=3)
    assert reply is not None and reply.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert GROUP not in driver.coordinator.groups
    driver.pass_ms(400_000)
    assert list(driver.answers) == [token], "its timers find no group"
    _, again = driver.join(version=3)
    assert again is None, "nothing of the first attempt is left"
    assert len(group_of(driver).members) == 1


def test_a_consumer_group_stays_when_the_classic_group_in_its_place_could_not_be_written(driver: GroupDriver) -> None:
    driver.consumer_heartbeat("a", 0)
    driver.consumer_heartbeat("a", -1)
    emptied = driver.coordinator.groups[GROUP]
    assert isinstance(emptied, ConsumerGroup) and not emptied.members
    driver.fail_next = True
    _, reply = driver.join(version=3)
    assert reply is not None and reply.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.coordinator.groups[GROUP] is emptied
    _, reply = driver.join(version=3)
    assert reply is not None and reply.error_code == ErrorCode.NONE
    assert isinstance(driver.coordinator.groups[GROUP], ClassicGroup)
    assert isinstance(driver.restarted().coordinator.groups[GROUP], ClassicGroup)


def test_a_failed_write_of_a_replaced_static_member_gives_the_old_one_its_place_back(driver: GroupDriver) -> None:
    _, old = static_group(driver)
    driver.fail_next = True
    _, reply = driver.join(instance="i1")
    assert reply is not None and reply.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.heartbeat(old, 2, instance="i1") == ErrorCode.NONE
    assert list(group_of(driver).members)[1] == old


def test_a_partition_that_is_not_loaded_is_not_served(driver: GroupDriver) -> None:
    driver.stable_group(1)
    partition = driver.coordinator.partition_for(GROUP)
    for decision in driver.coordinator.unload(partition):
        driver.do(decision)
    assert driver.heartbeat("m", 1) == ErrorCode.NOT_COORDINATOR
    driver.coordinator.load(partition, 2)
    assert driver.join("m")[1].error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert driver.heartbeat("m", 1) == ErrorCode.NONE, "as from Kafka: some clients end with any other answer"
    assert driver.fetched() == (-1, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    reply = driver.do(driver.coordinator.list_groups(ListGroupsRequest(), 5, driver.now_ms))
    assert reply.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_whoever_waits_is_sent_away_when_the_partition_moves(driver: GroupDriver) -> None:
    members, _ = driver.stable_group(2)
    token, _ = driver.join(members[0])
    for decision in driver.coordinator.unload(driver.coordinator.partition_for(GROUP)):
        driver.do(decision)
    assert driver.answers[token].error_code == ErrorCode.NOT_COORDINATOR


# Administration


def test_describe_shows_members_of_a_stable_group(driver: GroupDriver) -> None:
    members, _ = driver.stable_group(2)
    request = DescribeGroupsRequest(groups=[GROUP, "nowhere"])
    there, missing = driver.do(driver.coordinator.describe_groups(request, 6, driver.now_ms)).groups
    assert (there.group_state, there.protocol_type, there.protocol_data) == ("Stable", "consumer", "range")
    assert {m.member_id: m.member_assignment for m in there.members} == {members[0]: b"a0", members[1]: b"a1"}
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND and missing.group_state == "Dead"
    older = driver.do(driver.coordinator.describe_groups(request, 5, driver.now_ms)).groups[1]
    assert older.error_code == ErrorCode.NONE and older.group_state == "Dead"


def test_list_filters_by_state_and_type(driver: GroupDriver) -> None:
    driver.stable_group(1)
    driver.commit(group="offsets-only")

    def ids(**filters: list[str]) -> set[str]:
        reply = driver.do(driver.coordinator.list_groups(ListGroupsRequest(**filters), 5, driver.now_ms))
        return {group.group_id for group in reply.groups}

    assert ids() == {GROUP, "offsets-only"}
    assert ids(states_filter=["stable"]) == {GROUP}
    assert ids(states_filter=["Empty"]) == {"offsets-only"}
    assert ids(types_filter=["classic"]) == {GROUP, "offsets-only"}
    assert ids(types_filter=["consumer"]) == set()


def test_only_a_group_without_members_can_be_deleted(driver: GroupDriver) -> None:
    members, generation = driver.stable_group(1)
    driver.commit(member_id=members[0], generation=generation)
    request = DeleteGroupsRequest(groups_names=[GROUP, "nowhere"])

    def codes() -> list[int]:
        return [
            row.error_code for row in driver.do(driver.coordinator.delete_groups(request, 2, driver.now_ms)).results
        ]

    assert codes() == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
    driver.leave((members[0], None))
    assert codes() == [ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND]
    assert GROUP not in driver.coordinator.groups and driver.fetched() == (-1, ErrorCode.NONE)
    assert GROUP not in driver.restarted().coordinator.groups


@pytest.mark.parametrize(
    ("group_id", "partition"),
    [("", 0), ("a", 47), ("console-consumer-1", 24), ("polygenelubricants", 0), ("grüße-𝄞", 22)],
)
def test_a_group_lives_where_kafka_would_put_it(driver: GroupDriver, group_id: str, partition: int) -> None:
    assert driver.coordinator.partition_for(group_id) == partition
