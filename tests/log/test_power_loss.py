"""The machine loses its power: only what was fsynced is sure to be there, and that must be enough.

The disk below forgets as a file system may: a file keeps what was synced and some beginning of what came after, a
directory keeps the names of its last sync or those of the last moment.
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.errors import Refused
from semel.log.files import Buffer
from semel.log.recovery import DamagedLog
from semel.log.snapshots import encode_snapshot
from semel.records.batch import Batch
from tests.log.disk import (
    NOW,
    FaultyFiles,
    InlineFiles,
    Killed,
    batch,
    crash,
    end,
    open_log,
    read_all,
    scratch,
    send,
    stored,
)

DAY_MS = 86_400_000


class ForgetfulFiles(InlineFiles):
    """Remembers what was synced, by inode, so that `lose_power` can take the rest away."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: dict[int, bytes] = {}
        self.names: dict[str, dict[str, int]] = {}
        self._graveyard = tempfile.TemporaryDirectory()
        self._graves = itertools.count()

    def sync(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        self.synced[status.st_ino] = os.pread(descriptor, status.st_size, 0)

    def sync_directory(self, path: str | os.PathLike[str]) -> None:
        self.names[os.fspath(path)] = self._names(os.fspath(path))

    def rename(self, source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
        self._keep_inode(target)
        super().rename(source, target)

    def remove(self, path: str | os.PathLike[str]) -> None:
        self._keep_inode(path)
        super().remove(path)

    def _keep_inode(self, path: str | os.PathLike[str]) -> None:
        """A removed file keeps its number, so that no later file is taken for it."""
        if os.path.exists(path):
            os.link(path, os.path.join(self._graveyard.name, str(next(self._graves))))

    @staticmethod
    def _names(directory: str) -> dict[str, int]:
        with os.scandir(directory) as entries:
            return {entry.name: entry.inode() for entry in entries if entry.is_file()}

    def lose_power(self, directory: Path, target: Path, fraction: float, *, old_names: bool) -> None:
        """What the next start may find: `fraction` of the bytes nobody synced, and the names of then or of now."""
        now = self._names(str(directory))
        contents = {inode: (directory / name).read_bytes() for name, inode in now.items()}
        names = self.names.get(str(directory), {}) if old_names else now
        target.mkdir(parents=True)
        for name, inode in names.items():
            synced = self.synced.get(inode, b"")
            written = contents.get(inode, synced)
            kept = len(synced) + int((len(written) - len(synced)) * fraction) if len(written) > len(synced) else None
            (target / name).write_bytes(synced if kept is None else written[:kept])


steps = st.lists(
    st.sampled_from(["put", "put", "put", "commit", "abort", "flush", "roll", "retain", "compact"]),
    min_size=1,
    max_size=40,
)


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
@given(steps, st.floats(0, 1), st.booleans(), st.booleans())
def test_what_was_flushed_is_there_and_the_rest_is_whole_or_absent(
    history: list[str], fraction: float, old_names: bool, compacted: bool
) -> None:
    """C1, C2"""
    with scratch() as place:
        root = Path(place)
        files = ForgetfulFiles()
        policy = {"cleanup_policy": "compact" if compacted else "delete", "segment_bytes": 600}
        log = open_log(root / "a", files=files, **policy)
        # A broker makes a new partition known to others only after this.
        files.sync_directory(root / "a" / "t-0")
        for path in (root / "a" / "t-0").iterdir():
            files.sync_path(path)
        sequence, ended, flushed, facts = 0, 0, 0, log.producers.facts()
        for number, step in enumerate(history):
            if step == "put":
                log.append(batch(1, sequence, b"%d" % number * 20, keys=[b"%d" % (number % 5)]), NOW)
                sequence += 1
            elif step in ("commit", "abort"):
                send(log, 7, ended, b"t")
                ended += 1
                end(log, 7, commit=step == "commit")
            elif step == "flush":
                flushed, facts = log.flusher.flush(), log.producers.facts()
            elif step == "roll":
                log.roll(NOW)
            elif step == "retain":
                log.retention.delete_records_before(min(flushed, log.high_watermark))
                log.retention.enforce(NOW)
            else:
                log.cleaner.compact(NOW, force=True)
        before = read_all(log)
        files.lose_power(root / "a" / "t-0", root / "b" / "t-0", fraction, old_names=old_names)
        for checkpoint in (root / "a").glob("*-checkpoint"):
            shutil.copy(checkpoint, root / "b")
        crash(log)
        again = open_log(root / "b", clean=False, **policy)
        assert again.end_offset >= flushed
        offsets = [record.offset for record in read_all(again)]
        wanted = [record for record in before if again.log_start_offset <= record.offset < again.end_offset]
        assert offsets == sorted(set(offsets))
        # A swap that was not durable yet leaves the older segments, with more in them and never less.
        assert {record.offset for record in wanted} <= set(offsets)
        by_offset = {record.offset: record for record in before}
        for record in read_all(again):
            if record.offset in by_offset:
                assert record == by_offset[record.offset]
        if again.end_offset == flushed:
            assert again.producers.facts() == facts
        again.append(batch(99, 0), NOW)


# The machine went down, and nobody was promised what had not been fsynced (`semel.durability=os`)


def torn_behind(root: Path, *, lost_bytes: int) -> tuple[list[Batch], int, Path]:
    """A log whose second segment lost its end while the third is whole; what it held, and where the second began."""
    log = open_log(root)
    for number in range(3):
        for _ in range(3):
            log.append(batch(1, log.end_offset, b"x" * 50), NOW)
        if number < 2:
            log.roll(NOW)
    crash(log)
    found = stored(log)
    crash(log)
    for path in (root / "t-0").glob("*.snapshot"):
        if path.name != "00000000000000000003.snapshot":
            path.unlink()
    second = root / "t-0" / "00000000000000000003.log"
    second.write_bytes(second.read_bytes()[:-lost_bytes])
    return found, found[3].size_bytes, second


@pytest.mark.parametrize("lost_batches", [0.3, 1, 1.5, 3])
def test_after_the_machine_went_down_the_log_ends_at_the_hole_and_what_follows_is_kept_aside(
    tmp_path: Path, lost_batches: float
) -> None:
    size = torn_behind(tmp_path / "size", lost_bytes=1)[1]
    found, size, second = torn_behind(tmp_path, lost_bytes=int(lost_batches * size))
    left = second.read_bytes()
    third = (tmp_path / "t-0" / "00000000000000000006.log").read_bytes()
    whole = len(left) // size
    log = open_log(tmp_path, clean=False, unsynced_may_be_lost=True)
    assert log.end_offset == 3 + whole
    assert [record.offset for record in read_all(log)] == list(range(3 + whole))
    (aside,) = [path for path in (tmp_path / "t-0").iterdir() if path.is_dir()]
    assert aside.name == f"cut-at-{3 + whole:020d}"
    assert (aside / "00000000000000000006.log").read_bytes() == third
    if len(left) % size:
        copy = aside / f"00000000000000000003.log.from-byte-{whole * size}"
        assert copy.read_bytes() == left[whole * size :]
    assert any(str(aside) in repair for repair in log.repairs)
    # The producer sends again what was lost.
    assert log.append(batch(1, log.end_offset, b"again"), NOW).base_offset == 3 + whole
    log.close(NOW)
    assert open_log(tmp_path).end_offset == 4 + whole
    assert found[0].base_offset == 0


def test_without_that_the_same_hole_is_damage(tmp_path: Path) -> None:
    """The process died, the machine did not: what was written is all there, unless something is wrong with the disk."""
    torn_behind(tmp_path, lost_bytes=5)
    with pytest.raises(DamagedLog, match="valid batches follow"):
        open_log(tmp_path, clean=False)


def test_a_hole_in_what_was_synced_is_damage_even_then(tmp_path: Path) -> None:
    size = torn_behind(tmp_path / "size", lost_bytes=1)[1]
    torn_behind(tmp_path, lost_bytes=size + 5)
    with pytest.raises(DamagedLog, match="safely on disk"):
        open_log(tmp_path, clean=False, unsynced_may_be_lost=True, recovery_point=5)
    path = tmp_path / "t-0" / "00000000000000000005.snapshot"
    path.write_bytes(encode_snapshot([]))
    with pytest.raises(DamagedLog, match="valid batches follow"):
        open_log(tmp_path, clean=False, unsynced_may_be_lost=True)


def test_a_bad_batch_between_good_ones_of_one_file_is_damage_even_then(tmp_path: Path) -> None:
    _, size, second = torn_behind(tmp_path, lost_bytes=5)
    harmed = bytearray(second.read_bytes())
    harmed[size // 2] ^= 1
    second.write_bytes(harmed)
    with pytest.raises(DamagedLog, match="a valid batch follows"):
        open_log(tmp_path, clean=False, unsynced_may_be_lost=True)
    with pytest.raises(DamagedLog, match="a valid batch follows"):
        open_log(tmp_path, clean=False, is_replicated=True)


def test_a_replica_is_cut_at_a_hole_within_a_file_because_the_others_have_what_follows(tmp_path: Path) -> None:
    _, size, second = torn_behind(tmp_path, lost_bytes=5)
    harmed = bytearray(second.read_bytes())
    harmed[size // 2] ^= 1
    second.write_bytes(harmed)
    log = open_log(tmp_path, clean=False, unsynced_may_be_lost=True, is_replicated=True)
    assert log.end_offset == 3
    assert (tmp_path / "t-0" / f"cut-at-{3:020d}").is_dir()


def test_setting_aside_may_be_killed_at_any_point(tmp_path: Path) -> None:
    """C6"""
    torn_behind(tmp_path / "a", lost_bytes=5)
    step, killed = 0, True
    while killed:
        step += 1
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        files = FaultyFiles()
        files.error, files.fail_at, files.torn = Killed(), step, 0.5
        try:
            crash(open_log(tmp_path / "b", clean=False, unsynced_may_be_lost=True, files=files))
            killed = False
        except Killed:
            killed = True
        again = open_log(tmp_path / "b", clean=False, unsynced_may_be_lost=True)
        assert again.end_offset == 5
        assert len(list((tmp_path / "b" / "t-0").glob("cut-at-*/00000000000000000006.log"))) == 1
        assert len(list((tmp_path / "b" / "t-0").glob("cut-at-*/00000000000000000003.log.from-byte-*"))) == 1
        crash(again)
    assert step > 8


class FilesAfterAFailedFsync(InlineFiles):
    """As Linux after an fsync that failed: the bytes are shown from memory, and an fsync writes only what was written
    since."""

    def __init__(self) -> None:
        super().__init__()
        self.dirty: dict[int, set[int]] = {}
        self.on_disk: dict[int, set[int]] = {}

    def write_at(self, descriptor: int, data: Buffer, position: int) -> None:
        self.dirty.setdefault(os.fstat(descriptor).st_ino, set()).update(range(position, position + len(data)))
        super().write_at(descriptor, data, position)

    def sync(self, descriptor: int) -> None:
        inode = os.fstat(descriptor).st_ino
        self.on_disk.setdefault(inode, set()).update(self.dirty.pop(inode, set()))


@pytest.mark.parametrize("same_boot", [True, False])
def test_what_a_failed_fsync_was_for_is_written_again_before_it_is_served(tmp_path: Path, same_boot: bool) -> None:
    """Unless the machine went down since: then the files are what the disk has."""
    log = open_log(tmp_path)
    log.append(batch(1, 0), NOW)
    log.flusher.flush()
    point = log.end_offset
    log.append(batch(1, 1), NOW)
    crash(log)
    files = FilesAfterAFailedFsync()
    log = open_log(tmp_path, clean=False, files=files, recovery_point=point)
    log.flusher.flush_what_a_crash_left(same_boot=same_boot)
    assert log.flusher.recovery_point == log.end_offset == 2
    first, second = stored(log)
    safe = files.on_disk.get(os.stat(log.segments[-1].log_path).st_ino, set())
    assert safe == (set(range(first.size_bytes, first.size_bytes + second.size_bytes)) if same_boot else set())


def test_a_disk_that_does_not_take_what_a_crash_left_stops_writes(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(batch(1, 0), NOW)
    crash(log)
    files = FaultyFiles()
    log = open_log(tmp_path, clean=False, files=files, recovery_point=0)
    files.fail_when = lambda call, path: call == "write"
    with pytest.raises(Refused, match="takes no writes"):
        log.flusher.flush_what_a_crash_left(same_boot=True)
    assert log.failed is not None


def test_a_replica_that_lost_the_entry_of_an_epoch_finds_it_in_its_batches(tmp_path: Path) -> None:
    """Without fsync a leader's epoch is not fsynced either. For anybody else such a batch is damage."""
    log = open_log(tmp_path, is_replicated=True)
    log.epochs_need_fsync = False
    log.append(batch(1, 0), NOW)
    checkpoint = tmp_path / "t-0" / "leader-epoch-checkpoint"
    before = checkpoint.read_bytes()
    log.begin_leader_epoch(log.leader_epoch + 4)
    log.append(batch(1, 1), NOW)
    epochs = log.leader_epochs.entries
    assert len(epochs) == 2 and log.epoch_is_on_disk
    checkpoint.write_bytes(before)
    with pytest.raises(DamagedLog, match="claims leader epoch"):
        open_log(tmp_path, clean=False, is_replicated=True)
    with pytest.raises(DamagedLog, match="claims leader epoch"):
        open_log(tmp_path, clean=False, is_replicated=True, unsynced_may_be_lost=True, recovery_point=2)
    found = open_log(tmp_path, clean=False, is_replicated=True, unsynced_may_be_lost=True)
    assert (found.end_offset, found.leader_epochs.entries) == (2, epochs)


@pytest.mark.parametrize("is_lost", [False, True], ids=["the list was whole", "the list was lost"])
def test_a_list_of_aborts_that_recovery_writes_anew_survives_the_next_power_loss(tmp_path: Path, is_lost: bool) -> None:
    """Seed 43849: a torn checkpoint of epochs lets recovery read all segments, also those that a snapshot calls safe.
    The start after that does not read them, and believes their lists of aborts."""
    files = ForgetfulFiles()
    log = open_log(tmp_path / "a", files=files)
    send(log, 7, 0, b"aborted")
    end(log, 7, commit=False)
    log.roll(NOW)
    log.append(batch(1, 0, b"kept"), NOW)
    log.flusher.flush()
    crash(log)
    directory = tmp_path / "a" / "t-0"
    (directory / "leader-epoch-checkpoint").write_bytes(b"")
    if is_lost:
        (directory / f"{0:020d}.txnindex").write_bytes(b"")
    log = open_log(tmp_path / "a", clean=False, files=files)
    crash(log)
    files.lose_power(directory, tmp_path / "b" / "t-0", 0.0, old_names=False)
    shutil.copy(directory / "leader-epoch-checkpoint", tmp_path / "b" / "t-0")
    again = open_log(tmp_path / "b", clean=False, unsynced_may_be_lost=True)
    assert [record.value for record in read_all(again, isolation=1)] == [b"kept"]
