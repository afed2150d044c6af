"""Committed offsets: who may commit, what becomes visible when, and what is forgotten."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest

from semel.errors import ErrorCode
from semel.machines.contract import StateRecord
from semel.machines.groups.classic.group import ClassicGroup
from semel.machines.groups.committed_offsets import NO_EXPIRY, NO_TOPIC_ID, CommittedOffset, CommittedOffsets
from semel.machines.groups.coordinator import GroupSettings, TopicInfo
from semel.machines.groups.records import record
from semel.wire import encode
from semel.wire.messages.consumer_groups import ConsumerGroupDescribeRequest
from semel.wire.messages.coordinator_records import GroupMetadataKey, GroupMetadataValue
from semel.wire.messages.groups import DeleteGroupsRequest, DescribeGroupsRequest
from semel.wire.messages.offsets import OffsetDeleteRequest, OffsetFetchRequest
from tests.machines.groups.group_driver import GROUP, TOPICS, GroupDriver, subscription

RETENTION = GroupSettings(group_initial_rebalance_delay_ms=0, offsets_retention_minutes=10)
RETENTION_MS = 600_000


@pytest.fixture
def driver() -> GroupDriver:
    return GroupDriver()


def delete(
    driver: GroupDriver, topic: str = "ledger", partition: int = 0, group: str = GROUP
) -> tuple[ErrorCode, ErrorCode | None]:
    request = OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequest.OffsetDeleteRequestTopic(
                name=topic,
                partitions=[OffsetDeleteRequest.OffsetDeleteRequestPartition(partition_index=partition)],
            )
        ],
    )
    reply = driver.do(driver.coordinator.offset_delete(request, 0, driver.now_ms))
    inner = ErrorCode(reply.topics[0].partitions[0].error_code) if reply.topics else None
    return ErrorCode(reply.error_code), inner


# Committing


def test_a_consumer_that_assigns_itself_commits_without_a_group(driver: GroupDriver) -> None:
    assert driver.commit(41) == ErrorCode.NONE
    assert driver.fetched() == (41, ErrorCode.NONE)
    group = driver.coordinator.groups[GROUP]
    assert isinstance(group, ClassicGroup) and group.is_simple


def test_the_group_without_a_name_can_be_seen_and_deleted_as_in_kafka(driver: GroupDriver) -> None:
    assert driver.commit(41, group="") == ErrorCode.NONE
    assert delete(driver, group="") == (ErrorCode.INVALID_GROUP_ID, None)
    described = driver.coordinator.describe_groups(DescribeGroupsRequest(groups=[""]), 6, driver.now_ms).reply
    assert described is not None and described.groups[0].group_state == "Empty"
    asked = ConsumerGroupDescribeRequest(group_ids=[""])
    consumers = driver.coordinator.consumer_group_describe(asked, 1, driver.now_ms).reply
    assert consumers is not None and consumers.groups[0].error_code == ErrorCode.INVALID_GROUP_ID
    for code in (ErrorCode.NONE, ErrorCode.GROUP_ID_NOT_FOUND):
        deleted = driver.do(driver.coordinator.delete_groups(DeleteGroupsRequest(groups_names=[""]), 2, driver.now_ms))
        assert deleted.results[0].error_code == code
    assert driver.fetched(group="") == (-1, ErrorCode.NONE)


@pytest.mark.parametrize(("version", "code"), [(8, ErrorCode.ILLEGAL_GENERATION), (9, ErrorCode.GROUP_ID_NOT_FOUND)])
def test_a_generation_of_a_group_that_is_not_there_is_refused(
    driver: GroupDriver, version: int, code: ErrorCode
) -> None:
    assert driver.commit(generation=3, member_id="m", version=version) == code
    assert driver.fetched() == (-1, ErrorCode.NONE)


@pytest.mark.parametrize("transactional", [False, True])
def test_only_members_of_the_current_generation_commit(driver: GroupDriver, transactional: bool) -> None:
    members, generation = driver.stable_group(1)
    commit: Any = driver.txn_commit if transactional else driver.commit
    assert commit(member_id=members[0], generation=generation) == ErrorCode.NONE
    assert commit(member_id=members[0], generation=generation - 1) == ErrorCode.ILLEGAL_GENERATION
    assert commit(member_id="ghost", generation=generation) == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit(member_id=members[0], generation=generation, instance="i") == ErrorCode.UNKNOWN_MEMBER_ID
    without_identity = ErrorCode.NONE if transactional else ErrorCode.UNKNOWN_MEMBER_ID
    assert commit() == without_identity, "old transactional producers do not say who they are"


def test_a_commit_between_join_and_sync_is_told_to_wait(driver: GroupDriver) -> None:
    members, _ = driver.stable_group(1)
    other, _, _ = driver.admitted()
    driver.join(members[0])
    assert driver.commit(member_id=other, generation=2) == ErrorCode.REBALANCE_IN_PROGRESS
    assert driver.txn_commit(member_id=other, generation=2) == ErrorCode.NONE


def test_a_member_may_still_commit_while_others_rejoin(driver: GroupDriver) -> None:
    members, generation = driver.stable_group(2)
    driver.join(members[0])
    assert driver.commit(member_id=members[1], generation=generation) == ErrorCode.NONE


def test_metadata_has_a_limit(driver: GroupDriver) -> None:
    assert driver.commit(metadata="x" * 4096) == ErrorCode.NONE
    assert driver.commit(metadata="x" * 4097) == ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert driver.commit(metadata=None) == ErrorCode.NONE


def test_a_partition_that_does_not_exist_takes_no_offset(driver: GroupDriver) -> None:
    assert driver.commit(topic="nowhere") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert driver.commit(partition=4) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert driver.txn_commit(partition=4) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_topics_go_by_id_from_version_10(driver: GroupDriver) -> None:
    assert driver.commit(7, version=10) == ErrorCode.NONE
    assert driver.commit(7, version=10, topic="nowhere") == ErrorCode.UNKNOWN_TOPIC_ID
    assert driver.fetched() == (7, ErrorCode.NONE)
    group = OffsetFetchRequest.OffsetFetchRequestGroup
    topic = OffsetFetchRequest.OffsetFetchRequestTopics
    request = OffsetFetchRequest(
        groups=[
            group(
                group_id=GROUP,
                topics=[
                    topic(topic_id=TOPICS["ledger"].topic_id, partition_indexes=[0]),
                    topic(topic_id=UUID(int=99), partition_indexes=[0]),
                ],
            )
        ]
    )
    reply = driver.do(driver.coordinator.offset_fetch(request, 10, driver.now_ms)).groups[0]
    found = {row.topic_id: row.partitions[0] for row in reply.topics}
    assert found[TOPICS["ledger"].topic_id].committed_offset == 7
    assert found[UUID(int=99)].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_a_commit_that_could_not_be_written_is_not_there(driver: GroupDriver) -> None:
    driver.commit(1)
    driver.fail_next = True
    assert driver.commit(2) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.fetched() == (1, ErrorCode.NONE)
    driver.fail_next = True
    assert driver.txn_commit(3) == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert driver.fetched(require_stable=True) == (1, ErrorCode.NONE)


# Fetching


@pytest.mark.parametrize("version", range(1, 11))
def test_offsets_are_fetched_in_every_version(driver: GroupDriver, version: int) -> None:
    driver.commit(5)
    driver.commit(6, topic="audit", partition=1)
    if version < 8:
        request = OffsetFetchRequest(
            group_id=GROUP,
            topics=[OffsetFetchRequest.OffsetFetchRequestTopic(name="ledger", partition_indexes=[0, 1])],
        )
    else:
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequest.OffsetFetchRequestGroup(
                    group_id=GROUP,
                    topics=[
                        OffsetFetchRequest.OffsetFetchRequestTopics(
                            name="ledger", topic_id=TOPICS["ledger"].topic_id, partition_indexes=[0, 1]
                        )
                    ],
                )
            ]
        )
    reply = driver.do(driver.coordinator.offset_fetch(request, version, driver.now_ms))
    topics = reply.topics if version < 8 else reply.groups[0].topics
    assert [row.committed_offset for row in topics[0].partitions] == [5, -1]
    encode(reply, version)


@pytest.mark.parametrize("version", [2, 7, 8, 9, 10])
def test_asking_for_nothing_in_particular_gives_everything(driver: GroupDriver, version: int) -> None:
    driver.commit(5)
    driver.commit(6, topic="audit", partition=1)
    request = OffsetFetchRequest(
        group_id=GROUP,
        topics=None,
        groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=GROUP, topics=None)],
    )
    reply = driver.do(driver.coordinator.offset_fetch(request, version, driver.now_ms))
    topics = reply.topics if version < 8 else reply.groups[0].topics
    assert {(row.name, row.partitions[0].committed_offset) for row in topics} == {("ledger", 5), ("audit", 6)}


# Transactions


def test_an_offset_in_a_transaction_is_visible_with_the_marker_and_never_before(driver: GroupDriver) -> None:
    driver.commit(1)
    driver.txn_commit(10)
    driver.txn_commit(20, topic="audit")
    assert driver.fetched() == (1, ErrorCode.NONE)
    assert driver.fetched(topic="audit") == (-1, ErrorCode.NONE)
    driver.marker(7, commit=True)
    # Scenario 15, KAFKA-17507: the commit is acknowledged after the marker, so by then the offsets are there.
    assert driver.fetched() == (10, ErrorCode.NONE)
    assert driver.fetched(topic="audit") == (20, ErrorCode.NONE)


def test_an_aborted_transaction_leaves_no_offset(driver: GroupDriver) -> None:
    driver.commit(1)
    driver.txn_commit(10)
    driver.marker(7, commit=False)
    assert driver.fetched(require_stable=True) == (1, ErrorCode.NONE)
    assert driver.restarted().fetched() == (1, ErrorCode.NONE)


def test_whoever_needs_a_stable_offset_is_told_to_wait_for_the_transaction(driver: GroupDriver) -> None:
    driver.txn_commit(10)
    assert driver.fetched(require_stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    assert driver.fetched(partition=1, require_stable=True) == (-1, ErrorCode.NONE)
    assert driver.fetched() == (-1, ErrorCode.NONE)


def test_scenario_45_unstable_offsets_of_a_producer_that_is_gone_clear_with_its_abort(driver: GroupDriver) -> None:
    driver.txn_commit(10)
    other = driver.restarted()
    assert other.fetched(require_stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT), "pending survives a restart"
    other.marker(7, commit=False)
    assert other.fetched(require_stable=True) == (-1, ErrorCode.NONE)


def test_scenario_4_a_transactional_commit_changes_memory_and_log_together(driver: GroupDriver) -> None:
    driver.fail_next = True
    driver.txn_commit(10)
    assert driver.fetched(require_stable=True) == (-1, ErrorCode.NONE)
    assert driver.log == []
    driver.txn_commit(11)
    driver.marker(7, commit=True)
    assert driver.fetched() == driver.restarted().fetched() == (11, ErrorCode.NONE)


def test_a_transaction_that_ends_late_does_not_undo_a_newer_commit(driver: GroupDriver) -> None:
    driver.txn_commit(10)
    driver.commit(30)
    driver.marker(7, commit=True)
    assert driver.fetched() == driver.restarted().fetched() == (30, ErrorCode.NONE)


def test_two_producers_wait_for_their_own_markers(driver: GroupDriver) -> None:
    driver.txn_commit(10, producer_id=7)
    driver.txn_commit(11, producer_id=8)
    driver.marker(7, commit=True)
    assert driver.fetched(require_stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
    driver.marker(8, commit=False)
    assert driver.fetched(require_stable=True) == (10, ErrorCode.NONE)


def test_a_marker_in_one_partition_says_nothing_about_another(driver: GroupDriver) -> None:
    other = next(
        g for g in map(str, range(99)) if driver.coordinator.partition_for(g) != driver.coordinator.partition_for(GROUP)
    )
    driver.txn_commit(10)
    driver.txn_commit(10, group=other)
    driver.marker(7, commit=True)
    assert driver.fetched(group=other, require_stable=True) == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)


# Deleting


def test_offsets_of_a_topic_somebody_reads_are_not_deleted(driver: GroupDriver) -> None:
    members, generation = driver.stable_group(1)
    for topic in ("ledger", "audit"):
        driver.commit(member_id=members[0], generation=generation, topic=topic)
    assert delete(driver) == (ErrorCode.NONE, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)
    assert delete(driver, "audit") == (ErrorCode.NONE, ErrorCode.NONE)
    assert driver.fetched(topic="audit") == (-1, ErrorCode.NONE)
    assert driver.fetched() == (10, ErrorCode.NONE)


def test_offsets_of_a_group_with_unknown_topics_are_deleted_only_when_it_is_empty(driver: GroupDriver) -> None:
    members, generation = driver.stable_group(1, protocol_type="connect")
    driver.commit(member_id=members[0], generation=generation)
    assert delete(driver) == (ErrorCode.NON_EMPTY_GROUP, None)
    driver.leave((members[0], None))
    assert delete(driver) == (ErrorCode.NONE, ErrorCode.NONE)


def test_offsets_of_a_group_that_is_not_there_cannot_be_deleted(driver: GroupDriver) -> None:
    assert delete(driver) == (ErrorCode.GROUP_ID_NOT_FOUND, None)


def test_a_deleted_topic_takes_its_offsets_along(driver: GroupDriver) -> None:
    driver.commit(5)
    driver.commit(6, topic="audit")
    driver.txn_commit(7)
    for decision in driver.coordinator.topics_changed({"audit": TOPICS["audit"]}, driver.now_ms):
        driver.do(decision)
    driver.marker(7, commit=True)
    for broker in (driver, driver.restarted()):
        assert broker.fetched() == (-1, ErrorCode.NONE)
        assert broker.fetched(topic="audit") == (6, ErrorCode.NONE)


def test_a_topic_created_again_begins_without_offsets(driver: GroupDriver) -> None:
    driver.commit(5)
    for decision in driver.coordinator.topics_changed({"ledger": TopicInfo(UUID(int=77), 4)}, driver.now_ms):
        driver.do(decision)
    assert driver.fetched() == (-1, ErrorCode.NONE)


def test_offsets_of_a_topic_made_again_while_the_broker_was_away_are_forgotten(driver: GroupDriver) -> None:
    driver.commit(5)
    partition = driver.coordinator.partition_for(GROUP)
    driver.coordinator.unload(partition)
    driver.coordinator.topics_changed({"ledger": TopicInfo(UUID(int=77), 4)}, driver.now_ms)
    driver.coordinator.load(partition, 1)
    for entry in list(driver.log):
        assert isinstance(entry, StateRecord)
        driver.coordinator.replay(entry)
    for decision in driver.coordinator.loaded(partition, driver.now_ms):
        driver.do(decision)
    assert driver.fetched() == (-1, ErrorCode.NONE)


# Growing old


def retained(driver: GroupDriver, after_ms: int, topic: str = "ledger") -> bool:
    driver.pass_ms(after_ms)
    return driver.fetched(topic=topic)[0] >= 0


def test_offsets_of_a_simple_consumer_grow_old_from_their_commit() -> None:
    driver = GroupDriver(RETENTION)
    driver.pass_ms(1)
    driver.commit()
    assert retained(driver, RETENTION_MS - 1)
    assert not retained(driver, RETENTION_MS + 1)
    assert GROUP not in driver.coordinator.groups, "the group goes with its last offset"
    assert GROUP not in driver.restarted().coordinator.groups


def test_offsets_of_a_group_grow_old_once_it_is_empty() -> None:
    driver = GroupDriver(RETENTION)
    members, generation = driver.stable_group(1, session_ms=1_800_000)
    driver.commit(member_id=members[0], generation=generation)
    assert retained(driver, 2 * RETENTION_MS + 1)
    driver.leave((members[0], None))
    assert retained(driver, RETENTION_MS - 1)
    assert not retained(driver, 2 * RETENTION_MS)


def test_offsets_of_a_group_that_an_old_broker_wrote_grow_old_from_their_commit() -> None:
    driver = GroupDriver(RETENTION)
    value = GroupMetadataValue(protocol_type="consumer", generation=3, protocol=None, leader=None)
    partition = driver.coordinator.partition_for(GROUP)
    old = record(partition, GroupMetadataKey(group=GROUP), value, version=1)
    driver.commit()
    driver.log.insert(0, old)
    driver = driver.restarted()
    assert driver.coordinator.groups[GROUP].protocol_type == "consumer"  # type: ignore[union-attr]
    driver.pass_ms(RETENTION_MS // 2)
    driver.commit()
    assert retained(driver, RETENTION_MS - 1)
    assert not retained(driver, RETENTION_MS)


def test_a_stable_group_forgets_only_topics_nobody_reads() -> None:
    driver = GroupDriver(RETENTION)
    members, generation = driver.stable_group(1, session_ms=1_800_000)
    for topic in ("ledger", "audit"):
        driver.commit(member_id=members[0], generation=generation, topic=topic)
    assert not retained(driver, 2 * RETENTION_MS, "audit")
    assert retained(driver, 0)


def offsets_outlive_a_rebalance() -> None:
    """Scenario 50, KAFKA-13636."""
    driver = GroupDriver(RETENTION)
    options = {"session_ms": 1_800_000, "rebalance_ms": 100 * RETENTION_MS}
    members, generation = driver.stable_group(2, **options)
    driver.commit(member_id=members[0], generation=generation)
    driver.commit(member_id=members[0], generation=generation, topic="audit")
    driver.join(members[0], **options)
    group = driver.coordinator.groups[GROUP]
    for _ in range(6):
        driver.pass_ms(RETENTION_MS)
        driver.heartbeat(members[1], generation)
    assert group.state.value == "PreparingRebalance"
    assert driver.fetched(topic="audit")[0] >= 0
    assert driver.fetched()[0] >= 0


def test_scenario_50_offsets_do_not_expire_during_a_rebalance() -> None:
    offsets_outlive_a_rebalance()


def a_pending_offset_keeps_the_committed_one() -> None:
    driver = GroupDriver(RETENTION)
    driver.commit()
    driver.txn_commit(11)
    driver.pass_ms(3 * RETENTION_MS)
    assert driver.fetched()[0] == 10
    driver.marker(7, commit=False)
    assert driver.fetched()[0] == 10


def test_an_offset_does_not_expire_while_a_transaction_is_open_on_it() -> None:
    a_pending_offset_keeps_the_committed_one()


def test_an_old_client_may_ask_for_its_own_retention() -> None:
    driver = GroupDriver(RETENTION)
    driver.commit(version=4, retention_ms=100 * RETENTION_MS)
    assert retained(driver, 50 * RETENTION_MS)
    assert driver.restarted().fetched()[0] >= 0
    assert not retained(driver, 60 * RETENTION_MS)


def test_an_old_client_may_ask_for_all_time() -> None:
    driver = GroupDriver(RETENTION)
    assert driver.commit(version=4, retention_ms=2**63 - 1) is ErrorCode.NONE
    assert retained(driver, 1000 * RETENTION_MS)


# Safeguards: each scenario fails when the safeguard it is about is taken away.


def zombie_commit() -> None:
    driver = GroupDriver()
    members, generation = driver.stable_group(2)
    driver.pass_ms(9_000)
    driver.heartbeat(members[0], generation)
    driver.pass_ms(2_000)
    driver.join(members[0])
    driver.sync(members[0], generation + 1, {members[0]: b"all"})
    driver.commit(100, member_id=members[0], generation=generation + 1)
    assert driver.commit(1, member_id=members[1], generation=generation) != ErrorCode.NONE
    assert driver.txn_commit(1, member_id=members[1], generation=generation) != ErrorCode.NONE
    assert driver.txn_commit(1, member_id=members[0], generation=generation) != ErrorCode.NONE
    driver.marker(7, commit=True)
    assert driver.fetched() == (100, ErrorCode.NONE)


def test_a_zombie_of_an_older_generation_cannot_commit() -> None:
    zombie_commit()


def late_marker() -> None:
    driver = GroupDriver()
    driver.txn_commit(10)
    driver.commit(30)
    driver.marker(7, commit=True)
    assert driver.fetched() == (30, ErrorCode.NONE)


def _visible_at_once(self: CommittedOffsets, *place: Any) -> None:
    *key, offset, _ = place
    self._commit(key[1], (key[2], key[3]), offset)


def _last_marker_wins(self: CommittedOffsets, state_partition: int, producer_id: int, *, commit: bool) -> None:
    for (group_id, topic, partition), offset in self._pending.pop((state_partition, producer_id)).items():
        self._commit(group_id, (topic, partition), offset)


def invisible_until_marker() -> None:
    driver = GroupDriver()
    driver.txn_commit(10)
    assert driver.fetched() == (-1, ErrorCode.NONE)


@pytest.mark.parametrize(
    ("scenario", "target", "name", "without"),
    [
        (zombie_commit, ClassicGroup, "validate_commit", lambda *_, **__: None),
        (zombie_commit, ClassicGroup, "validate_generation", lambda *_, **__: None),
        (
            offsets_outlive_a_rebalance,
            ClassicGroup,
            "expires",
            lambda self, offset, topic, retention_ms, now_ms: offset.is_expired(
                offset.commit_timestamp_ms, retention_ms, now_ms
            ),
        ),
        (a_pending_offset_keeps_the_committed_one, CommittedOffsets, "is_pending", lambda *_: False),
        (late_marker, CommittedOffsets, "complete", _last_marker_wins),
        (invisible_until_marker, CommittedOffsets, "replay", _visible_at_once),
    ],
    ids=["membership", "generation", "rebalance", "pending", "order", "marker"],
)
def test_without_its_safeguard_the_scenario_fails(
    monkeypatch: pytest.MonkeyPatch, scenario: Any, target: Any, name: str, without: Any
) -> None:
    scenario()
    monkeypatch.setattr(target, name, without)
    with pytest.raises(AssertionError):
        scenario()


def test_subscriptions_that_cannot_be_read_protect_every_topic(driver: GroupDriver) -> None:
    members, generation = driver.stable_group(1, protocols=[("range", b"\x00\x01garbage")])
    driver.commit(member_id=members[0], generation=generation)
    assert delete(driver) == (ErrorCode.NONE, ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC)


def test_newer_subscriptions_than_we_know_are_read_as_the_newest_we_do(driver: GroupDriver) -> None:
    newer = b"\x00\x09" + subscription("audit")[2:] + b"\xff\xff\xff\xff\xff\xff"
    members, generation = driver.stable_group(1, protocols=[("range", newer)])
    driver.commit(member_id=members[0], generation=generation)
    assert delete(driver) == (ErrorCode.NONE, ErrorCode.NONE)


def test_an_offset_is_the_same_after_it_was_packed() -> None:
    for offset in (
        CommittedOffset(2**63 - 1, -1, "", 1, NO_EXPIRY, NO_TOPIC_ID, 1),
        CommittedOffset(0, 2**31 - 1, "wo ich war: å\U0001f600", 2**60, 2**61, uuid4(), 2**62),
    ):
        assert CommittedOffset.from_bytes(offset.to_bytes()) == offset


def test_a_group_keeps_each_of_its_places_whether_one_or_many() -> None:
    offsets = CommittedOffsets()

    def commit(partition: int, position: int) -> None:
        offset = CommittedOffset(position, -1, "", 1, NO_EXPIRY, NO_TOPIC_ID, 0)
        offsets.replay(0, "group", "orders", partition, offset, -1)

    def kept() -> dict[int, int]:
        assert len(offsets) == len(offsets.places("group"))
        return {partition: offset.offset for (_, partition), offset in offsets.of_group("group").items()}

    assert kept() == {}
    commit(0, 10)
    commit(0, 11)
    assert kept() == {0: 11} and offsets.committed("group", "orders", 1) is None
    commit(1, 20)
    commit(0, 12)
    assert kept() == {0: 12, 1: 20}
    offsets.replay_tombstone(0, "group", "orders", 0)
    assert kept() == {1: 20}
    offsets.replay_tombstone(0, "group", "orders", 1)
    assert kept() == {}
    commit(1, 30)
    offsets.replay_tombstone(0, "group", "orders", 0)
    assert kept() == {1: 30}
    offsets.replay_tombstone(0, "group", "orders", 1)
    assert kept() == {}
