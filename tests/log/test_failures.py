"""A disk that fails: nothing is remembered that was not written, reads go on, and a restart puts things right."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import ClassVar

import pytest

from semel.errors import ErrorCode, Refused
from tests.log.disk import NOW, FaultyFiles, batch, crash, end, open_log, read_all, send


def refused(code: ErrorCode = ErrorCode.KAFKA_STORAGE_ERROR) -> pytest.RaisesExc[Refused]:
    return pytest.raises(Refused, match=code.name)


@pytest.mark.parametrize("torn", [0.0, 0.3, 0.99])
def test_a_failed_append_leaves_producer_state_as_it_was(tmp_path: Path, torn: float) -> None:
    """K-6683"""
    files = FaultyFiles()
    log = open_log(tmp_path, files=files)
    log.append(batch(1, 0), NOW)
    facts, end_offset, size = log.producers.facts(), log.end_offset, log.size_bytes
    files.torn, files.fail_when = torn, lambda call, path: call == "write"
    with refused():
        log.append(batch(1, 1), NOW)
    assert (log.producers.facts(), log.end_offset, log.size_bytes) == (facts, end_offset, size)
    assert (tmp_path / "t-0" / "00000000000000000000.log").stat().st_size == size


def test_after_an_io_error_no_further_append_is_accepted_and_reads_go_on(tmp_path: Path) -> None:
    """K-10778"""
    files = FaultyFiles()
    log = open_log(tmp_path, files=files)
    log.append(batch(1, 0), NOW)
    files.error = OSError(errno.EIO, "input/output error")
    files.fail_when = lambda call, path: call == "write"
    with refused():
        log.append(batch(1, 1), NOW)
    files.fail_when = lambda call, path: False
    for attempt in (
        lambda: log.append(batch(1, 1), NOW),
        lambda: log.append_internal(batch(), NOW),
        lambda: end(log, 1, commit=True),
    ):
        with refused():
            attempt()
    assert isinstance(log.failed, OSError)
    assert [record.offset for record in read_all(log, 1)] == [0]
    log.close(NOW)
    again = open_log(tmp_path, clean=False)
    assert again.append(batch(1, 1), NOW).base_offset == 1


def test_a_partial_write_that_cannot_be_cut_is_cut_by_recovery(tmp_path: Path) -> None:
    files = FaultyFiles()
    log = open_log(tmp_path, files=files)
    log.append(batch(1, 0), NOW)
    files.torn, files.fail_when = 0.5, lambda call, path: call in ("write", "truncate")
    with refused():
        log.append(batch(1, 1), NOW)
    assert (tmp_path / "t-0" / "00000000000000000000.log").stat().st_size > log.size_bytes
    assert [record.offset for record in read_all(log)] == [0]
    crash(log)
    again = open_log(tmp_path, clean=False)
    assert again.end_offset == 1
    assert again.append(batch(1, 1), NOW).base_offset == 1


def test_when_the_transaction_index_cannot_be_written_no_offset_is_given_twice_and_the_lso_stands(
    tmp_path: Path,
) -> None:
    """K-7866"""
    files = FaultyFiles()
    log = open_log(tmp_path, files=files)
    send(log, 7, 0, b"aborted")
    files.fail_when = lambda call, path: call == "write" and path.endswith(".txnindex")
    with refused():
        end(log, 7, commit=False)
    assert log.end_offset == 2
    assert log.last_stable_offset == 0
    assert log.producers.open_transactions == {0: 7}
    with refused():
        log.append(batch(), NOW)
    crash(log)
    again = open_log(tmp_path, clean=False)
    assert (again.end_offset, again.last_stable_offset) == (2, 2)
    assert again.reader.read(0, 1 << 20, 1).aborted == [(7, 0)]
    assert read_all(again, 1) == []


@pytest.mark.parametrize("kind", [".log", ".index", ".timeindex"])
def test_a_disk_that_is_full_when_a_segment_is_rolled_stops_writes_and_loses_nothing(tmp_path: Path, kind: str) -> None:
    class FullOnCreate(FaultyFiles):
        full = False

        def create_empty(self, path: object) -> None:
            if self.full and str(path).endswith(kind):
                raise OSError(errno.ENOSPC, "no space left on device")
            super().create_empty(str(path))

    files = FullOnCreate()
    log = open_log(tmp_path, files=files, segment_bytes=300)
    log.append(batch(1, 0, b"x" * 100), NOW)
    files.full = True
    with refused():
        log.append(batch(1, 1, b"x" * 200), NOW)
    assert log.end_offset == 1 and [record.offset for record in read_all(log)] == [0]
    crash(log)
    again = open_log(tmp_path, clean=False, segment_bytes=300)
    assert again.append(batch(1, 1, b"x" * 200), NOW).base_offset == 1


def test_a_failed_fsync_stops_writes(tmp_path: Path) -> None:
    """After a failed fsync nobody knows which pages are on disk: trying again would only look better."""
    files = FaultyFiles()
    log = open_log(tmp_path, files=files)
    log.append(batch(1, 0), NOW)
    files.fail_when = lambda call, path: call == "sync"
    with refused():
        log.flusher.flush()
    assert log.flusher.recovery_point == 0
    files.fail_when = lambda call, path: False
    with refused():
        log.append(batch(1, 1), NOW)


def test_the_first_flush_of_a_new_partition_makes_its_directory_durable_too(tmp_path: Path) -> None:
    class Directories(FaultyFiles):
        directories: ClassVar[list[str]] = []

        def sync_directory(self, path: object) -> None:
            self.directories.append(str(path))

    files = Directories()
    log = open_log(tmp_path, files=files)
    for expected in ([str(tmp_path / "t-0"), str(tmp_path)], []):
        log.append(batch(), NOW)
        files.directories.clear()
        log.flusher.flush()
        assert files.directories == expected


def test_every_failure_at_any_step_leaves_acknowledged_records_once(tmp_path: Path) -> None:
    """Whatever step of a busy life fails, a restart has everything that was acknowledged, in order, once."""
    step, failed = 0, True
    while failed:
        step += 1
        data = tmp_path / str(step)
        files = FaultyFiles()
        log = open_log(data, files=files, segment_bytes=400)
        files.fail_at, files.torn, files.changes = step, 0.6, 0
        acknowledged = []
        for number in range(12):
            try:
                log.append(batch(1, number, b"%d" % number * 30), NOW)
                acknowledged.append(number)
                send(log, 7, number, b"t")
                end(log, 7, commit=number % 2 == 0)
            except Refused:
                break
        failed = log.failed is not None
        files.fail_at = None
        crash(log)
        again = open_log(data, clean=False, segment_bytes=400)
        values = [record.value or b"" for record in read_all(again)]
        found = [int(value[: len(value) // 30]) for value in values if len(value) > 1]
        assert found[: len(acknowledged)] == acknowledged
        assert found == sorted(set(found))
        crash(again)
    assert step > 40
