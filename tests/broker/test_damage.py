"""A partition whose files are damaged is offline, alone, and nobody forgets about it."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest
from crc32c import crc32c

from semel.broker.embedded import Broker
from semel.broker.observability.metrics import render
from semel.errors import ErrorCode
from semel.log import checkpoints
from semel.machines.transactions.records import key_of
from semel.wire import encode_versioned
from semel.wire.messages.admin import CreatePartitionsRequest, CreateTopicsRequest
from semel.wire.messages.coordinator_records import GroupMetadataKey, OffsetCommitKey
from semel.wire.messages.groups import ListGroupsRequest
from semel.wire.messages.metadata import FindCoordinatorRequest
from semel.wire.messages.offsets import OffsetCommitRequest, OffsetFetchRequest
from semel.wire.messages.transactions import AddOffsetsToTxnRequest, InitProducerIdRequest, ListTransactionsRequest
from tests.broker.raw import Raw, batch
from tests.broker.test_transactions import Transactional
from tests.support.waiting import until

LOG = "00000000000000000000.log"


def test_a_damaged_partition_is_offline_and_the_others_are_served(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t", partitions=2)
        for partition in (0, 1):
            for _ in range(3):
                raw.produce("t", batch(), partition=partition)
    mark = tmp_path / ".kafka_cleanshutdown"
    mark.unlink()
    path = tmp_path / "t-0" / LOG
    whole = path.read_bytes()
    harmed = whole[:70] + b"\xff" + whole[71:]
    path.write_bytes(harmed)
    for _ in range(2):
        # The second time round too: a stop over a damaged partition claims no clean end.
        with Broker(tmp_path) as broker, Raw(broker) as raw:
            assert raw.produce("t", batch(), partition=0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert raw.fetch("t", partition=0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
            assert raw.produce("t", batch(), partition=1).error_code == 0
            assert "offlinepartitionscount 1" in render(broker.server)
        assert path.read_bytes() == harmed
        assert not mark.exists()
    path.write_bytes(whole)
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        assert raw.produce("t", batch(), partition=0).base_offset == 3
    assert mark.exists()


def test_a_partition_that_cannot_be_opened_is_offline_and_the_others_are_served(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t", partitions=2)
        for partition in (0, 1):
            raw.produce("t", batch(), partition=partition)
    mark = tmp_path / ".kafka_cleanshutdown"
    mark.unlink()
    shutil.move(tmp_path / "t-0", tmp_path / "elsewhere")
    (tmp_path / "t-0").write_text("a file where a directory should be")
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        assert raw.produce("t", batch(), partition=0).error_code == ErrorCode.KAFKA_STORAGE_ERROR
        assert raw.produce("t", batch(), partition=1).error_code == 0
    assert not mark.exists(), "a partition that was never recovered must be recovered next time"
    (tmp_path / "t-0").unlink()
    shutil.move(tmp_path / "elsewhere", tmp_path / "t-0")
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        assert raw.produce("t", batch(), partition=0).base_offset == 1
    assert mark.exists()


def test_what_a_damaged_coordinator_partition_holds_is_not_served_and_everything_else_is(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t")
        for name in ("lost", "kept"):
            producer = Transactional(raw, name)
            for _ in range(3):
                assert producer.commit_offset(name, "t", 5) is ErrorCode.NONE
                assert producer.end(commit=True) is ErrorCode.NONE
        server = broker.server
        damaged = {
            "__consumer_offsets": server.groups.coordinator.partition_for("lost"),
            "__transaction_state": server.transactions.coordinator.partition_for("lost"),
        }
        assert server.groups.coordinator.partition_for("kept") != damaged["__consumer_offsets"]
        assert server.transactions.coordinator.partition_for("kept") != damaged["__transaction_state"]
    (tmp_path / ".kafka_cleanshutdown").unlink()
    for topic, partition in damaged.items():
        path = tmp_path / f"{topic}-{partition}" / LOG
        whole = path.read_bytes()
        path.write_bytes(whole[:70] + b"\xff" + whole[71:])
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        for key_type in (0, 1):
            found = raw.ask(FindCoordinatorRequest(key_type=key_type, coordinator_keys=["lost", "kept"]), 4)
            codes = [one.error_code for one in found.coordinators]
            assert codes == [ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NONE]
        groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=one, topics=None) for one in ("lost", "kept")]
        fetched = raw.ask(OffsetFetchRequest(groups=groups), 9).groups
        assert [one.error_code for one in fetched] == [ErrorCode.NOT_COORDINATOR, ErrorCode.NONE]
        assert [one.group_id for one in raw.ask(ListGroupsRequest()).groups] == ["kept"]
        listed = raw.ask(ListTransactionsRequest()).transaction_states
        assert [one.transactional_id for one in listed] == ["kept"]
        init = InitProducerIdRequest(transactional_id="lost", transaction_timeout_ms=1000)
        assert raw.ask(init, 5).error_code == ErrorCode.NOT_COORDINATOR
        producer = Transactional(raw, "kept")
        assert producer.commit_offset("lost", "t", 6) is ErrorCode.NOT_COORDINATOR
        added = AddOffsetsToTxnRequest(
            transactional_id="kept",
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            group_id="lost",
        )
        assert raw.ask(added, 3).error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert producer.commit_offset("kept", "t", 6) is ErrorCode.NONE
        assert producer.end(commit=True) is ErrorCode.NONE


UNREADABLE = {
    "no key type": (b"x", b"value"),
    "no group": (b"\0\2", b"value"),
    "key cut short": (b"\0\2\0\7short", b"value"),
    "value of no version": (encode_versioned(GroupMetadataKey(group="lost")), b"\x7f\xff"),
    "empty value": (encode_versioned(GroupMetadataKey(group="lost")), b""),
    "offset cut short": (encode_versioned(OffsetCommitKey(group="lost", topic="t")), b"\0\3\0"),
}


@pytest.mark.parametrize(("key", "value"), UNREADABLE.values(), ids=UNREADABLE)
def test_a_record_of_a_group_that_cannot_be_read_costs_that_record_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, key: bytes, value: bytes
) -> None:
    def offsets(raw: Raw) -> list[tuple[int, int]]:
        groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id=one, topics=None) for one in ("lost", "kept")]
        found = raw.ask(OffsetFetchRequest(groups=groups), 9).groups
        return [(one.error_code, one.topics[0].partitions[0].committed_offset) for one in found]

    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t")
        for group in ("lost", "kept"):
            commit(raw, group, 5)
        index = broker.server.groups.coordinator.partition_for("lost")
        offset = place(broker, "__consumer_offsets", index, key, value)
        commit(raw, "lost", 6)
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        assert offsets(raw) == [(ErrorCode.NONE, 6), (ErrorCode.NONE, 5)]
    told = [record.getMessage() for record in caplog.records if f"__consumer_offsets-{index}" in record.getMessage()]
    assert any(f"the record at offset {offset} " in line and "semel log dump" in line for line in told)


@pytest.mark.parametrize("value", [b"", b"\0\1short", b"\0\1" + b"\x7f" * 60])
def test_a_record_of_a_transactional_id_that_cannot_be_read_costs_that_record_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, value: bytes
) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        Transactional(raw, "kept")
        index = broker.server.transactions.coordinator.partition_for("kept")
        offset = place(broker, "__transaction_state", index, key_of("kept"), value)
        place(broker, "__transaction_state", index, b"\0\0\0\7cut", b"value")
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        assert [one.transactional_id for one in raw.ask(ListTransactionsRequest()).transaction_states] == ["kept"]
        assert Transactional(raw, "kept").producer_epoch == 1
    told = [record.getMessage() for record in caplog.records if f"__transaction_state-{index}" in record.getMessage()]
    assert any(f"the record at offset {offset} " in line for line in told)


@pytest.mark.parametrize("name", ["__consumer_offsets", "__transaction_state"])
def test_nobody_makes_an_internal_topic_that_its_coordinator_cannot_use(tmp_path: Path, name: str) -> None:
    def made(raw: Raw, partitions: int, **settings: str) -> ErrorCode:
        configs = [
            CreateTopicsRequest.CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in settings.items()
        ]
        topic = CreateTopicsRequest.CreatableTopic(
            name=name, num_partitions=partitions, replication_factor=1, configs=configs
        )
        return ErrorCode(raw.ask(CreateTopicsRequest(topics=[topic])).topics[0].error_code)

    def works(raw: Raw) -> bool:
        commit(raw, "group", 5)
        return Transactional(raw, "id").producer_id >= 0

    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t")
        assert made(raw, 1) is ErrorCode.INVALID_PARTITIONS
        assert made(raw, 50, cleanup_policy="delete") is ErrorCode.INVALID_CONFIG
        assert made(raw, 50) is ErrorCode.NONE
        assert broker.server.topics.get(name).values["cleanup.policy"] == ("compact",)
        assert works(raw)
        more = CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=60, assignments=None)
        grown = raw.ask(CreatePartitionsRequest(topics=[more], timeout_ms=1000)).results[0]
        assert grown.error_code == ErrorCode.INVALID_PARTITIONS


def test_ids_are_found_where_they_are_when_the_settings_for_internal_topics_change(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t")
        commit(raw, "group", 5)
        assert Transactional(raw, "id").producer_epoch == 0
    fewer = {"offsets.topic.num.partitions": 3, "transaction.state.log.num.partitions": 3}
    with Broker(tmp_path, settings=fewer) as broker, Raw(broker) as raw:
        groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id="group", topics=None)]
        found = raw.ask(OffsetFetchRequest(groups=groups), 9).groups[0]
        assert found.topics[0].partitions[0].committed_offset == 5
        assert Transactional(raw, "id").producer_epoch == 1


def test_a_batch_of_an_internal_topic_that_cannot_be_unpacked_costs_that_batch_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t")
        index = broker.server.groups.coordinator.partition_for("lost")
        packed = bytearray(batch(b"value", key=b"key", codec=1))
        packed[70:] = b"\xff" * len(packed[70:])
        packed[17:21] = crc32c(packed[21:]).to_bytes(4, "big")
        offset = append(broker, "__consumer_offsets", index, bytes(packed))
        commit(raw, "lost", 6)
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        groups = [OffsetFetchRequest.OffsetFetchRequestGroup(group_id="lost", topics=None)]
        found = raw.ask(OffsetFetchRequest(groups=groups), 9).groups[0]
        assert (found.error_code, found.topics[0].partitions[0].committed_offset) == (ErrorCode.NONE, 6)
    assert any(f"the batch at offset {offset} " in record.getMessage() for record in caplog.records)


def commit(raw: Raw, group: str, offset: int) -> None:
    row = OffsetCommitRequest.OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata=""
    )
    topic = OffsetCommitRequest.OffsetCommitRequestTopic(name="t", partitions=[row])
    answer = raw.ask(OffsetCommitRequest(group_id=group, topics=[topic]), 8)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.NONE


def place(broker: Broker, topic: str, index: int, key: bytes, value: bytes) -> int:
    """A record that no coordinator wrote, in a log of its own; its offset."""
    return append(broker, topic, index, batch(value, key=key))


def append(broker: Broker, topic: str, index: int, data: bytes) -> int:
    async def write() -> int:
        log = broker.server.internal_topics.get(topic).partition(index).log
        return log.append_internal(data, broker.server.now_ms()).base_offset

    offset: int = broker.call(write())
    return offset


def test_a_stored_setting_that_is_not_legal_any_more_is_named_and_its_default_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t", retention_ms="5000", segment_bytes="2000")
    store = tmp_path / ".metadata" / "topics"
    version, body, _ = store.read_text().splitlines()
    stored = json.loads(body)
    stored["topics"]["t"]["configs"].update({"retention.ms": "-7", "message.format.version": "2.8"})
    store.write_text(f"{version}\n{json.dumps(stored)}\n")
    with caplog.at_level(logging.WARNING, "semel"), Broker(tmp_path) as broker, Raw(broker) as raw:
        values = broker.server.topics.get("t").values
        assert (values["retention.ms"], values["segment.bytes"]) == (7 * 24 * 3600 * 1000, 2000)
        assert raw.produce("t", batch()).error_code == 0
    warned = [record.getMessage() for record in caplog.records]
    assert any("topic t" in line and "retention.ms=-7" in line for line in warned)
    assert any("topic t" in line and "message.format.version" in line for line in warned)


def test_a_corrupt_partition_does_not_keep_the_others_from_being_compacted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"log.cleaner.backoff.ms": 50, "log.cleaner.min.cleanable.ratio": 0.01}
    with Broker(tmp_path, settings={**settings, "log.cleaner.enable": False}) as broker, Raw(broker) as raw:
        raw.create("t", partitions=2, cleanup_policy="compact", segment_bytes="1000")
        for partition in (0, 1):
            for number in range(40):
                raw.produce("t", batch(b"%d" % number * 50, key=b"k"), partition=partition)
    path = tmp_path / "t-0" / LOG
    whole = path.read_bytes()
    path.write_bytes(whole[:61] + b"\xff" * 8 + whole[69:])
    with Broker(tmp_path, settings=settings) as broker, Raw(broker) as raw:
        corrupt, other = (broker.server.topics.partition("t", index) for index in (0, 1))
        _ = corrupt.log
        log = other.log
        until(lambda: log.size_bytes < 4000, what="compaction of the other partition")
        assert raw.produce("t", batch(key=b"k"), partition=0).error_code == 0
    assert [record for record in caplog.records if "compaction of <t-0> failed" in record.getMessage()]


def test_the_life_of_the_machine_is_noted_where_the_system_tells_it(tmp_path: Path) -> None:
    with Broker(tmp_path):
        assert (tmp_path / ".semel_boot_id").exists() == Path("/proc/sys/kernel/random/boot_id").exists()


@pytest.mark.parametrize("durability", ["os", "fsync"])
@pytest.mark.parametrize("machine", ["went down", "stayed up"])
def test_a_hole_is_where_the_log_ends_only_if_the_machine_went_down_and_nothing_was_promised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: str, machine: str
) -> None:
    boot_id = tmp_path.with_name(f"{tmp_path.name}-boot-id")
    boot_id.write_text("one life\n")
    monkeypatch.setattr(checkpoints, "_BOOT_ID_OF_LINUX", str(boot_id))
    settings = {"semel.durability": durability}
    with Broker(tmp_path, settings=settings) as broker, Raw(broker) as raw:
        raw.create("t", segment_bytes="400")
        for _ in range(9):
            raw.produce("t", batch(b"x" * 40))
    for name in (".kafka_cleanshutdown", "recovery-point-offset-checkpoint"):
        (tmp_path / name).unlink()
    for snapshot in (tmp_path / "t-0").glob("*.snapshot"):
        snapshot.unlink()
    path = tmp_path / "t-0" / LOG
    path.write_bytes(path.read_bytes()[:-5])
    if machine == "went down":
        boot_id.write_text("another life\n")
    with Broker(tmp_path, settings=settings) as broker, Raw(broker) as raw:
        answer = raw.produce("t", batch(b"new"))
        if machine == "went down" and durability == "os":
            assert (answer.error_code, answer.base_offset) == (0, 2)
            assert len(raw.values("t")) == 3
            assert list((tmp_path / "t-0").glob("cut-at-*/*.log"))
        else:
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert (tmp_path / ".semel_boot_id").read_bytes() == boot_id.read_bytes()


def test_a_damaged_partition_is_told_once_and_not_at_every_round_of_retention(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t", partitions=2)
        for partition in (0, 1):
            for _ in range(3):
                raw.produce("t", batch(timestamp_ms=1), partition=partition)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    path = tmp_path / "t-0" / LOG
    path.write_bytes(path.read_bytes()[:70] + b"\xff" + path.read_bytes()[71:])
    with Broker(tmp_path, settings={"log.retention.check.interval.ms": 20}) as broker:
        log = broker.server.topics.partition("t", 1).log
        until(lambda: log.log_start_offset == 3, what="a round of retention")
    said = [record.getMessage() for record in caplog.records if "t-0" in record.getMessage()]
    assert len([line for line in said if "offline" in line]) == 1
    assert not [line for line in said if "retention of" in line]


def test_a_log_whose_every_file_is_gone_after_a_kill_does_not_begin_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also the file of leader epochs is gone, without which the whole log is read: what was safely on disk still has to
    be in it."""
    data, killed = tmp_path / "data", tmp_path / "killed"
    with Broker(data) as broker, Raw(broker) as raw:
        raw.create("t", partitions=2)
        for partition in (0, 1):
            for _ in range(3):
                raw.produce("t", batch(b"kept"), partition=partition)
    with Broker(data):
        shutil.copytree(data, killed)
    for name in (killed / "t-0").iterdir():
        name.unlink()
    (killed / "t-1" / "leader-epoch-checkpoint").unlink()
    path = killed / "t-1" / LOG
    path.write_bytes(path.read_bytes()[:-1])
    with Broker(killed) as broker, Raw(broker) as raw:
        for partition in (0, 1):
            answer = raw.fetch("t", partition=partition, max_wait_ms=0)
            assert answer.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "t-0: every file of the log is missing: everything below offset 3 was safely on disk" in caplog.text
    assert "in a part of the log that was safely on disk" in caplog.text
