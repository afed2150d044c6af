"""To which topic the directory of a replica belongs, when a topic may have been deleted and created again meanwhile."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import pytest
from crc32c import crc32c

from semel.broker.after_reply import AfterReply
from semel.broker.flusher import Flusher
from semel.broker.replication.durability import ReplicatedDurability, ReplicatedFsyncDurability
from semel.broker.replication.partition import ReplicatedPartition
from semel.broker.topics.logs import TopicLogs
from semel.broker.topics.topic import Topic
from semel.config import BROKER, topic_values
from semel.environment import MACHINE
from semel.log.checkpoints import (
    BOOT_ID,
    HIGH_WATERMARKS,
    LEADER_EPOCH_CHECKPOINT,
    PARTITION_METADATA,
    RECOVERY_POINTS,
    encode_partition_metadata,
    read_offsets,
    write_offsets,
)
from semel.log.damage import NamelessPartition
from semel.log.files import Files
from semel.log.manifest import FileMark, Manifest, encode_marks
from tests.log.disk import NOW, FaultyFiles, batch, open_log

EARLIER, TODAY = UUID(int=1), UUID(int=2)


def logs_in(
    directory: Path, files: Files, *, clean: bool = False, manifest: Manifest | None = None, fsync: bool = False
) -> tuple[TopicLogs, ReplicatedPartition]:
    """The logs of a broker of a cluster, and the partition of the topic of today."""
    settings = BROKER.parse({"semel.durability": "fsync" if fsync else "os"})
    kind = ReplicatedFsyncDurability if fsync else ReplicatedDurability
    durability = kind(Flusher(MACHINE.threads), AfterReply(lambda: True), cast(Any, None))
    logs = TopicLogs(
        directory, settings, files, MACHINE, durability, clean=clean, manifest=manifest, is_replicated=True
    )
    topic = Topic("t", TODAY, {}, topic_values(settings, {}))
    partition = ReplicatedPartition(topic, 0, directory / "t-0", logs.open, files)
    partition.is_local = True
    return logs, partition


def leave(directory: Path, metadata: bytes | None, *, records: bool) -> None:
    """What an earlier run has left."""
    log = open_log(directory)
    if records:
        log.append(batch(), NOW)
    log.close(NOW)
    path = directory / "t-0" / PARTITION_METADATA
    if metadata is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(metadata)


def went_down(directory: Path, *, with_fsync: bool) -> None:
    """Since the last run the machine was restarted."""
    (directory / BOOT_ID).write_bytes(b"another boot\n" + (b"fsync\n" if with_fsync else b""))


def marked(data: bytes) -> Manifest:
    """What a clean stop says of the file."""
    return Manifest(partitions={"t-0": encode_marks({PARTITION_METADATA: FileMark(len(data), crc32c(data))})})


def strays(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.name.endswith("-stray")]


@pytest.mark.parametrize("left", [None, b"", b"version: 0\nto"], ids=["no file", "empty", "torn"])
@pytest.mark.parametrize("machine", ["went down", "went down, written with fsync", "did not go down"])
@pytest.mark.parametrize("records", [True, False])
def test_a_directory_that_does_not_say_whose_it_is_is_not_taken_for_that_of_a_topic(
    tmp_path: Path, left: bytes | None, machine: str, records: bool
) -> None:
    leave(tmp_path, left, records=records)
    if machine != "did not go down":
        went_down(tmp_path, with_fsync="fsync" in machine)
    logs, partition = logs_in(tmp_path, FaultyFiles())
    logs.load([partition])
    if records and machine != "went down":
        # Others may rely on these records. Nobody knows whose they are, so nobody sees them.
        assert strays(tmp_path) == []
        with pytest.raises(NamelessPartition):
            _ = partition.own_log
        assert (tmp_path / "t-0").exists()
    else:
        assert len(strays(tmp_path)) == 1
        assert partition.own_log.end_offset == 0
        assert (tmp_path / "t-0" / PARTITION_METADATA).read_bytes() == encode_partition_metadata(TODAY)


@pytest.mark.parametrize("topic", ["t", "deleted"])
@pytest.mark.parametrize("left", [(), (LEADER_EPOCH_CHECKPOINT,), (f"{PARTITION_METADATA}.tmp",)])
def test_a_directory_whose_making_was_killed_is_removed(tmp_path: Path, topic: str, left: tuple[str, ...]) -> None:
    directory = tmp_path / f"{topic}-0"
    directory.mkdir()
    for name in left:
        (directory / name).write_bytes(b"0\n1\n5 0\n")
    other = tmp_path / "photos-1"  # whatever that is, it is not ours
    other.mkdir()
    (other / "one.jpg").touch()
    logs, partition = logs_in(tmp_path, FaultyFiles())
    logs.load([partition])
    kept = [path.name for path in tmp_path.iterdir() if path.is_dir() and not path.name.endswith("-delete")]
    assert kept == ["photos-1"]
    assert partition.own_log.leader_epochs.latest <= 0


def test_a_log_without_records_leaves_no_high_watermark_to_a_later_topic(tmp_path: Path) -> None:
    leave(tmp_path, b"", records=False)
    files = FaultyFiles()
    write_offsets(files, tmp_path, HIGH_WATERMARKS, {("t", 0): 7})
    logs, partition = logs_in(tmp_path, files)
    logs.load([partition])
    assert partition.own_log.high_watermark == 0


def test_a_file_that_went_bad_after_a_clean_stop_is_known_by_what_the_stop_noted(tmp_path: Path) -> None:
    leave(tmp_path, encode_partition_metadata(EARLIER), records=True)
    logs, partition = logs_in(tmp_path, FaultyFiles(), clean=True, manifest=marked(encode_partition_metadata(TODAY)))
    logs.load([partition])
    assert strays(tmp_path) == []
    assert partition.own_log.end_offset == 1
    assert (tmp_path / "t-0" / PARTITION_METADATA).read_bytes() == encode_partition_metadata(TODAY)


def test_a_file_that_went_bad_after_a_clean_stop_and_named_another_topic_then_is_not_taken(tmp_path: Path) -> None:
    leave(tmp_path, b"", records=True)
    manifest = marked(encode_partition_metadata(EARLIER))
    logs, partition = logs_in(tmp_path, FaultyFiles(), clean=True, manifest=manifest)
    logs.load([partition])
    with pytest.raises(NamelessPartition):
        _ = partition.own_log


@pytest.mark.parametrize("fsync", [True, False])
@pytest.mark.parametrize("role", ["leader", "follower"])
@pytest.mark.parametrize("is_new", [True, False])
def test_with_fsync_the_topics_id_is_on_disk_before_the_first_record(
    tmp_path: Path, fsync: bool, role: str, is_new: bool
) -> None:
    if not is_new:  # killed, before anything was synced
        leave(tmp_path, encode_partition_metadata(TODAY), records=True)
    files = FaultyFiles()
    logs, partition = logs_in(tmp_path, files, fsync=fsync)
    logs.load([partition])
    log = partition.own_log

    def first_record(call: str, path: str) -> bool:
        if call == "write" and path.endswith(".log"):
            synced_then.append(any(name.endswith(PARTITION_METADATA) for name in files.synced))
        return False

    synced_then: list[bool] = []
    files.synced.clear()
    files.fail_when = first_record
    if role == "leader":
        log.begin_leader_epoch(1)
        log.append(batch(), NOW)
    else:
        leader = open_log(tmp_path / "leader")
        for _ in range(2):
            leader.append(batch(), NOW)
        log.following.begin(1)
        answer = leader.reader.read(log.end_offset, 1 << 20, 0)
        log.following.append(bytes(answer.data), NOW)
    assert synced_then[0] is fsync


@pytest.mark.parametrize("fsync", [True, False])
def test_with_fsync_a_deleted_topic_is_gone_from_the_disk_before_the_next_of_its_name(
    tmp_path: Path, fsync: bool
) -> None:
    class Noting(FaultyFiles):
        def sync_directory(self, path: Any) -> None:
            gone_then.append((Path(path), (tmp_path / "t-0").exists()))
            super().sync_directory(path)

    gone_then: list[tuple[Path, bool]] = []
    files = Noting()
    leave(tmp_path, encode_partition_metadata(TODAY), records=True)
    logs, partition = logs_in(tmp_path, files, fsync=fsync)
    logs._remove_directories([partition.directory])  # on a thread, in a broker
    assert ((tmp_path, False) in gone_then) is fsync


def test_alone_the_broker_knows_its_topics_and_names_their_directories_before_they_become_replicas(
    tmp_path: Path,
) -> None:
    leave(tmp_path, None, records=True)
    logs, partition = logs_in(tmp_path, FaultyFiles())
    logs.name_partitions([partition])
    assert (tmp_path / "t-0" / PARTITION_METADATA).read_bytes() == encode_partition_metadata(TODAY)


# A line of the recovery points without its directory is damage, so it goes first


def test_a_start_that_fails_while_it_sets_a_directory_aside_leaves_no_line_without_a_directory(tmp_path: Path) -> None:
    """The replica was moved away while the broker was down, and is moved back before the next start."""
    leave(tmp_path, encode_partition_metadata(TODAY), records=True)
    write_offsets(FaultyFiles(), tmp_path, RECOVERY_POINTS, {("t", 0): 1})
    files = FaultyFiles()
    files.fail_when = lambda call, path: RECOVERY_POINTS in path
    logs, partition = logs_in(tmp_path, files)
    partition.is_local = False
    with pytest.raises(OSError, match="no space left"):
        logs.load([partition])
    assert strays(tmp_path) == []
    logs, partition = logs_in(tmp_path, FaultyFiles())
    logs.load([partition])
    assert partition.own_log.end_offset == 1


def test_a_line_of_a_replica_that_is_on_other_brokers_does_not_count_when_it_comes_back(tmp_path: Path) -> None:
    write_offsets(FaultyFiles(), tmp_path, RECOVERY_POINTS, {("t", 0): 94})
    logs, partition = logs_in(tmp_path, FaultyFiles())
    partition.is_local = False
    logs.load([partition])
    assert partition.offline is None
    partition.is_local = True
    assert partition.own_log.end_offset == 0
    assert read_offsets(FaultyFiles(), tmp_path, RECOVERY_POINTS) == {}


@pytest.mark.parametrize("whole_topic", [True, False])
def test_a_directory_is_removed_after_its_line(tmp_path: Path, whole_topic: bool) -> None:
    """A kill in between leaves a directory without a line, which is only read whole."""
    leave(tmp_path, encode_partition_metadata(TODAY), records=True)
    write_offsets(FaultyFiles(), tmp_path, RECOVERY_POINTS, {("t", 0): 1})
    seen = []

    class Watched(Files):
        def rename(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
            if os.fspath(target).endswith("-delete"):
                seen.append(read_offsets(self, tmp_path, RECOVERY_POINTS))
            super().rename(source, target)

    logs, partition = logs_in(tmp_path, Watched())
    logs.load([partition])
    for segment in partition.own_log.segments:
        segment.close()
    partition.release()
    asyncio.run(logs.remove([partition], {"t"}) if whole_topic else logs.remove_partition(partition))
    assert seen == [{}]
