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
from tests.machines.groups.group_driver import GROUP, TOPICS, GroupDriver

LEDGER = TOPICS["ledger"].topic_id
SETTINGS = GroupSettings(group_initial_rebalance_delay_ms=0)


@pytest.fixture
def driver() -> GroupDriver:
    return GroupDriver()


def assignment(*partitions: int, user_data: bytes | None = None) -> bytes:
    rows = [ConsumerProtocolAssignment.TopicPartition(topic="ledger", partitions=list(partitions))]
    return encode_versioned(ConsumerProtocolAssignment(assigned_partitions=rows, user_data=user_data), 1)


def read(data: bytes) -> list[int]:
    return [p for row in decode_versioned(ConsumerProtocolAssignment, data).assigned_partitions for p in row.partitions]


def holding(*partitions: int) -> list[tuple[str, bytes]]:
    """What a cooperative member offers that still has these partitions."""
    owned = [ConsumerProtocolSubscription.TopicPartition(topic="ledger", partitions=list(partitions))]
    return [("range", encode_versioned(ConsumerProtocolSubscription(topics=["ledger"], owned_partitions=owned), 1))]


def classic_member(driver: GroupDriver, given: bytes | None = None) -> str:
    """A classic group of one member that has everything."""
    member_id, _, reply = driver.admitted()
    assert reply is not None
    driver.sync(member_id, reply.generation_id, {member_id: assignment(0, 1, 2, 3) if given is None else given})
    return member_id


def consumer_group(driver: GroupDriver) -> ConsumerGroup:
    group = driver.coordinator.groups[GROUP]
    assert isinstance(group, ConsumerGroup)
    return group


def assert_log_agrees(driver: GroupDriver) -> None:
    ours, again = driver.coordinator.groups[GROUP], driver.restarted().coordinator.groups[GROUP]
    if isinstance(ours, ConsumerGroup):
        assert isinstance(again, ConsumerGroup)
        for name in ("epoch", "members", "static_members", "target", "target_epoch", "owners"):
            assert getattr(again, name) == getattr(ours, name), name
    else:
        assert isinstance(again, ClassicGroup)
        assert again.members.keys() == ours.members.keys()


def mixed_group(driver: GroupDriver) -> str:
    """A classic member with ledger 0 and 1 beside the consumer `new` with 2 and 3, at epoch 2."""
    old = classic_member(driver)
    assert driver.consumer_heartbeat("new", 0).error_code == ErrorCode.NONE
    assert driver.heartbeat(old, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    kept = sorted(consumer_group(driver).target[old][LEDGER])
    _, asked = driver.join(old, protocols=holding(0, 1, 2, 3))
    assert asked is not None and asked.generation_id == 1, "it has to let go first"
    _, synced = driver.sync(old, 1)
    assert synced is not None and read(synced.assignment) == kept
    assert driver.heartbeat(old, 1) == ErrorCode.REBALANCE_IN_PROGRESS
    _, joined = driver.join(old, protocols=holding(*kept))
    assert joined is not None and joined.generation_id == 2
    driver.sync(old, 2)
    driver.consumer_heartbeat("new", 2)
    assert consumer_group(driver).state.value == "Stable"
    return old


def test_a_group_goes_over_with_its_first_new_member_and_nothing_changes_hands_too_early(driver: GroupDriver) -> None:
    old = classic_member(driver)
    reply = driver.consumer_heartbeat("new", 0)
    assert reply.error_code == ErrorCode.NONE and reply.assignment is not None
    assert reply.assignment.topic_partitions == [], "the classic member still has everything"
    assert consumer_group(driver).members[old].assigned[LEDGER].keys() == {0, 1, 2, 3}
    assert_log_agrees(driver)


def test_members_of_both_protocols_share(driver: GroupDriver) -> None:
    old = mixed_group(driver)
    owners = consumer_group(driver).owners
    assert sorted(owners.values()) == sorted([old, old, "new", "new"])
    assert driver.heartbeat(old, 2) == ErrorCode.NONE
    assert driver.commit(member_id=old, generation=2, version=8) == ErrorCode.NONE
    assert driver.commit(member_id=old, generation=3) == ErrorCode.ILLEGAL_GENERATION
    assert_log_agrees(driver)


def test_a_group_goes_back_with_its_last_new_member(driver: GroupDriver) -> None:
    old = mixed_group(driver)
    driver.consumer_heartbeat("new", -1)
    group = driver.coordinator.groups[GROUP]
    assert isinstance(group, ClassicGroup) and group.state.value == "PreparingRebalance"
    assert driver.heartbeat(old, group.generation_id) == ErrorCode.REBALANCE_IN_PROGRESS
    assert_log_agrees(driver)
    _, reply = driver.join(old)
    assert reply is not None and reply.leader == old
    driver.sync(old, reply.generation_id, {old: assignment(0, 1, 2, 3)})
    assert group.state.value == "Stable"
    assert_log_agrees(driver)


def test_a_group_goes_back_when_its_last_new_member_falls_silent(driver: GroupDriver) -> None:
    old = mixed_group(driver)
    for _ in range(9):
        driver.pass_ms(5_000)
        driver.heartbeat(old, 2)
    assert isinstance(driver.coordinator.groups[GROUP], ClassicGroup)


def test_a_classic_member_upgrades_under_its_own_instance_id(driver: GroupDriver) -> None:
    _, joined = driver.join(instance="i")
    assert joined is not None
    driver.sync(joined.member_id, 1, {joined.member_id: assignment(0, 1, 2, 3)}, instance="i")
    reply = driver.consumer_heartbeat("new", 0, instance="i")
    assert reply.error_code == ErrorCode.NONE and reply.assignment is not None
    assert reply.assignment.topic_partitions[0].partitions == [0, 1, 2, 3]
    assert driver.heartbeat(joined.member_id, 1, instance="i") == ErrorCode.FENCED_INSTANCE_ID
    assert_log_agrees(driver)


def test_whoever_waits_in_the_classic_group_is_told_to_rejoin(driver: GroupDriver) -> None:
    first = classic_member(driver)
    second, waiting, reply = driver.admitted()
    assert reply is None
    driver.consumer_heartbeat("new", 0)
    assert driver.answers[waiting].error_code == ErrorCode.REBALANCE_IN_PROGRESS
    assert consumer_group(driver).members.keys() == {first, second, "new"}


@pytest.mark.parametrize("given", [b"\x00\x01garbage", assignment(0, user_data=b"mine")], ids=["garbage", "user data"])
def test_a_group_the_broker_cannot_assign_for_stays_as_it_is(driver: GroupDriver, given: bytes) -> None:
    classic_member(driver, given)
    assert driver.consumer_heartbeat("new", 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert isinstance(driver.coordinator.groups[GROUP], ClassicGroup)


@pytest.mark.parametrize("policy", ["disabled", "downgrade"])
def test_an_upgrade_needs_the_policy(policy: str) -> None:
    driver = GroupDriver(replace(SETTINGS, group_consumer_migration_policy=policy))
    classic_member(driver)
    assert driver.consumer_heartbeat("new", 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_without_downgrade_the_group_goes_on_as_it_is() -> None:
    driver = GroupDriver(replace(SETTINGS, group_consumer_migration_policy="upgrade"))
    old = mixed_group(driver)
    driver.consumer_heartbeat("new", -1)
    assert consumer_group(driver).members.keys() == {old}


def test_only_consumers_can_go_over(driver: GroupDriver) -> None:
    driver.stable_group(1, protocol_type="connect")
    assert driver.consumer_heartbeat("new", 0).error_code == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_classic_member_that_does_not_rejoin_in_time_is_put_out(driver: GroupDriver) -> None:
    old = classic_member(driver)
    driver.consumer_heartbeat("new", 0)
    for _ in range(13):
        driver.pass_ms(5_000)
        driver.heartbeat(old, 1)
        driver.consumer_heartbeat("new", 2)
    assert consumer_group(driver).members.keys() == {"new"}
    assert driver.heartbeat(old, 1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_classic_member_that_never_syncs_is_put_out(driver: GroupDriver) -> None:
    driver.consumer_heartbeat("new", 0)
    old, _, reply = driver.admitted(session_ms=60_000, rebalance_ms=20_000)
    assert reply is not None
    for _ in range(4):
        driver.pass_ms(5_000)
        driver.consumer_heartbeat("new", 2)
    assert old not in consumer_group(driver).members


def test_a_new_classic_member_needs_a_protocol_the_others_have(driver: GroupDriver) -> None:
    mixed_group(driver)
    _, reply = driver.join(protocols=[("sticky", holding()[0][1])])
    assert reply is not None and reply.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    _, reply = driver.join(protocols=[("range", b"\x00\x01garbage")], version=3)
    assert reply is not None and reply.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_an_administrator_removes_members_of_either_protocol(driver: GroupDriver) -> None:
    old = mixed_group(driver)
    assert driver.leave((old, None), ("ghost", None)).members[1].error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert consumer_group(driver).members.keys() == {"new"}
    assert driver.leave(("new", None)).members[0].error_code == ErrorCode.NONE
    assert consumer_group(driver).members == {}


def test_an_upgrade_that_could_not_be_written_did_not_happen(driver: GroupDriver) -> None:
    old = classic_member(driver)
    driver.fail_next = True
    assert driver.consumer_heartbeat("new", 0).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert isinstance(driver.coordinator.groups[GROUP], ClassicGroup)
    assert driver.heartbeat(old, 1) == ErrorCode.NONE


def test_a_downgrade_that_could_not_be_written_did_not_happen(driver: GroupDriver) -> None:
    old = mixed_group(driver)
    driver.fail_next = True
    assert driver.consumer_heartbeat("new", -1).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert consumer_group(driver).members.keys() == {old, "new"}
    driver.pass_ms(60_000)
    assert not driver.coordinator.groups[GROUP].members, "nobody's session was lost with the failed write"
