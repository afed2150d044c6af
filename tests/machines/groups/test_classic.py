"""The classic protocol: joining, syncing, heartbeats, leaving, static members, timeouts."""

from __future__ import annotations

from typing import Any

import pytest

from semel.errors import ErrorCode
from semel.machines.groups.classic.group import ClassicGroup
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
from tests.machines.groups.group_host import GROUP, Host, subscription


def group_of(host: Host, group_id: str = GROUP) -> ClassicGroup:
    group = host.machine.groups[group_id]
    assert isinstance(group, ClassicGroup)
    return group


def state(host: Host) -> str:
    return group_of(host).state.value


@pytest.fixture
def host() -> Host:
    return Host()


# Joining


def test_a_new_member_is_given_its_id_before_it_joins(host: Host) -> None:
    _, asked = host.join(client_id="spark")
    assert asked is not None
    assert asked.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert asked.member_id == "spark-00000001"
    _, joined = host.join(asked.member_id)
    assert joined is not None
    assert (joined.error_code, joined.generation_id, joined.leader) == (ErrorCode.NONE, 1, asked.member_id)
    assert [member.member_id for member in joined.members] == [asked.member_id]


@pytest.mark.parametrize("version", range(4))
def test_before_version_4_a_member_joins_at_once(host: Host, version: int) -> None:
    _, joined = host.join(version=version)
    assert joined is not None
    assert joined.error_code == ErrorCode.NONE
    assert joined.member_id == "app-00000001"
    encode(joined, version)


@pytest.mark.parametrize("version", range(10))
def test_a_refused_join_can_be_said_in_every_version(host: Host, version: int) -> None:
    _, refused = host.join(version=version, session_ms=1)
    assert refused is not None
    assert refused.error_code == ErrorCode.INVALID_SESSION_TIMEOUT
    encode(refused, version)


@pytest.mark.parametrize(
    ("session_ms", "allowed"), [(5999, False), (6000, True), (1_800_000, True), (1_800_001, False)]
)
def test_session_timeouts_have_bounds(host: Host, session_ms: int, allowed: bool) -> None:
    _, reply = host.join(session_ms=session_ms)
    assert reply is not None
    assert (reply.error_code != ErrorCode.INVALID_SESSION_TIMEOUT) is allowed


def test_a_join_with_an_id_nobody_gave_is_refused(host: Host) -> None:
    _, reply = host.join("ghost")
    assert reply is not None and reply.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert GROUP not in host.machine.groups
    host.stable_group(1)
    _, reply = host.join("ghost")
    assert reply is not None and reply.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_group_id_is_needed(host: Host) -> None:
    _, reply = host.join(group="")
    assert reply is not None and reply.error_code == ErrorCode.INVALID_GROUP_ID
    assert host.heartbeat("m", 1, group="") == ErrorCode.INVALID_GROUP_ID


def test_members_must_have_a_protocol_in_common(host: Host) -> None:
    host.stable_group(1)
    for options in ({"protocols": [("sticky", b"")]}, {"protocol_type": "connect"}, {"protocols": []}):
        _, reply = host.join(**options)  # type: ignore[arg-type]
        assert reply is not None and reply.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_the_protocol_most_members_like_best_is_chosen(host: Host) -> None:
    host = Host(GroupSettings(group_initial_rebalance_delay_ms=100))
    tokens = [
        host.admitted(protocols=[(name, b"") for name in names])[1]
        for names in (["a", "b", "c"], ["b", "a"], ["b", "c", "a"])
    ]
    host.pass_ms(1000)
    assert {host.answers[token].protocol_name for token in tokens} == {"b"}


def test_a_full_group_takes_no_more(host: Host) -> None:
    host = Host(GroupSettings(group_initial_rebalance_delay_ms=0, group_max_size=2))
    members, _ = host.stable_group(2)
    _, reply = host.join()
    assert reply is not None and reply.error_code == ErrorCode.GROUP_MAX_SIZE_REACHED
    _, reply = host.join(members[1])
    assert reply is not None and reply.error_code == ErrorCode.NONE


def test_a_new_group_waits_for_more_members_and_longer_while_they_come() -> None:
    host = Host(GroupSettings(group_initial_rebalance_delay_ms=3000))
    _, first, reply = host.admitted(rebalance_ms=7000)
    assert reply is None
    host.pass_ms(2000)
    _, second, _ = host.admitted(rebalance_ms=7000)
    host.pass_ms(1000)
    assert first not in host.answers, "a member came meanwhile, so the wait begins again"
    host.pass_ms(2999)
    assert first not in host.answers
    host.pass_ms(1)
    assert host.answers[first].generation_id == host.answers[second].generation_id == 1
    assert len(host.answers[first].members) == 2


def test_a_new_group_never_waits_past_the_rebalance_timeout() -> None:
    host = Host(GroupSettings(group_initial_rebalance_delay_ms=3000))
    _, first, _ = host.admitted(rebalance_ms=7000)
    for _ in range(7):
        host.pass_ms(1000)
        host.admitted(rebalance_ms=7000)
    assert first in host.answers


def test_only_the_leader_hears_who_is_in(host: Host) -> None:
    members, _ = host.stable_group(1)
    _, _, reply = host.admitted()
    assert reply is None, "the newcomer waits for the others"
    assert host.heartbeat(members[0], 1) == ErrorCode.REBALANCE_IN_PROGRESS
    _, rejoined = host.join(members[0])
    assert rejoined is not None and len(rejoined.members) == 2
    newcomer = next(reply for reply in host.answers.values() if isinstance(reply, JoinGroupResponse))
    assert newcomer.members == [] and newcomer.leader == members[0]


def test_a_follower_that_rejoins_unchanged_gets_the_generation_there_is(host: Host) -> None:
    members, generation = host.stable_group(2)
    _, reply = host.join(members[1])
    assert reply is not None and reply.generation_id == generation
    assert state(host) == "Stable"


def test_a_leader_that_rejoins_begins_a_rebalance(host: Host) -> None:
    members, _ = host.stable_group(2)
    _, reply = host.join(members[0])
    assert reply is None
    assert state(host) == "PreparingRebalance"


def test_a_member_that_changes_what_it_wants_begins_a_rebalance(host: Host) -> None:
    members, _ = host.stable_group(2)
    _, reply = host.join(members[1], protocols=[("range", subscription("audit"))])
    assert reply is None
    assert state(host) == "PreparingRebalance"


def test_a_member_that_lost_the_answer_to_its_join_hears_it_again(host: Host) -> None:
    member_id, _, first = host.admitted()
    _, again = host.join(member_id)
    assert again is not None and first is not None
    assert again.generation_id == first.generation_id and len(again.members) == 1


def test_a_second_join_of_the_same_member_releases_the_first(host: Host) -> None:
    members, _ = host.stable_group(2)
    first, _ = host.join(members[0])
    second, _ = host.join(members[0])
    assert host.answers[first].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    host.join(members[1])
    assert host.answers[second].error_code == ErrorCode.NONE


# Syncing


def test_everybody_gets_what_the_leader_gave_them(host: Host) -> None:
    members, generation = host.stable_group(3)
    for position, member_id in enumerate(members):
        _, reply = host.sync(member_id, generation)
        assert reply is not None and reply.assignment == f"a{position}".encode()


def test_followers_wait_for_the_leader(host: Host) -> None:
    members, _ = host.stable_group(1)
    other, _, _ = host.admitted()
    host.join(members[0])
    token, reply = host.sync(other, 2)
    assert reply is None
    host.sync(members[0], 2, {other: b"mine"})
    assert host.answers[token].assignment == b"mine"


def test_sync_says_why_not(host: Host) -> None:
    members, generation = host.stable_group(2)

    def code(member_id: str, generation: int, **options: Any) -> ErrorCode:
        _, reply = host.sync(member_id, generation, **options)
        assert reply is not None
        return ErrorCode(reply.error_code)

    assert code("ghost", generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert code(members[0], generation - 1) == ErrorCode.ILLEGAL_GENERATION
    for wrong in (("connect", "range"), ("consumer", "sticky")):
        named = {"protocol_type": wrong[0], "protocol_name": wrong[1]}
        assert code(members[0], generation, **named) == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert code(members[0], generation, group="other") == ErrorCode.UNKNOWN_MEMBER_ID
    host.join(members[0])
    assert code(members[1], generation) == ErrorCode.REBALANCE_IN_PROGRESS


def test_from_version_5_sync_names_the_protocol(host: Host) -> None:
    members, generation = host.stable_group(1)
    request = SyncGroupRequest(group_id=GROUP, generation_id=generation, member_id=members[0])
    reply = host.do(host.machine.sync_group(request, 5, host.now_ms, host.token()))
    assert reply.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    _, named = host.sync(members[0], generation, protocol_type="consumer", protocol_name="range")
    assert named is not None and named.assignment == b"a0"


def test_a_rebalance_sends_whoever_waits_for_the_leader_back(host: Host) -> None:
    members, _ = host.stable_group(1)
    other, _, _ = host.admitted()
    host.join(members[0])
    token, _ = host.sync(other, 2)
    host.admitted()
    assert host.answers[token].error_code == ErrorCode.REBALANCE_IN_PROGRESS


def test_members_that_never_sync_are_put_out(host: Host) -> None:
    members, _ = host.stable_group(1, rebalance_ms=20_000, session_ms=30_000)
    silent, _, _ = host.admitted(rebalance_ms=20_000, session_ms=30_000)
    host.join(members[0], rebalance_ms=20_000, session_ms=30_000)
    host.sync(members[0], 2, {})
    assert state(host) == "Stable"
    host.pass_ms(20_000)
    assert silent not in group_of(host).members
    assert state(host) == "PreparingRebalance"


# Heartbeats and time


def test_a_heartbeat_says_where_the_member_stands(host: Host) -> None:
    members, generation = host.stable_group(1)
    assert host.heartbeat(members[0], generation) == ErrorCode.NONE
    assert host.heartbeat(members[0], generation + 1) == ErrorCode.ILLEGAL_GENERATION
    assert host.heartbeat("ghost", generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert host.heartbeat(members[0], generation, group="other") == ErrorCode.UNKNOWN_MEMBER_ID
    assert host.heartbeat(members[0], generation, instance="i") == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_silent_member_is_out_when_its_session_ends(host: Host) -> None:
    members, generation = host.stable_group(2)
    host.pass_ms(9_000)
    host.heartbeat(members[0], generation)
    host.pass_ms(1_000)
    assert list(group_of(host).members) == [members[0]]
    assert host.heartbeat(members[0], generation) == ErrorCode.REBALANCE_IN_PROGRESS
    assert host.heartbeat(members[1], generation) == ErrorCode.UNKNOWN_MEMBER_ID


def test_when_the_leader_fails_another_member_leads(host: Host) -> None:
    members, generation = host.stable_group(2)
    host.pass_ms(9_000)
    host.heartbeat(members[1], generation)
    host.pass_ms(1_000)
    _, reply = host.join(members[1])
    assert reply is not None
    assert (reply.leader, reply.generation_id) == (members[1], generation + 1)


def test_a_commit_is_as_good_as_a_heartbeat(host: Host) -> None:
    members, generation = host.stable_group(1)
    host.pass_ms(9_000)
    assert host.commit(member_id=members[0], generation=generation) == ErrorCode.NONE
    host.pass_ms(9_000)
    assert host.heartbeat(members[0], generation) == ErrorCode.NONE


def test_whoever_waits_in_a_join_is_not_timed_out(host: Host) -> None:
    members, generation = host.stable_group(2)
    token, _ = host.join(members[0])
    for _ in range(5):
        host.pass_ms(9_000)
        host.heartbeat(members[1], generation)
    assert members[0] in group_of(host).members and token not in host.answers


def test_members_that_do_not_rejoin_in_time_are_left_behind(host: Host) -> None:
    members, generation = host.stable_group(2, rebalance_ms=15_000)
    token, _ = host.join(members[0], rebalance_ms=15_000)
    host.pass_ms(9_000)
    host.heartbeat(members[1], generation)
    host.pass_ms(6_000)
    assert host.answers[token].generation_id == generation + 1
    assert list(group_of(host).members) == [members[0]]


def test_an_id_that_is_never_used_does_not_hold_the_group_up(host: Host) -> None:
    members, _ = host.stable_group(1)
    host.join()
    token, _ = host.join(members[0])
    assert token not in host.answers, "the newcomer may still come"
    host.pass_ms(10_000)
    assert host.answers[token].error_code == ErrorCode.NONE


def test_a_group_whose_members_are_gone_is_empty_and_its_generation_is_written(host: Host) -> None:
    _, generation = host.stable_group(2)
    host.pass_ms(60_000)
    assert state(host) == "Empty"
    again = group_of(host.restarted())
    assert (again.state.value, again.generation_id, again.protocol_type) == ("Empty", generation + 1, "consumer")


# Leaving


def test_a_member_that_leaves_begins_a_rebalance(host: Host) -> None:
    members, _ = host.stable_group(2)
    reply = host.leave((members[1], None))
    assert [member.error_code for member in reply.members] == [ErrorCode.NONE]
    assert state(host) == "PreparingRebalance"


def test_leaving_answers_for_each_member(host: Host) -> None:
    members, _ = host.stable_group(1)
    _, asked = host.join()
    assert asked is not None
    reply = host.leave(("ghost", None), (members[0], None), (asked.member_id, None), ("", "nobody"))
    assert [member.error_code for member in reply.members] == [
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert state(host) == "Empty"


@pytest.mark.parametrize("version", range(6))
def test_leaving_a_group_that_is_not_there(host: Host, version: int) -> None:
    request = LeaveGroupRequest(
        group_id="nowhere", member_id="m", members=[LeaveGroupRequest.MemberIdentity(member_id="m")]
    )
    reply = host.do(host.machine.leave_group(request, version, host.now_ms))
    code = reply.error_code if version < 3 else reply.members[0].error_code
    assert code == ErrorCode.UNKNOWN_MEMBER_ID
    encode(reply, version)


def test_a_member_that_leaves_while_it_waits_is_told_so(host: Host) -> None:
    members, _ = host.stable_group(2)
    token, _ = host.join(members[0])
    host.leave((members[0], None))
    assert host.answers[token].error_code == ErrorCode.UNKNOWN_MEMBER_ID


# Static members


def static_group(host: Host, version: int = 9) -> tuple[str, str]:
    """Two static members, `i0` leads. Returns their member ids."""
    _, first = host.join(instance="i0", version=version)
    assert first is not None
    token, _ = host.join(instance="i1", version=version)
    host.join(first.member_id, instance="i0", version=version)
    second = host.answers[token]
    host.sync(second.member_id, 2, instance="i1")
    host.sync(first.member_id, 2, {first.member_id: b"a0", second.member_id: b"a1"}, instance="i0")
    assert state(host) == "Stable"
    return first.member_id, second.member_id


def test_a_static_member_restarts_without_a_rebalance(host: Host) -> None:
    _, old = static_group(host)
    _, reply = host.join(instance="i1")
    assert reply is not None
    assert reply.error_code == ErrorCode.NONE and reply.generation_id == 2
    assert reply.member_id != old and not reply.skip_assignment
    assert state(host) == "Stable"
    _, synced = host.sync(reply.member_id, 2, instance="i1")
    assert synced is not None and synced.assignment == b"a1"


def test_the_old_self_of_a_static_member_is_fenced(host: Host) -> None:
    _, old = static_group(host)
    host.join(instance="i1")
    assert host.heartbeat(old, 2, instance="i1") == ErrorCode.FENCED_INSTANCE_ID
    assert host.commit(member_id=old, generation=2, instance="i1") == ErrorCode.FENCED_INSTANCE_ID
    _, reply = host.sync(old, 2, instance="i1")
    assert reply is not None and reply.error_code == ErrorCode.FENCED_INSTANCE_ID
    _, joined = host.join(old, instance="i1")
    assert joined is not None and joined.error_code == ErrorCode.FENCED_INSTANCE_ID
    assert host.leave((old, "i1")).members[0].error_code == ErrorCode.FENCED_INSTANCE_ID


def test_a_static_leader_that_restarts_keeps_the_assignment(host: Host) -> None:
    static_group(host)
    _, reply = host.join(instance="i0", version=9)
    assert reply is not None
    assert reply.leader == reply.member_id and reply.skip_assignment
    assert len(reply.members) == 2


def test_before_version_9_a_static_leader_is_told_that_its_old_self_leads(host: Host) -> None:
    leader, _ = static_group(host, version=8)
    _, reply = host.join(instance="i0", version=8)
    assert reply is not None
    assert reply.leader == leader and reply.members == [] and not reply.skip_assignment


def test_a_static_member_that_changes_the_chosen_protocol_begins_a_rebalance(host: Host) -> None:
    host.join(instance="i0", protocols=[("a", b""), ("b", b"")])
    leader = group_of(host).leader_id
    assert leader is not None
    host.sync(leader, 1, {}, instance="i0")
    _, reply = host.join(instance="i0", protocols=[("b", b""), ("a", b"")])
    assert reply is not None and reply.generation_id == 2 and reply.protocol_name == "b"


def test_a_static_member_may_be_late_without_losing_its_place(host: Host) -> None:
    first, second = static_group(host)
    token, _ = host.join(first, instance="i0", rebalance_ms=5_000, protocols=[("range", subscription("audit"))])
    group_of(host).members[second].session_timeout_ms = 100_000
    host.heartbeat(second, 2, instance="i1")
    host.pass_ms(60_000)
    assert host.answers[token].generation_id == 3
    assert second in group_of(host).members


@pytest.mark.timeout(10)
def test_members_that_may_take_no_time_to_join_again_do_not_stop_the_clock(host: Host) -> None:
    """Static members are not given up when nobody comes: the group waits once more, which must not be forever now."""
    _, first = host.join(instance="a", rebalance_ms=0)
    assert first is not None
    assert host.sync(first.member_id, 1, {}, instance="a")[1] is not None
    leaving, _ = host.join(instance="b")
    host.join(first.member_id, instance="a", rebalance_ms=0)
    second = host.answers[leaving].member_id
    assert host.sync(first.member_id, 2, {}, instance="a")[1] is not None
    assert host.sync(second, 2, instance="b")[1] is not None
    host.leave((second, "b"))
    host.pass_ms(5)
    group = host.machine.groups[GROUP]
    assert group.state.value == "PreparingRebalance"
    host.pass_ms(10_000)
    assert group.state.value == "Empty", "its session has ended"


def test_an_administrator_removes_a_static_member_by_its_instance_id(host: Host) -> None:
    _, second = static_group(host)
    assert host.leave(("", "i1")).members[0].error_code == ErrorCode.NONE
    assert second not in group_of(host).members


# Memory


def test_a_generation_nobody_wrote_is_not_remembered(host: Host) -> None:
    host.stable_group(1)
    host.admitted()
    before = group_of(host.restarted())
    assert before.generation_id == 1 and len(before.members) == 1 and before.state.value == "Stable"


def test_after_a_restart_members_go_on_where_they_were(host: Host) -> None:
    members, generation = host.stable_group(2)
    other = host.restarted()
    assert other.heartbeat(members[1], generation) == ErrorCode.NONE
    assert other.commit(member_id=members[1], generation=generation) == ErrorCode.NONE
    _, reply = other.sync(members[1], generation)
    assert reply is not None and reply.assignment == b"a1"
    other.pass_ms(60_000)
    assert state(other) == "Empty"


def test_a_failed_write_of_the_assignment_begins_again(host: Host) -> None:
    members, _ = host.stable_group(1)
    other, _, _ = host.admitted()
    host.join(members[0])
    token, _ = host.sync(other, 2)
    host.fail_next = True
    _, reply = host.sync(members[0], 2, {members[0]: b"x", other: b"y"})
    assert reply is not None and reply.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert host.answers[token].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert state(host) == "PreparingRebalance"
    assert all(member.assignment == b"" for member in group_of(host).members.values())


def test_a_group_whose_first_record_failed_was_never_there(host: Host) -> None:
    host.fail_next = True
    _, reply = host.join()
    assert reply is not None and reply.error_code != ErrorCode.NONE
    assert GROUP not in host.machine.groups
    host.fail_next = True
    _, reply = host.join(version=3)
    assert reply is not None and reply.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert GROUP not in host.machine.groups


def test_a_failed_write_of_a_replaced_static_member_gives_the_old_one_its_place_back(host: Host) -> None:
    _, old = static_group(host)
    host.fail_next = True
    _, reply = host.join(instance="i1")
    assert reply is not None and reply.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert host.heartbeat(old, 2, instance="i1") == ErrorCode.NONE
    assert list(group_of(host).members)[1] == old


def test_a_partition_that_is_not_loaded_is_not_served(host: Host) -> None:
    host.stable_group(1)
    partition = host.machine.partition_for(GROUP)
    for decision in host.machine.unload(partition):
        host.do(decision)
    assert host.heartbeat("m", 1) == ErrorCode.NOT_COORDINATOR
    host.machine.load(partition, 2)
    assert host.heartbeat("m", 1) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert host.fetched() == (-1, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    reply = host.do(host.machine.list_groups(ListGroupsRequest(), 5, host.now_ms))
    assert reply.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_whoever_waits_is_sent_away_when_the_partition_moves(host: Host) -> None:
    members, _ = host.stable_group(2)
    token, _ = host.join(members[0])
    for decision in host.machine.unload(host.machine.partition_for(GROUP)):
        host.do(decision)
    assert host.answers[token].error_code == ErrorCode.NOT_COORDINATOR


# Administration


def test_describe_shows_members_of_a_stable_group(host: Host) -> None:
    members, _ = host.stable_group(2)
    request = DescribeGroupsRequest(groups=[GROUP, "nowhere"])
    there, missing = host.do(host.machine.describe_groups(request, 6, host.now_ms)).groups
    assert (there.group_state, there.protocol_type, there.protocol_data) == ("Stable", "consumer", "range")
    assert {m.member_id: m.member_assignment for m in there.members} == {members[0]: b"a0", members[1]: b"a1"}
    assert missing.error_code == ErrorCode.GROUP_ID_NOT_FOUND and missing.group_state == "Dead"
    older = host.do(host.machine.describe_groups(request, 5, host.now_ms)).groups[1]
    assert older.error_code == ErrorCode.NONE and older.group_state == "Dead"


def test_list_filters_by_state_and_type(host: Host) -> None:
    host.stable_group(1)
    host.commit(group="offsets-only")

    def ids(**filters: list[str]) -> set[str]:
        reply = host.do(host.machine.list_groups(ListGroupsRequest(**filters), 5, host.now_ms))
        return {group.group_id for group in reply.groups}

    assert ids() == {GROUP, "offsets-only"}
    assert ids(states_filter=["stable"]) == {GROUP}
    assert ids(states_filter=["Empty"]) == {"offsets-only"}
    assert ids(types_filter=["classic"]) == {GROUP, "offsets-only"}
    assert ids(types_filter=["consumer"]) == set()


def test_only_a_group_without_members_can_be_deleted(host: Host) -> None:
    members, generation = host.stable_group(1)
    host.commit(member_id=members[0], generation=generation)
    request = DeleteGroupsRequest(groups_names=[GROUP, "nowhere"])

    def codes() -> list[int]:
        return [row.error_code for row in host.do(host.machine.delete_groups(request, 2, host.now_ms)).results]

    assert codes() == [ErrorCode.NON_EMPTY_GROUP, ErrorCode.GROUP_ID_NOT_FOUND]
    host.leave((members[0], None))
    assert codes() == [ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND]
    assert GROUP not in host.machine.groups and host.fetched() == (-1, ErrorCode.NONE)
    assert GROUP not in host.restarted().machine.groups


@pytest.mark.parametrize(
    ("group_id", "partition"),
    [("", 0), ("a", 47), ("console-consumer-1", 24), ("polygenelubricants", 0), ("grüße-𝄞", 22)],
)
def test_a_group_lives_where_kafka_would_put_it(host: Host, group_id: str, partition: int) -> None:
    assert host.machine.partition_for(group_id) == partition
