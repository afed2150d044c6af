"""Live groups that change their protocol: members and partitions stay where they are, in memory and in the log."""

from __future__ import annotations

from dataclasses import replace

import pytest

from semel.errors import ErrorCode
from semel.machines.groups.classic.group import ClassicGroup
from semel.machines.groups.consumer.group import ConsumerGroup
from semel.machines.groups.coordinator import GroupSettings
from semel.wire import decode_versioned, encode_versioned
from semel.wire.messages.coordinator_records import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from tests.machines.groups.group_host import GROUP, TOPICS, Host

LEDGER = TOPICS["ledger"].topic_id
SETTINGS = GroupSettings(group_initial_rebalance_delay_ms=0)


@pytest.fixture
def host() -> Host:
    return Host()


def assignment(*partitions: int, user_data: bytes | None = None) -> bytes:
    rows = [ConsumerProtocolAssignment.TopicPartition(topic="ledger", partitions=list(partitions))]
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=rows, user_data=user_data), 1)


def read(data: bytes) -> list[int]:
    return [p for row in decode_versioned(ConsumerProtocolAssignment, data).assigned_partitions for p in row.partitions]


def holding(*partitions: int) -> list[tuple[str, bytes]]:
    """What a cooperative member offers that still has these partitions."""
    owned = [ConsumerProtocolSubscription.TopicPartition(topic="ledger", partitions=list(partitions))]
    return [("range", encode_versioned(ConsumerProtocolSubscription(topics=["ledger"], owned_partitions=owned), 1))]


def classic_member(host: Host, given: bytes | None = None) -> str:
    """A classic group of one member that has everything."""
    member_id, _, reply = host.admitted()
    assert reply is not None
    host.sync(member_id, reply.generation_id, {member_id: assignment(0, 1, 2, 3) if given is None else given})
    return member_id


def consumer_group(host: Host) -> ConsumerGroup:
    group = host.machine.groups[GROUP]
    assert isinstance(group, ConsumerGroup)
    return group


def assert_log_agrees(host: Host) -> None:
    ours, again = host.machine.groups[GROUP], host.restarted().machine.groups[GROUP]
    if isinstance(ours, ConsumerGroup):
        assert isinstance(again, ConsumerGroup)
        for name in ("epoch", "members", "static_members", "target", "target_epoch", "owners"):
            assert getattr(again, name) == getattr(ours, name), name
    else:
        assert isinstance(again, ClassicGroup)
        assert again.members.keys() == ours.members.keys()


def mixed_group(host: Host) -> str:
    """A classic member with ledger 0 and 1 beside the consumer `new` with 2 and 3, at epoch 2."""
    old = classic_member(host)
    assert host.consumer_heartbeat("new", 0).error_code == ErrorCode.NONE
    assert host.heartbeat(old, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    kept = sorted(consumer_group(host).target[old][LEDGER])
    _, asked = host.join(old, protocols=holding(0, 1, 2, 3))
    assert asked is not None and asked.generation_id == 1, "it has to let go first"
    _, synced = host.sync(old, 1)
    assert synced is not None and read(synced.assignment) == kept
    assert host.heartbeat(old, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    _, joined = host.join(old, protocols=holding(*kept))
    assert joined is not None and joined.generation_id == 2
    host.sync(old, 2)
    host.consumer_heartbeat("new", 2)
    assert consumer_group(host).state.value == "Stable"
    return old


def test_a_group_goes_over_with_its_first_new_member_and_nothing_changes_hands_too_early(host: Host) -> None:
    old = classic_member(host)
    reply = host.consumer_heartbeat("new", 0)
    assert reply.error_code == ErrorCode.NONE and reply.assignment is not None
    assert reply.assignment.topic_partitions == [], "the classic member still has everything"
    assert consumer_group(host).members[old].assigned[LEDGER].keys() == {0, 1, 2, 3}
    assert_log_agrees(host)


def test_members_of_both_protocols_share(host: Host) -> None:
    old = mixed_group(host)
    owners = consumer_group(host).owners
    assert sorted(owners.values()) == sorted([old, old, "new", "new"])
    assert host.heartbeat(old, 2) == ErrorCode.NONE
    assert host.commit(member_id=old, generation=2, version=8) == ErrorCode.NONE
    assert host.commit(member_id=old, generation=3) == ErrorCode.ILLEGAL_GENERATION
    assert_log_agrees(host)


def test_a_group_goes_back_with_its_last_new_member(host: Host) -> None:
    old = mixed_group(host)
    host.consumer_heartbeat("new", -1)
    group = host.machine.groups[GROUP]
    assert isinstance(group, ClassicGroup) and group.state.value == "PreparingRebalance"
    assert host.heartbeat(old, group.generation_id) == ErrorCode.REBALANCE_IN_PROGRESS
    assert_log_agrees(host)
    _, reply = host.join(old)
    assert reply is not None and reply.leader == old
    host.sync(old, reply.generation_id, {old: assignment(0, 1, 2, 3)})
    assert group.state.value == "Stable"
    assert_log_agrees(host)


def test_a_group_goes_back_when_its_last_new_member_falls_silent(host: Host) -> None:
    old = mixed_group(host)
    for _ in range(9):
        host.pass_ms(5_000)
        host.heartbeat(old, 2)
    assert isinstance(host.machine.groups[GROUP], ClassicGroup)


def test_a_classic_member_upgrades_under_its_own_instance_id(host: Host) -> None:
    _, joined = host.join(instance="i")
    assert joined is not None
    host.sync(joined.member_id, 1, {joined.member_id: assignment(0, 1, 2, 3)}, instance="i")
    reply = host.consumer_heartbeat("new", 0, instance="i")
    assert reply.error_code == ErrorCode.NONE and reply.assignment is not None
    assert reply.assignment.topic_partitions[0].partitions == [0, 1, 2, 3]
    assert host.heartbeat(joined.member_id, 1, instance="i") == ErrorCode.FENCED_INSTANCE_ID
    assert_log_agrees(host)


def test_whoever_waits_in_the_classic_group_is_told_to_rejoin(host: Host) -> None:
    first = classic_member(host)
    second, waiting, reply = host.admitted()
    assert reply is None
    host.consumer_heartbeat("new", 0)
    assert host.answers[waiting].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert consumer_group(host).members.keys() == {first, second, "new"}


@pytest.mark.parametrize("given", [b"\x00\x01garbage", assignment(0, user_data=b"mine")], ids=["garbage", "user data"])
def test_a_group_the_broker_cannot_assign_for_stays_as_it_is(host: Host, given: bytes) -> None:
    classic_member(host, given)
    assert host.consumer_heartbeat("new", 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert isinstance(host.machine.groups[GROUP], ClassicGroup)


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_an_upgrade_needs_the_policy(policy: str) -> None:
    host = Host(replace(SETTINGS, group_consumer_migration_policy=policy))
    classic_member(host)
    assert host.consumer_heartbeat("new", 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_without_downgrade_the_group_goes_on_as_it_is() -> None:
    host = Host(replace(SETTINGS, group_consumer_migration_policy="upgrade"))
    old = mixed_group(host)
    host.consumer_heartbeat("new", -1)
    assert consumer_group(host).members.keys() == {old}


def test_only_consumers_can_go_over(host: Host) -> None:
    host.stable_group(1, protocol_type="connect")
    assert host.consumer_heartbeat("new", 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_classic_member_that_does_not_rejoin_in_time_is_put_out(host: Host) -> None:
    old = classic_member(host)
    host.consumer_heartbeat("new", 0)
    for _ in range(13):
        host.pass_ms(5_000)
        host.heartbeat(old, 1)
        host.consumer_heartbeat("new", 2)
    assert consumer_group(host).members.keys() == {"new"}
    assert host.heartbeat(old, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_classic_member_that_never_syncs_is_put_out(host: Host) -> None:
    host.consumer_heartbeat("new", 0)
    old, _, reply = host.admitted(session_ms=60_000, rebalance_ms=20_000)
    assert reply is not None
    for _ in range(4):
        host.pass_ms(5_000)
        host.consumer_heartbeat("new", 2)
    assert old not in consumer_group(host).members


def test_a_new_classic_member_needs_a_protocol_the_others_have(host: Host) -> None:
    mixed_group(host)
    _, reply = host.join(protocols=[("sticky", holding()[0][1])])
    assert reply is not None and reply.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    _, reply = host.join(protocols=[("range", b"\x00\x01garbage")], version=3)
    assert reply is not None and reply.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_administrator_removes_members_of_either_protocol(host: Host) -> None:
    old = mixed_group(host)
    assert host.leave((old, None), ("ghost", None)).members[1].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert consumer_group(host).members.keys() == {"new"}
    assert host.leave(("new", None)).members[0].error_code == ErrorCode.NONE
    assert consumer_group(host).members == {}


def test_an_upgrade_that_could_not_be_written_did_not_happen(host: Host) -> None:
    old = classic_member(host)
    host.fail_next = True
    assert host.consumer_heartbeat("new", 0).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert isinstance(host.machine.groups[GROUP], ClassicGroup)
    assert host.heartbeat(old, 1) == ErrorCode.NONE


def test_a_downgrade_that_could_not_be_written_did_not_happen(host: Host) -> None:
    old = mixed_group(host)
    host.fail_next = True
    assert host.consumer_heartbeat("new", -1).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert consumer_group(host).members.keys() == {old, "new"}
    host.pass_ms(60_000)
    assert not host.machine.groups[GROUP].members, "nobody's session was lost with the failed write"
