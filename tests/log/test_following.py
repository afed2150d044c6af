"""A follower's log: byte for byte its leader's, whatever happened before and in whatever pieces it came."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.errors import Refused
from semel.log import checkpoints
from semel.log.files import Files
from semel.log.partition_log import PartitionLog
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
from tests.log.test_model import SMALL, Model, Step, play, steps

calm = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


def bytes_from(log: PartitionLog, offset: int) -> bytes:
    """Everything a leader has from an offset on, as a fetch of a replica gives it."""
    return b"".join(bytes(found.data) for found in stored(log) if found.base_offset >= offset)


def copy(leader: PartitionLog, follower: PartitionLog, chunk_bytes: int = 1 << 20) -> None:
    """Fetch until there is nothing more, cut by bytes as a fetch is; then the watermarks."""
    while follower.end_offset < leader.end_offset:
        rest = bytes_from(leader, follower.end_offset)
        taken = follower.following.append(rest[:chunk_bytes], NOW)
        if taken == 0:
            first = next(found for found in stored(leader) if found.base_offset >= follower.end_offset)
            assert follower.following.append(rest[: first.size_bytes], NOW) == first.size_bytes
    follower.following.take_watermarks(leader.high_watermark, leader.log_start_offset)


def follow(leader: PartitionLog, follower: PartitionLog) -> None:
    """Agree with the leader about where the logs part, as a follower does by its fetches, and fetch the rest."""
    follower.following.begin(leader.leader_epoch)
    for _ in range(50):
        if follower.following.last_fetched_epoch < 0:
            break
        asked = follower.following.last_fetched_epoch
        epoch, ended = leader.offset_for_leader_epoch(asked)
        if epoch == asked and ended >= follower.end_offset:
            break
        mine = follower.leader_epochs.end_offset_for(epoch, follower.end_offset)[1]
        cut = min(ended, follower.end_offset, mine if mine >= 0 else follower.end_offset)
        follower.truncate_to(cut, NOW)
        follower.following.begin(leader.leader_epoch)
    else:
        raise AssertionError("they never agree")
    copy(leader, follower)


def follower_in(directory: str | Path, files: Files | None = None, **changes: object) -> PartitionLog:
    log = open_log(Path(directory), files=files, **changes)
    log.high_watermark_follows_end = False
    log.following.begin(log.leader_epoch)
    return log


def files_in(directory: str | Path) -> dict[str, bytes]:
    """What must be the same in both. Snapshots are written where each broker stopped."""
    kinds = (".log", ".index", ".timeindex", ".txnindex")
    return {path.name: path.read_bytes() for path in Path(directory, "t-0").iterdir() if path.suffix in kinds}


@calm
@given(steps, st.integers(60, 3000))
def test_any_history_in_any_pieces_gives_the_same_files_and_the_same_producers(
    history: list[Step], chunk_bytes: int
) -> None:
    """F6, R10"""
    with scratch() as one, scratch() as two:
        leader, follower = open_log(Path(one), **SMALL), follower_in(two, **SMALL)
        play(leader, Model(), history)
        copy(leader, follower, chunk_bytes)
        assert follower.producers.facts() == leader.producers.facts()
        assert follower.producers.open_transactions == leader.producers.open_transactions
        assert (follower.high_watermark, follower.last_stable_offset) == (
            leader.high_watermark,
            leader.last_stable_offset,
        )
        assert read_all(follower, 1) == read_all(leader, 1)
        for log in (leader, follower):
            log.close(NOW)
        assert files_in(one) == files_in(two)
        assert open_log(Path(two), **SMALL).producers.facts() == open_log(Path(one), **SMALL).producers.facts()


def test_a_retry_that_meets_the_new_leader_gets_the_original_offset(tmp_path: Path) -> None:
    """Seed 004: the leader died after replicating and before answering."""
    leader, follower = open_log(tmp_path / "one"), follower_in(tmp_path / "two")
    leader.append(batch(), NOW)
    original = leader.append(batch(5, 0, b"a", b"b"), NOW)
    copy(leader, follower)
    follower.begin_leader_epoch(1)
    retried = follower.append(batch(5, 0, b"a", b"b"), NOW)
    assert (retried.duplicate, retried.base_offset) == (True, original.base_offset)
    assert follower.append(batch(5, 2), NOW).base_offset == 3


def test_a_damaged_batch_changes_nothing(tmp_path: Path) -> None:
    leader, follower = open_log(tmp_path / "one"), follower_in(tmp_path / "two")
    for sequence in range(3):
        leader.append(batch(5, sequence, b"x" * 100), NOW)
    data = bytearray(bytes_from(leader, 0))
    data[-7] ^= 1
    with pytest.raises(Refused, match="CORRUPT_MESSAGE"):
        follower.following.append(data, NOW)
    assert (follower.end_offset, follower.size_bytes, follower.producers.facts()) == (0, 0, {})
    copy(leader, follower)
    assert follower.end_offset == 3


@pytest.mark.parametrize("what", ["again", "older epoch", "newer epoch"])
def test_a_batch_that_cannot_follow_here_is_refused(tmp_path: Path, what: str) -> None:
    leader, follower = open_log(tmp_path / "one"), follower_in(tmp_path / "two")
    leader.append(batch(), NOW)
    first = bytes_from(leader, 0)
    leader.begin_leader_epoch(4)
    leader.append(batch(), NOW)
    if what == "newer epoch":
        # R6: this follower follows the leader of epoch 0, and nobody of epoch 4 may answer it.
        with pytest.raises(Refused, match="epoch 4"):
            follower.following.append(bytes_from(leader, 0), NOW)
        return
    follower.following.begin(4)
    copy(leader, follower)
    again = bytearray(first)
    if what == "older epoch":
        again[:8] = (2).to_bytes(8, "big")
    with pytest.raises(Refused, match="where 2 comes next" if what == "again" else "leader epoch 0 after 4"):
        follower.following.append(again, NOW)
    assert follower.end_offset == 2


def test_the_high_watermark_waits_for_the_leader_and_survives_a_restart(tmp_path: Path) -> None:
    """R10, R11"""
    leader, follower = open_log(tmp_path / "one"), follower_in(tmp_path / "two")
    for _ in range(4):
        leader.append(batch(), NOW)
    follower.following.append(bytes_from(leader, 0), NOW)
    assert (follower.end_offset, follower.high_watermark) == (4, 0)
    assert read_all(follower) == []
    follower.following.take_watermarks(3, 0)
    follower.following.take_watermarks(2, 0)
    assert follower.high_watermark == 3
    follower.following.take_watermarks(9, 0)
    assert follower.high_watermark == 4
    checkpoints.write_offsets(Files(), tmp_path / "two", checkpoints.HIGH_WATERMARKS, {("t", 0): 3})
    follower.close(NOW)
    again = open_log(tmp_path / "two", is_replicated=True)
    assert (again.high_watermark, again.end_offset, again.high_watermark_follows_end) == (3, 4, False)
    assert [record.offset for record in read_all(again)] == [0, 1, 2]
    again.append(batch(), NOW)
    assert again.high_watermark == 3
    again.close(NOW)
    alone = open_log(tmp_path / "two")
    assert (alone.high_watermark, alone.high_watermark_follows_end) == (5, True)


def test_a_transaction_ends_for_readers_when_its_marker_is_replicated(tmp_path: Path) -> None:
    leader, follower = open_log(tmp_path / "one"), follower_in(tmp_path / "two")
    send(leader, 5, 0)
    end(leader, 5, commit=False)
    follower.following.append(bytes_from(leader, 0), NOW)
    follower.following.take_watermarks(1, 0)
    assert follower.last_stable_offset == 0
    follower.following.take_watermarks(2, 0)
    assert (follower.last_stable_offset, read_all(follower, 1)) == (2, [])


def test_records_that_the_leader_deleted_do_not_come_back_after_a_crash(tmp_path: Path) -> None:
    leader, follower = open_log(tmp_path / "one"), follower_in(tmp_path / "two")
    for _ in range(4):
        leader.append(batch(), NOW)
    leader.retention.delete_records_before(3)
    follower.following.append(bytes_from(leader, 0), NOW)
    follower.following.take_watermarks(leader.high_watermark, leader.log_start_offset)
    assert follower.log_start_offset == 3
    crash(follower)
    assert open_log(tmp_path / "two", clean=False).log_start_offset == 3


@pytest.mark.parametrize("stop", ["clean", "crash"])
def test_what_the_leader_has_compacted_is_no_damage_here(tmp_path: Path, stop: str) -> None:
    small = {"cleanup_policy": "compact", "segment_bytes": 300, "min_cleanable_dirty_ratio": 0}
    leader, follower = open_log(tmp_path / "one", **small), follower_in(tmp_path / "two", cleanup_policy="compact")
    for number in range(12):
        leader.append(batch(-1, 0, b"v%d" % number, keys=[b"only"]), NOW)
    compaction = leader.cleaner.plan(NOW)
    assert compaction is not None
    compaction.run()
    assert compaction.apply() is not None
    kept = [found.base_offset for found in stored(leader)]
    assert kept[0] > 0
    copy(leader, follower)
    assert [found.base_offset for found in stored(follower)] == kept
    if stop == "clean":
        follower.close(NOW)
    else:
        crash(follower)
    again = open_log(tmp_path / "two", clean=stop == "clean", cleanup_policy="compact")
    assert (again.end_offset, [found.base_offset for found in stored(again)]) == (12, kept)
    assert [record.offset for record in read_all(again)] == kept


def test_a_follower_behind_the_start_begins_anew_there(tmp_path: Path) -> None:
    log = follower_in(tmp_path, segment_bytes=200)
    leader = open_log(tmp_path / "leader")
    for sequence in range(5):
        leader.append(batch(3, sequence), NOW)
    copy(leader, log)
    log.following.restart_at(700, NOW)
    assert (log.log_start_offset, log.high_watermark, log.end_offset) == (700, 700, 700)
    assert (log.size_bytes, log.producers.facts(), log.leader_epochs.entries) == (0, {}, [])
    for kind in ("crash", "clean"):
        crash(log) if kind == "crash" else log.close(NOW)
        log = open_log(tmp_path, clean=kind == "clean", segment_bytes=200)
        assert (log.log_start_offset, log.end_offset) == (700, 700)
    assert log.append(batch(), NOW).base_offset == 700


@pytest.mark.parametrize("offset", [3, 700])
def test_a_crash_while_beginning_anew_leaves_the_old_log_or_the_new_one(tmp_path: Path, offset: int) -> None:
    for number in range(1, 100):
        directory, files = tmp_path / str(number), FaultyFiles()
        log = open_log(directory, files=files, segment_bytes=200)
        for _ in range(5):
            log.append(batch(), NOW)
        log.flusher.flush(closing=True)
        checkpoints.write_offsets(files, directory, checkpoints.RECOVERY_POINTS, {("t", 0): 5})
        files.fail_at, files.error = files.changes + number, Killed()
        try:
            log.following.restart_at(offset, NOW)
        except Killed:
            crash(log)
            points = checkpoints.read_offsets(InlineFiles(), directory, checkpoints.RECOVERY_POINTS)
            again = open_log(directory, clean=False, recovery_point=points["t", 0])
            assert again.end_offset == offset or again.end_offset <= 5
        else:
            assert number > 5
            return
    raise AssertionError("it never came to an end")


elections = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3), st.booleans()), max_size=12)


@calm
@given(elections)
def test_quick_elections_leave_logs_that_converge(history: list[tuple[int, int, bool]]) -> None:
    """Scenario 33 (K-6361), of the log alone. Three replicas without a high watermark: any of them may lead next, with
    or without ever having followed the one before, and writes as much as it likes or nothing. After all that two follow
    the last leader."""
    with scratch() as directory:
        logs = [follower_in(Path(directory, str(number)), **SMALL) for number in range(3)]
        leader = logs[0]
        for epoch, (number, count, others_follow) in enumerate([*history, (0, 1, True)], start=1):
            leader = logs[number]
            leader.begin_leader_epoch(epoch)
            for written in range(count):
                leader.append(batch(-1, 0, b"%d of %d" % (written, epoch)), NOW)
            if others_follow:
                follow(leader, logs[(number + 1) % 3])
        for log in logs:
            if log is not leader:
                follow(leader, log)
        for log in logs:
            assert bytes_from(log, 0) == bytes_from(leader, 0)
            log.following.begin(leader.leader_epoch)
            epochs = [found.leader_epoch for found in stored(log)]
            assert log.leader_epochs.entries == [
                (epoch, found.base_offset)
                for place, (epoch, found) in enumerate(zip(epochs, stored(log), strict=True))
                if epoch not in epochs[:place]
            ], "L5: the checkpoint equals a scan"


def test_r4_an_epoch_without_a_batch_has_its_entry(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(batch(), NOW)
    log.begin_leader_epoch(7)
    assert (tmp_path / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n2\n0 0\n7 1\n"
    assert [log.offset_for_leader_epoch(epoch) for epoch in (-1, 0, 3, 7, 8)] == [
        (-1, -1),
        (0, 1),
        (0, 1),
        (7, 1),
        (-1, -1),
    ]


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_a_disk_that_fails_when_a_role_begins_ends_the_log(tmp_path: Path, role: str) -> None:
    """Else a batch of an epoch followed that the checkpoint does not know: damage, for the next start."""
    files = FaultyFiles()
    log = open_log(tmp_path, files=files)
    log.append(batch(), NOW)
    log.begin_leader_epoch(3)
    files.fail_when = lambda call, path: "leader-epoch-checkpoint" in path
    if role == "leader":
        log.begin_leader_epoch(4)
    else:
        log.following.begin(4)
    files.fail_when = lambda call, path: False
    assert log.failed is not None
    with pytest.raises(Refused):
        log.append(batch(), NOW)
    crash(log)
    again = open_log(tmp_path, clean=False)
    assert again.end_offset == 1


def test_r5_a_follower_claims_no_epoch_under_which_it_has_nothing(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(batch(), NOW)
    log.begin_leader_epoch(7)
    log.following.begin(8)
    assert (log.following.last_fetched_epoch, log.leader_epoch) == (0, 8)
    assert (tmp_path / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n0 0\n"


def test_the_epoch_of_a_batch_is_durable_before_the_batch(tmp_path: Path) -> None:
    """A batch of an epoch that the checkpoint does not know is damage."""
    leader, files = open_log(tmp_path / "one"), FaultyFiles()
    follower = follower_in(tmp_path / "two", files=files)
    leader.begin_leader_epoch(3)
    leader.append(batch(), NOW)
    follower.following.begin(3)
    files.fail_when, files.error = lambda call, path: call == "write" and path.endswith(".log"), Killed()
    with pytest.raises(Killed):
        copy(leader, follower)
    assert any(path.endswith("leader-epoch-checkpoint.tmp") for path in files.synced)
    assert (tmp_path / "two" / "t-0" / "leader-epoch-checkpoint").read_text() == "0\n1\n3 0\n"
    files.fail_when = lambda call, path: False
    files.synced.clear()
    crash(follower)
    elected = open_log(tmp_path / "two", clean=False, files=files)
    elected.begin_leader_epoch(4)
    assert not any("leader-epoch" in path for path in files.synced), "an election alone does not wait for the disk"
    elected.append(batch(), NOW)
    assert any("leader-epoch" in path for path in files.synced)
