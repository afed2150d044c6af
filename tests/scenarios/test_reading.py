"""How far a reader may see, whatever happens while it reads: scenarios 16, 17, 18, 42, 44."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semel.errors import ErrorCode
from semel.log.reader import LogReader
from semel.records.batch import split
from tests.broker.raw import Raw, batch
from tests.log.disk import NOW, end, open_log, read_all, send
from tests.log.disk import batch as plain
from tests.scenarios.stage import Disk, Scene, Stage, committed_values, in_background
from tests.support.waiting import until

E = ErrorCode


@pytest.mark.parametrize("isolation", [0, 1])
def test_scenarios_16_and_18_a_read_never_passes_what_it_was_allowed_when_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: int
) -> None:
    """K-9807, K-9835: the limit is looked at once, so what is appended and replicated meanwhile is not served."""
    log = open_log(tmp_path)
    log.high_watermark_follows_end = False
    send(log, 7, 0, b"committed")
    end(log, 7, commit=True)
    log.advance_high_watermark(2)
    send(log, 8, 0, b"open")
    original = LogReader._position_of

    def meanwhile(self: LogReader, offset: int) -> Any:
        found = original(self, offset)
        log.advance_high_watermark(3)
        send(log, 9, 0, b"later")
        log.advance_high_watermark(4)
        return found

    monkeypatch.setattr(LogReader, "_position_of", meanwhile)
    answer = log.reader.read(0, 1 << 20, isolation)
    monkeypatch.undo()
    assert answer.last_stable_offset == 2
    assert split(answer.data)[-1].last_offset == 1
    again = log.reader.read(0, 1 << 20, isolation)
    assert split(again.data)[-1].last_offset == (1 if isolation else 3)


def test_scenario_16_a_reader_of_committed_records_stops_at_the_last_stable_offset(stage: Stage) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    producer = scene.producer()
    assert producer.write("ledger", b"open") is E.NONE
    for number in range(3):
        assert scene.raw.produce("ledger", batch(b"plain %d" % number)).error_code == E.NONE
    answer = scene.raw.fetch("ledger", isolation_level=1, max_wait_ms=0)
    assert (answer.last_stable_offset, answer.high_watermark, bytes(answer.records or b"")) == (0, 4, b"")
    assert len(scene.uncommitted("ledger")) == 4
    assert producer.end(True) is E.NONE
    assert scene.committed("ledger") == [b"open", b"plain 0", b"plain 1", b"plain 2"]


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [4, 11, 12])
def test_scenario_17_a_fetch_that_waited_carries_the_aborted_transactions(
    stage: Stage, version: int, commit: bool
) -> None:
    scene = stage.start()
    scene.raw.create("ledger")
    producer = scene.producer()
    assert producer.write("ledger", b"first") is E.NONE
    with Raw(scene.broker) as reader:
        ask = lambda: reader.fetch("ledger", isolation_level=1, max_wait_ms=20_000, version=version)  # noqa: E731
        with in_background(ask) as answer:
            partition = scene.broker.server.topics.partition("ledger", 0)
            until(lambda: scene.on_loop(lambda: len(partition.watchers)) == 1, what="the fetch to wait")
            assert producer.end(commit) is E.NONE
            data = answer()
    assert len(split(data.records)) >= 1
    aborted = [(row.producer_id, row.first_offset) for row in data.aborted_transactions]
    assert aborted == ([] if commit else [(producer.producer_id, 0)])
    assert committed_values(data) == ([b"first"] if commit else [])


def stalled(stage: Stage) -> tuple[Scene, Disk]:
    """A broker that promises fsync, on a disk that will keep one fsync of the topic waiting."""
    disk = Disk()
    scene = stage.start(disk=disk, semel_durability="fsync")
    scene.raw.create("ledger")
    assert scene.raw.produce("ledger", batch(b"durable")).error_code == E.NONE
    return scene, disk


def stall(disk: Disk) -> None:
    disk.waits = lambda call, path: call == "sync" and "ledger-0" in path


def test_scenario_18_a_reader_does_not_see_a_batch_before_it_is_as_safe_as_promised(stage: Stage) -> None:
    scene, disk = stalled(stage)
    stall(disk)
    with Raw(scene.broker) as writer, in_background(lambda: writer.produce("ledger", batch(b"in doubt"))) as answer:
        assert disk.waiting.wait(10)
        assert scene.log("ledger").end_offset == 2
        for isolation in (0, 1):
            data = scene.raw.fetch("ledger", isolation_level=isolation, max_wait_ms=0)
            assert (data.high_watermark, split(data.records or b"")[-1].last_offset) == (1, 0)
        assert scene.ends("ledger") == (1, 1)
        disk.go_on.set()
        assert answer().error_code == E.NONE
    assert scene.uncommitted("ledger") == [b"durable", b"in doubt"]


def test_scenario_42_the_last_stable_offset_waits_for_a_marker_that_is_not_yet_safe(stage: Stage) -> None:
    scene, disk = stalled(stage)
    producer = scene.producer()
    assert producer.write("ledger", b"record") is E.NONE
    assert scene.ends("ledger") == (1, 2)
    stall(disk)
    assert producer.end(True) is E.NONE
    assert disk.waiting.wait(10)
    assert scene.log("ledger").end_offset == 3
    # The marker is in the file, and might be gone after a power cut: its outcome is not yet anybody's to see.
    assert scene.ends("ledger") == (1, 2)
    assert scene.committed("ledger") == [b"durable"]
    assert scene.state() == "PrepareCommit"
    disk.go_on.set()
    until(lambda: scene.ends("ledger") == (3, 3), what="the last stable offset to move")
    assert scene.committed("ledger") == [b"durable", b"record"]


def test_scenario_42_a_reset_never_leaves_the_last_stable_offset_past_an_open_transaction(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for number in range(3):
        send(log, 7, number, b"open %d" % number)
        log.append(plain(), NOW)
    end(log, 7, commit=False)
    assert log.last_stable_offset == log.end_offset == 7
    for cut in (6, 5, 3, 2):
        log.truncate_to(cut, NOW)
        assert (log.last_stable_offset, log.high_watermark) == (0, cut)
        assert log.producers.open_transactions == {0: 7}
        assert read_all(log, 1) == []
    log.truncate_to(0, NOW)
    assert (log.last_stable_offset, log.producers.open_transactions) == (0, {})


def test_scenario_44_after_a_crash_nothing_is_served_that_could_still_be_lost(stage: Stage) -> None:
    """What was written and never fsynced is found again in the page cache: it is made safe before it is shown."""
    scene, disk = stalled(stage)
    stall(disk)
    with Raw(scene.broker) as writer, in_background(lambda: writer.produce("ledger", batch(b"in doubt"))):
        assert disk.waiting.wait(10)
        second_disk = Disk()
        later = stage.crash(scene, disk=second_disk)
        disk.go_on.set()
    assert later.uncommitted("ledger") == [b"durable", b"in doubt"]
    synced = [Path(path).name for call, path in second_disk.calls if call == "sync" and "ledger-0" in path]
    assert "00000000000000000000.log" in synced
