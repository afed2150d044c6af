"""The small text files: Kafka's formats, read and written, and torn ones recognised."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from semel.log import checkpoints
from semel.log.checkpoints import DamagedCheckpoint, LeaderEpochs
from semel.log.files import OVERWRITTEN_BYTES, Files
from semel.log.inspection import inspect
from semel.log.opening import open_partition_log
from tests.log.disk import NOW, InlineFiles, batch, open_log, settings


def test_a_new_partition_looks_as_kafkas_do(tmp_path: Path) -> None:
    topic_id = uuid.UUID("6a7b8c9d-0e1f-4a3b-8c5d-6e7f8a9b0c1d")
    open_partition_log(tmp_path / "t-0", "t", 0, settings(), NOW, topic_id=topic_id, clean=True, files=InlineFiles())
    assert sorted(path.name for path in (tmp_path / "t-0").iterdir()) == [
        "00000000000000000000.index",
        "00000000000000000000.log",
        "00000000000000000000.timeindex",
        "leader-epoch-checkpoint",
        "partition.metadata",
    ]
    text = (tmp_path / "t-0" / "partition.metadata").read_text()
    assert text == "version: 0\ntopic_id: anuMnQ4fSjuMXW5_ipsMHQ"
    assert checkpoints.decode_partition_metadata(text.encode()) == topic_id


def test_a_directory_of_another_topic_id_is_refused(tmp_path: Path) -> None:
    for expected, given_id in ((True, 1), (True, 1), (False, 2)):
        opening = {"topic_id": uuid.UUID(int=given_id), "clean": True, "files": InlineFiles()}
        if expected:
            open_partition_log(tmp_path / "t-0", "t", 0, settings(), NOW, **opening)  # type: ignore[arg-type]
        else:
            with pytest.raises(Exception, match="INCONSISTENT_TOPIC_ID"):
                open_partition_log(tmp_path / "t-0", "t", 0, settings(), NOW, **opening)  # type: ignore[arg-type]


names = st.from_regex(r"[a-zA-Z0-9._-]{1,20}", fullmatch=True)


@given(st.dictionaries(st.tuples(names, st.integers(0, 1000)), st.integers(0, 2**62), max_size=5))
def test_offsets_per_partition_come_back(offsets: dict[tuple[str, int], int]) -> None:
    assert checkpoints.decode_offsets(checkpoints.encode_offsets(offsets)) == offsets


def test_the_empty_checkpoint_that_kafka_begins_with_is_no_damage(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / checkpoints.CLEANER_OFFSETS).touch()
    assert checkpoints.read_offsets(Files(), tmp_path, checkpoints.CLEANER_OFFSETS) == {}
    assert caplog.messages == []
    assert inspect(tmp_path / checkpoints.CLEANER_OFFSETS).problems == []


@pytest.mark.parametrize("text", ["0\n", "1\n0\n", "0\n2\nt 0 5\n", "0\n1\nt 0\n", "0\n1\nt x 5\n", "0\nmany\n"])
def test_a_torn_checkpoint_is_recognised(text: str) -> None:
    with pytest.raises(DamagedCheckpoint):
        checkpoints.decode_offsets(text.encode())


@pytest.mark.parametrize("damage", ["missing", "empty", "torn"])
def test_lost_leader_epochs_are_found_again_even_at_a_clean_start(tmp_path: Path, damage: str) -> None:
    log = open_log(tmp_path)
    for epoch in (0, 4):
        log.begin_leader_epoch(epoch)
        log.append(batch(), NOW)
    log.close(NOW)
    path = tmp_path / "t-0" / "leader-epoch-checkpoint"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(b"" if damage == "empty" else path.read_bytes()[:-4])
    again = open_log(tmp_path)
    assert again.leader_epochs.entries == [(0, 0), (4, 1)]
    assert again.leader_epoch == 4


def test_a_clean_stop_is_known_once(tmp_path: Path) -> None:
    files = Files()
    assert not checkpoints.take_clean_shutdown_mark(files, tmp_path)
    checkpoints.mark_clean_shutdown(files, tmp_path)
    assert checkpoints.take_clean_shutdown_mark(files, tmp_path)
    assert not checkpoints.take_clean_shutdown_mark(files, tmp_path)


entries = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), max_size=12)


@given(entries, st.integers(0, 30))
def test_leader_epochs_answer_as_a_scan_of_the_batches_would(grown: list[tuple[int, int]], asked: int) -> None:
    epochs, end, scan = LeaderEpochs(), 0, []
    for epoch, count in grown:
        if epochs.assign(epoch, end) or epoch == epochs.latest:
            scan.extend([epoch] * count)
            end += count
    written = sorted(set(scan) | ({epochs.latest} if epochs.latest >= 0 else set()))
    assert [epoch for epoch, _ in epochs.entries] == written
    for offset, epoch in enumerate(scan):
        assert epochs.epoch_at(offset) == epoch
    answer, ended = epochs.end_offset_for(asked, end)
    if asked > epochs.latest:
        assert (answer, ended) == (-1, -1)
    else:
        assert ended == sum(1 for epoch in scan if epoch <= asked)
        assert answer == max((epoch for epoch in written if epoch <= asked), default=asked)


@given(entries, st.integers(0, 30))
def test_cutting_a_log_back_cuts_its_epochs_back(grown: list[tuple[int, int]], cut: int) -> None:
    epochs, end = LeaderEpochs(), 0
    for epoch, count in grown:
        if epochs.assign(epoch, end) or epoch == epochs.latest:
            end += count
    kept = [entry for entry in epochs.entries if entry[1] < cut]
    covering = epochs.epoch_at(cut)
    start = LeaderEpochs(epochs.entries)
    start.truncate_from_start(cut)
    assert start.epoch_at(cut) == covering
    assert all(offset >= cut for _, offset in start.entries)
    epochs.truncate_from_end(cut)
    assert epochs.entries == kept


def test_a_checkpoint_is_parsed_once_however_many_partitions_are_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a line for every partition: parsed for each that is opened, thousands of new ones held up the broker."""
    parsed, decode = [], checkpoints.decode_offsets

    def spy(data: bytes) -> dict[tuple[str, int], int]:
        parsed.append(data)
        return decode(data)

    monkeypatch.setattr(checkpoints, "decode_offsets", spy)
    files = InlineFiles()
    others = {("other", index): index for index in range(1000)}
    for name in checkpoints.OF_PARTITIONS:
        checkpoints.write_offsets(files, tmp_path, name, others)
    for index in range(20):
        open_log(tmp_path, files=files, partition=index).close(NOW)
        open_log(tmp_path, files=files, partition=index).close(NOW)
    assert len(parsed) == len(checkpoints.OF_PARTITIONS)


def test_a_checkpoint_that_changed_is_read_again(tmp_path: Path) -> None:
    files, name = InlineFiles(), checkpoints.LOG_START_OFFSETS
    for offset in range(5):  # often enough for a file system to give an inode again
        checkpoints.write_offsets(files, tmp_path, name, {("t", 0): offset}, durable=False)
        assert checkpoints.read_offsets(files, tmp_path, name) == {("t", 0): offset}
    checkpoints.set_offsets(files, tmp_path, name, {("u", 1): 7})
    assert checkpoints.read_offsets(files, tmp_path, name) == {("t", 0): 4, ("u", 1): 7}
    checkpoints.forget_offset(files, tmp_path, name, ("t", 0))
    assert checkpoints.read_offsets(files, tmp_path, name) == {("u", 1): 7}
    (tmp_path / name).write_text("0\n1\nby-hand 0 12\n")  # somebody else
    assert checkpoints.read_offsets(files, tmp_path, name) == {("by-hand", 0): 12}
    (tmp_path / name).unlink()
    assert checkpoints.read_offsets(files, tmp_path, name) == {}


def test_what_a_power_failure_leaves_of_leader_epochs_that_were_written_in_place_is_noticed() -> None:
    before = checkpoints.encode_leader_epochs([(0, 0), (3, 12)])
    after = checkpoints.encode_leader_epochs([(0, 0), (3, 12), (4, 1_234_567)])
    moved = checkpoints.encode_leader_epochs([(0, 0), (4, 1_234_567)])
    left = [new[:size] for new in (after, moved) for size in range(1, len(new))]
    left += [before + bytes(len(after) - len(before)), before[: len(before) // 2] + bytes(len(after))]
    for data in left:
        with pytest.raises(DamagedCheckpoint):
            checkpoints.decode_leader_epochs(data)
    assert checkpoints.decode_leader_epochs(after) == [(0, 0), (3, 12), (4, 1_234_567)]


def test_a_file_is_written_in_its_place_if_a_crash_cannot_tear_it(tmp_path: Path) -> None:
    files, path = Files(), tmp_path / "checkpoint"
    assert not files.overwrite(path, b"new"), "it is not there"
    path.write_bytes(b"old")
    node = path.stat().st_ino
    assert files.overwrite(path, b"newer")
    assert (path.read_bytes(), path.stat().st_ino) == (b"newer", node)
    assert not files.overwrite(path, b"old"), "its end would stay"
    assert not files.overwrite(path, bytes(OVERWRITTEN_BYTES + 1)), "the disk may write a part of it"
    assert path.read_bytes() == b"newer"
