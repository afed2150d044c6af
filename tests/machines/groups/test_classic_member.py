"""A member's half of the classic group: the table, both ways to rebalance, and how partitions are shared out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.errors import ErrorCode, MemberFenced
from semel.machines.groups.classic.assignors import ASSIGNORS, Subscriber, assign_cooperative_sticky, assign_sticky
from semel.machines.groups.classic.member import (
    CLASSIC_MEMBERSHIP_STEPS,
    ClassicMembership,
    ClassicMembershipEvent,
    ClassicMembershipState,
)
from semel.machines.values import TopicPartition
from semel.wire import encode_versioned
from semel.wire.messages.coordinator_records import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from semel.wire.messages.groups import HeartbeatResponse, JoinGroupResponse, SyncGroupResponse

P0, P1, P2 = (TopicPartition("ledger", number) for number in range(3))


def member(*assignors: str) -> ClassicMembership:
    machine = ClassicMembership("readers", assignors=assignors or ("range",))
    machine.subscribe(["ledger"])
    return machine


def assignment(*partitions: TopicPartition) -> bytes:
    rows = [ConsumerProtocolAssignment.TopicPartition(topic="ledger", partitions=[p.partition for p in partitions])]
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=rows), 1)


def joined(
    machine: ClassicMembership, generation_id: int, *partitions: TopicPartition
) -> tuple[set[TopicPartition], ...]:
    """Join as a follower and get these partitions."""
    machine.join_request()
    machine.on_join(
        JoinGroupResponse(generation_id=generation_id, protocol_name="range", leader="other", member_id="me")
    )
    assert machine.state is ClassicMembershipState.SYNCING
    added, gone = machine.on_sync(SyncGroupResponse(assignment=assignment(*partitions)), now_ms=0)
    return set(added), set(gone)


def test_a_new_member_joins_again_with_the_id_it_is_given() -> None:
    machine = member()
    machine.join_request()
    machine.on_join(JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id="me"))
    assert machine.state is ClassicMembershipState.UNJOINED
    assert machine.join_request().member_id == "me"


def test_the_leader_shares_out_and_everybody_else_sends_nothing() -> None:
    machine = member()
    machine.join_request()
    metadata = encode_versioned(ConsumerProtocolSubscription(topics=["ledger"]), 3)
    members = [JoinGroupResponse.JoinGroupResponseMember(member_id=name, metadata=metadata) for name in ("a", "b")]
    machine.on_join(
        JoinGroupResponse(generation_id=1, protocol_name="range", leader="a", member_id="a", members=members)
    )
    assert machine.state is ClassicMembershipState.ASSIGNING
    assert machine.topics_to_assign() == {"ledger"}
    machine.assign({"ledger": 3})
    request = machine.sync_request()
    assert {row.member_id: row.assignment for row in request.assignments} == {
        "a": encode_versioned(_shared(0, 1), 3),
        "b": encode_versioned(_shared(2), 3),
    }


def _shared(*numbers: int) -> ConsumerProtocolAssignment:
    row = ConsumerProtocolAssignment.TopicPartition(topic="ledger", partitions=list(numbers))
    return ConsumerProtocolAssignment(assigned_partitions=[row])


def test_an_eager_member_lets_go_of_everything_before_it_joins_again() -> None:
    machine = member("range")
    assert joined(machine, 1, P0, P1) == ({P0, P1}, set())
    machine.on_heartbeat(HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    assert machine.to_revoke() == {P0, P1}
    with pytest.raises(BaseException, match="revokes"):
        machine.join_request()
    machine.let_go(machine.to_revoke())
    assert joined(machine, 2, P1) == ({P1}, set())


def test_a_cooperative_member_keeps_reading_and_lets_go_only_of_what_it_lost() -> None:
    machine = member("cooperative-sticky")
    joined(machine, 1, P0, P1)
    machine.on_heartbeat(HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    assert machine.to_revoke() == frozenset()
    assert joined(machine, 2, P0) == (set(), {P1})
    machine.let_go({P1})
    machine.rejoin()
    assert machine.state is ClassicMembershipState.UNJOINED
    assert joined(machine, 3, P0, P2) == ({P2}, set())
    assert machine.owned == {P0, P2}


def test_protocols_are_cooperative_only_if_all_on_offer_are() -> None:
    assert not member("range", "cooperative-sticky").is_cooperative
    assert member("cooperative-sticky").is_cooperative


def test_a_member_the_group_has_forgotten_loses_its_partitions_and_starts_anew() -> None:
    machine = member()
    joined(machine, 1, P0)
    machine.on_heartbeat(HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    assert (machine.lost, machine.state, machine.generation_id) == ({P0}, ClassicMembershipState.UNJOINED, -1)
    machine.let_go(machine.lost)
    assert machine.join_request().member_id == ""


def test_a_member_whose_generation_has_passed_loses_its_partitions_but_not_its_name() -> None:
    """The group may still count it in: under a new name it would wait for the old one until the session ends."""
    machine = member()
    joined(machine, 1, P0)
    machine.on_heartbeat(HeartbeatResponse(error_code=ErrorCode.ILLEGAL_GENERATION))
    assert (machine.lost, machine.state, machine.generation_id) == ({P0}, ClassicMembershipState.UNJOINED, -1)
    machine.let_go(machine.lost)
    assert machine.join_request().member_id == "me"
    machine.on_join(JoinGroupResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    assert machine.join_request().member_id == "", "if the group has forgotten it after all, it says so"


def test_a_sync_of_a_generation_that_has_passed_does_not_cost_the_name_either() -> None:
    machine = member()
    machine.join_request()
    machine.on_join(JoinGroupResponse(generation_id=1, protocol_name="range", leader="other", member_id="me"))
    machine.on_sync(SyncGroupResponse(error_code=ErrorCode.ILLEGAL_GENERATION), 0)
    assert (machine.state, machine.member_id) == (ClassicMembershipState.UNJOINED, "me")


def test_a_silent_coordinator_costs_the_partitions_but_not_the_name() -> None:
    """A coordinator that was down gives every member a new session when it is back: a ghost would keep its group."""
    machine = member()
    joined(machine, 1, P0)
    machine.on_silence()
    assert machine.lost == {P0}
    machine.let_go(machine.lost)
    assert machine.join_request().member_id == "me"


REFUSALS = [ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.REBALANCE_IN_PROGRESS]


@pytest.mark.parametrize("code", REFUSALS)
def test_a_commit_that_is_refused_while_a_join_is_on_its_way_changes_nothing(code: ErrorCode) -> None:
    machine = member("cooperative-sticky")
    joined(machine, 1, P0)
    committed_as = machine.metadata
    machine.on_heartbeat(HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
    machine.join_request()
    machine.on_commit_refused(code, committed_as)
    machine.on_heartbeat(HeartbeatResponse(error_code=code))
    assert (machine.state, machine.member_id, machine.owned, machine.lost) == (
        ClassicMembershipState.JOINING,
        "me",
        {P0},
        set(),
    )
    machine.on_join(JoinGroupResponse(generation_id=2, protocol_name="range", leader="other", member_id="me"))
    machine.on_commit_refused(code, committed_as)
    assert machine.state is ClassicMembershipState.SYNCING
    machine.on_sync(SyncGroupResponse(assignment=assignment(P0)), 0)
    machine.on_commit_refused(code, committed_as)
    assert (machine.state, machine.member_id, machine.lost) == (ClassicMembershipState.STABLE, "me", set()), (
        "an answer to long ago"
    )


def test_a_commit_that_is_refused_in_the_generation_that_counts_is_news() -> None:
    for code, state, lost in (
        (ErrorCode.REBALANCE_IN_PROGRESS, ClassicMembershipState.UNJOINED, set()),
        (ErrorCode.UNKNOWN_MEMBER_ID, ClassicMembershipState.UNJOINED, {P0}),
        (ErrorCode.FENCED_INSTANCE_ID, ClassicMembershipState.FAILED, {P0}),
    ):
        machine = member("cooperative-sticky")
        joined(machine, 1, P0)
        machine.on_commit_refused(code, machine.metadata)
        assert (machine.state, machine.lost) == (state, lost)


def test_topics_that_change_while_a_join_is_on_its_way_are_told_by_another() -> None:
    machine = member("cooperative-sticky")
    machine.join_request()
    machine.subscribe(["ledger", "journal"])
    machine.on_join(JoinGroupResponse(generation_id=1, protocol_name="range", leader="other", member_id="me"))
    machine.on_sync(SyncGroupResponse(assignment=assignment(P0)), 0)
    assert machine.has_news
    machine.rejoin()
    joined(machine, 2, P0)
    assert not machine.has_news


def test_a_second_consumer_with_the_same_instance_id_ends_the_first() -> None:
    machine = member()
    joined(machine, 1, P0)
    machine.on_heartbeat(HeartbeatResponse(error_code=ErrorCode.FENCED_INSTANCE_ID))
    assert machine.state is ClassicMembershipState.FAILED
    assert isinstance(machine.error, MemberFenced)


def test_a_member_that_was_given_up_still_commits_under_its_old_name_so_as_to_be_refused() -> None:
    machine = member()
    joined(machine, 4, P0)
    as_member = machine.metadata
    assert (as_member.generation_id, as_member.member_id) == (4, "me")
    machine.on_poll_interval_passed()
    assert machine.metadata == as_member, "a commit of nobody in particular would be let through"
    machine.on_heartbeat(HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID))
    assert machine.metadata == as_member


def test_heartbeats_keep_their_interval() -> None:
    machine = member()
    assert machine.heartbeat_request(0) is None, "no member yet"
    joined(machine, 1, P0)
    assert machine.heartbeat_request(2_999) is None
    assert machine.heartbeat_request(3_000) is not None
    assert machine.heartbeat_request(3_001) is None


def test_a_static_member_leaves_without_a_word() -> None:
    static = ClassicMembership("readers", "instance-1")
    static.subscribe(["ledger"])
    joined(static, 1, P0)
    assert static.leave_request("bye") is None
    dynamic = member()
    joined(dynamic, 1, P0)
    assert dynamic.leave_request("bye") is not None
    assert dynamic.leave_request("bye") is None


def test_a_sync_answered_too_late_changes_nothing() -> None:
    machine = member()
    machine.join_request()
    machine.on_join(JoinGroupResponse(generation_id=1, protocol_name="range", leader="other", member_id="me"))
    machine.on_disconnect()
    assert machine.on_sync(SyncGroupResponse(assignment=assignment(P0)), 0) == (frozenset(), frozenset())
    assert machine.owned == frozenset()


def test_every_state_is_in_the_table() -> None:
    assert set(CLASSIC_MEMBERSHIP_STEPS) == set(ClassicMembershipState)
    assert ClassicMembershipEvent.SYNCED in CLASSIC_MEMBERSHIP_STEPS[ClassicMembershipState.SYNCING]


# --- sharing out --------------------------------------------------------------------------------------------------

TOPICS = ["a", "b", "c"]
members_and_counts = st.tuples(
    st.dictionaries(st.sampled_from("uvwxyz"), st.frozensets(st.sampled_from(TOPICS), min_size=1), min_size=1),
    st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 7)),
)


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(members_and_counts)
def test_every_partition_goes_to_one_member_that_wants_it(
    name: str, given_: tuple[dict[str, frozenset[str]], dict[str, int]]
) -> None:
    wants, counts = given_
    shares = ASSIGNORS[name]([Subscriber(member_id, topics) for member_id, topics in wants.items()], counts)
    dealt = [partition for share in shares.values() for partition in share]
    wanted = {topic for topics in wants.values() for topic in topics}
    expected = {TopicPartition(t, n) for t, count in counts.items() if t in wanted for n in range(count)}
    assert len(dealt) == len(set(dealt))
    assert set(dealt) == expected
    assert all(partition.topic in wants[member_id] for member_id, share in shares.items() for partition in share)


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 20))
def test_sticky_shares_are_even_and_keep_all_that_evenness_allows(before: int, after: int, count: int) -> None:
    counts = {"a": count}
    first = assign_sticky([Subscriber(str(n), frozenset("a")) for n in range(before)], counts)
    members = [Subscriber(str(n), frozenset("a"), None, frozenset(first.get(str(n), ())), 1) for n in range(after)]
    second = assign_sticky(members, counts)
    sizes = [len(share) for share in second.values()]
    assert max(sizes) - min(sizes) <= 1
    moved = sum(len(set(first.get(name, ())) - set(share)) for name, share in second.items())
    least = sum(max(0, len(first.get(name, ())) - (count // after + (count % after > 0))) for name in second)
    assert moved <= max(least, sum(max(0, len(first.get(n, ())) - count // after) for n in second))


@given(st.integers(1, 6), st.integers(1, 6), st.integers(0, 20))
def test_the_cooperative_assignor_settles_in_two_rounds_and_never_takes_what_another_holds(
    before: int, after: int, count: int
) -> None:
    counts = {"a": count}
    held = assign_sticky([Subscriber(str(n), frozenset("a")) for n in range(before)], counts)
    owned = {str(n): frozenset(held.get(str(n), ())) for n in range(max(before, after))}
    members = [Subscriber(str(n), frozenset("a"), None, owned[str(n)], 1) for n in range(after)]
    first = assign_cooperative_sticky(members, counts)
    for name, share in first.items():
        for other in first:
            assert name == other or not set(share) & owned[other]
    kept = [Subscriber(m.member_id, m.topics, None, frozenset(first[m.member_id]), 2) for m in members]
    second = assign_cooperative_sticky(kept, counts)
    assert sum(map(len, second.values())) == count
