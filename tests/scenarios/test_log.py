"""What the files keep and what a failing disk must not spoil: scenarios 19 to 22 and 24 to 27, through a real broker
where the disk can be reached through one."""

from __future__ import annotations

from pathlib import Path

import pytest

from semel.errors import ErrorCode
from semel.log.partition_log import PartitionLog
from semel.log.recovery import DamagedLog
from tests.broker.raw import batch
from tests.log.disk import FaultyFiles, crash, end, open_log, read_all, send
from tests.log.disk import batch as client_batch
from tests.scenarios.stage import Disk, Scene, Stage

E = ErrorCode
LAST = 2**31 - 1
NOW = 1_700_000_000_000


def idempotent(
    scene: Scene, *values: bytes, sequence: int, producer_id: int = 4711, key: bytes | None = None
) -> tuple[int, int]:
    """(error code, base offset) of one batch of an idempotent producer."""
    data = batch(*values, producer_id=producer_id, producer_epoch=0, base_sequence=sequence, key=key)
    answer = scene.raw.produce("ledger", data)
    return answer.error_code, answer.base_offset


def test_scenario_19_when_an_abort_cannot_be_indexed_it_is_not_visible_and_no_offset_is_given_twice(
    stage: Stage,
) -> None:
    disk = Disk()
    scene = stage.start(disk=disk)
    scene.raw.create("ledger")
    producer = scene.producer()
    assert producer.write("ledger", b"aborted") is E.NONE
    disk.fails = lambda call, path: path.endswith(".txnindex")
    assert producer.end(False) is E.NONE
    assert scene.state() == "PrepareAbort", "the coordinator goes on trying"
    assert scene.ends("ledger")[0] == 0
    assert scene.committed("ledger") == []
    disk.fails = lambda call, path: False
    assert idempotent(scene, b"after", sequence=0)[0] == E.KAFKA_STORAGE_ERROR
    scene.left_in_order = False
    scene = stage.crash(scene)
    scene.until_state("CompleteAbort")
    assert idempotent(scene, b"after", sequence=0)[0] == E.NONE
    assert scene.committed("ledger") == [b"after"]
    offsets = [found.base_offset for found in scene.stored("ledger")]
    assert offsets == sorted(set(offsets))


def test_scenarios_20_and_21_after_an_io_error_nothing_is_taken_or_remembered_until_a_restart(stage: Stage) -> None:
    disk = Disk()
    scene = stage.start(disk=disk)
    scene.raw.create("ledger")
    assert idempotent(scene, b"zero", sequence=0) == (E.NONE, 0)
    facts = scene.log("ledger").producers.facts()
    disk.fails = lambda call, path: call == "write" and "ledger-0" in path
    assert idempotent(scene, b"one", sequence=1)[0] == E.KAFKA_STORAGE_ERROR
    disk.fails = lambda call, path: False
    assert idempotent(scene, b"one", sequence=1)[0] == E.KAFKA_STORAGE_ERROR
    assert scene.log("ledger").producers.facts() == facts
    assert scene.uncommitted("ledger") == [b"zero"]
    scene = stage.crash(scene)
    assert idempotent(scene, b"one", sequence=1) == (E.NONE, 1), "sequence 1 was never written, so it is not a retry"
    assert scene.uncommitted("ledger") == [b"zero", b"one"]


def busy(log: PartitionLog) -> None:
    """Producers of every kind: idempotent, aborted, committed, open, known by a marker only."""
    for sequence in range(7):
        log.append(client_batch(1, sequence), NOW)
    for commit in (True, False):
        send(log, 7, 0 if commit else 1, b"record")
        end(log, 7, commit=commit)
    end(log, 9, commit=True, epoch=4, coordinator=3)
    send(log, 8, 0, b"open")


def test_scenario_22_a_torn_snapshot_is_recognised_and_rebuilt_from_the_log(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    busy(log)
    facts, open_transactions = log.producers.facts(), log.producers.open_transactions
    log.close(NOW)
    (path,) = (tmp_path / "t-0").glob("*.snapshot")
    whole = path.read_bytes()
    torn = [whole[:size] for size in range(0, len(whole), 7)]
    torn += [whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :] for at in range(0, len(whole), 11)]
    torn += [whole[: len(whole) // 2] + bytes(len(whole) - len(whole) // 2)]
    for clean in (True, False):
        for data in torn:
            path.write_bytes(data)
            again = open_log(tmp_path, clean=clean)
            assert again.producers.facts() == facts
            assert again.producers.open_transactions == open_transactions
            crash(again)


def test_scenario_22_a_snapshot_has_its_name_only_after_it_was_fsynced(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = open_log(tmp_path, files=files)
    busy(log)
    steps: list[tuple[str, str]] = []

    def note(call: str, path: str) -> bool:
        if ".snapshot" in path:
            steps.append((call, path.rpartition(".")[2]))
        return False

    files.fail_when = note
    log.roll(NOW)
    assert steps[:4] == [("truncate", "tmp"), ("write", "tmp"), ("sync", "tmp"), ("rename", "snapshot")]


@pytest.mark.parametrize("after", ["nothing", "restart", "crash"])
def test_scenario_24_sequences_wrap_and_a_retry_from_before_the_wrap_is_still_known(stage: Stage, after: str) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    assert idempotent(scene, b"a", sequence=LAST - 2) == (E.NONE, 0)
    assert idempotent(scene, b"b", b"c", b"d", sequence=LAST - 1) == (E.NONE, 1), "the last record has sequence 0"
    assert idempotent(scene, b"e", sequence=1) == (E.NONE, 4)
    if after != "nothing":
        scene = getattr(stage, after)(scene)
    assert idempotent(scene, b"b", b"c", b"d", sequence=LAST - 1) == (E.NONE, 1)
    assert idempotent(scene, b"e", sequence=1) == (E.NONE, 4)
    assert idempotent(scene, b"g", sequence=3)[0] == E.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert idempotent(scene, b"f", sequence=2) == (E.NONE, 5)
    assert scene.uncommitted("ledger") == [b"a", b"b", b"c", b"d", b"e", b"f"]


def compact(scene: Scene) -> None:
    log = scene.log("ledger")
    now_ms = scene.broker.server.now_ms()
    scene.on_loop(lambda: (log.roll(now_ms), log.cleaner.compact(now_ms, force=True)))


def test_scenarios_25_to_27_compaction_leaves_what_exactly_once_still_needs(stage: Stage) -> None:
    scene = stage.start(log_cleaner_enable=False)
    scene.raw.create("ledger", cleanup_policy="compact", delete_retention_ms="0")
    aborted, held = scene.producer("aborted"), scene.producer("held")
    assert idempotent(scene, b"older", sequence=0, producer_id=4713, key=b"k") == (E.NONE, 0)
    assert idempotent(scene, b"old", sequence=0, key=b"k") == (E.NONE, 1)
    aborted_batch = batch(
        b"wrong",
        key=b"k",
        producer_id=aborted.producer_id,
        producer_epoch=aborted.epoch,
        base_sequence=0,
        transactional=True,
    )
    assert scene.raw.produce("ledger", aborted_batch, transactional_id="aborted").error_code == E.NONE
    assert aborted.end(False) is E.NONE
    held_batch = batch(
        b"new",
        key=b"k",
        producer_id=held.producer_id,
        producer_epoch=held.epoch,
        base_sequence=0,
        transactional=True,
    )
    assert scene.raw.produce("ledger", held_batch, transactional_id="held").error_code == E.NONE
    compact(scene)
    # 27: the open transaction may yet be aborted, so "old" must not have given way to it.
    assert b"old" in scene.committed("ledger")
    assert held.end(False) is E.NONE
    assert idempotent(scene, b"last", sequence=0, producer_id=4712, key=b"other") == (E.NONE, 6)
    for _ in range(3):
        compact(scene)
        scene = stage.crash(scene)
        # 25: aborted data is not shown for want of a marker, and nothing hangs.
        assert scene.committed("ledger") == [b"old", b"last"]
        assert scene.ends("ledger") == (7, 7)
        # 26: the last sequence of each producer is known, also of one whose records are gone.
        assert idempotent(scene, b"old", sequence=0, key=b"k") == (E.NONE, 1)
        assert idempotent(scene, b"older", sequence=0, producer_id=4713, key=b"k") == (E.NONE, 0)
        assert idempotent(scene, b"x", sequence=2, producer_id=4713, key=b"k")[0] == E.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("by", ["roll", "close"])
def test_an_index_is_fsynced_before_it_is_trusted_also_where_the_log_already_was(tmp_path: Path, by: str) -> None:
    """T5 after a power cut: without its index, aborted data would be taken for committed."""
    files = FaultyFiles()
    log = open_log(tmp_path, files=files)
    send(log, 7, 0, b"aborted")
    end(log, 7, commit=False)
    log.flusher.flush()
    files.synced.clear()
    if by == "roll":
        log.roll(NOW)
    else:
        log.close(NOW)
    assert {Path(path).suffix for path in files.synced} >= {".index", ".timeindex", ".txnindex"}


def test_lost_leader_epochs_are_found_again_in_every_segment(tmp_path: Path) -> None:
    """L5 after a power cut: a snapshot vouches for older segments, and knows nothing of their leader epochs."""
    log = open_log(tmp_path)
    for sequence in range(3):
        log.append(client_batch(1, sequence), NOW)
        log.roll(NOW)
    log.append(client_batch(1, 3), NOW)
    crash(log)
    (tmp_path / "t-0" / "leader-epoch-checkpoint").unlink()
    again = open_log(tmp_path, clean=False)
    assert again.leader_epochs.entries == [(0, 0)]


def without_snapshots(data: Path) -> Path:
    for path in (data / "t-0").glob("*.snapshot"):
        path.unlink()
    return data / "t-0"


def test_what_an_index_said_about_batches_that_a_power_cut_took_is_forgotten(tmp_path: Path) -> None:
    """Otherwise committed records of the same producer would be hidden as aborted ones."""
    log = open_log(tmp_path)
    for _ in range(3):
        sequence = log.end_offset // 2
        send(log, 7, sequence, b"aborted")
        end(log, 7, commit=False)
    crash(log)
    (without_snapshots(tmp_path) / f"{0:020d}.log").write_bytes(b"")
    log = open_log(tmp_path, clean=False)
    send(log, 7, 0, b"committed", epoch=1)
    end(log, 7, commit=True, epoch=1)
    log.close(NOW)
    log = open_log(tmp_path)
    assert log.reader.read(0, 1 << 20, 1).aborted == []
    assert [record.value for record in read_all(log, 1)] == [b"committed"]


@pytest.mark.parametrize("later", [False, True], ids=["empty", "with batches"])
def test_a_segment_that_ends_too_early_is_the_end_of_the_log_or_damage_and_never_a_hole(
    tmp_path: Path, later: bool
) -> None:
    """L1, C3: a cut exactly between two batches leaves no torn bytes to be seen."""
    log = open_log(tmp_path)
    sizes = [log.append(client_batch(1, sequence), NOW) and log.size_bytes for sequence in range(4)]
    log.roll(NOW)
    if later:
        log.append(client_batch(1, 4), NOW)
    crash(log)
    path = without_snapshots(tmp_path) / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[: sizes[1]])
    if later:
        with pytest.raises(DamagedLog, match="offsets 2 to 3 are missing"):
            open_log(tmp_path, clean=False)
    else:
        again = open_log(tmp_path, clean=False)
        assert again.end_offset == 2
        assert again.append(client_batch(1, 2), NOW).base_offset == 2
