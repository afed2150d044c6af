"""The judge of data directories: it lets a lawful life pass and names each thing that is not."""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from semel.log.partition_log import PartitionLog
from semel.records.batch import build, split
from semel.records.markers import control_batch
from semel.testing.invariants import InvariantsBroken, Watch, check, scan_all, violations
from semel.wire.messages.fetch import FetchResponse
from tests.broker.raw import batch
from tests.log.disk import NOW, crash, end, open_log, send, settings
from tests.log.disk import batch as client_batch
from tests.scenarios.stage import Stage


def life(log: PartitionLog, *, version: int = 2) -> None:
    """Plain, idempotent, committed, aborted and interleaved transactions over several segments."""
    epoch = {7: 0, 8: 0}
    for round_ in range(12):
        log.append(client_batch(-1, 0, b"plain"), NOW)
        log.append(client_batch(1, 2 * round_, b"a", b"b"), NOW)
        for producer_id in (7, 8):
            send(log, producer_id, 0, b"x" * 50, epoch=epoch[producer_id])
            send(log, producer_id, 1, b"y", epoch=epoch[producer_id])
        for producer_id in (8, 7):
            epoch[producer_id] += 1
            end(log, producer_id, commit=(round_ + producer_id) % 3 == 0, epoch=epoch[producer_id], version=version)


def lawful(data: Path) -> Path:
    log = open_log(data, segment_bytes=2_000, index_interval_bytes=200)
    life(log)
    log.close(NOW)
    return data


def test_a_lawful_life_is_let_pass(tmp_path: Path) -> None:
    lawful(tmp_path)
    assert violations(tmp_path, transaction_version=2, at_rest=True) == []
    (scan,) = scan_all(tmp_path)
    assert (scan.end_offset, scan.open_transactions) == (scan.last_stable_offset, {})
    assert len(scan.aborted) == 16


def test_what_a_kill_leaves_is_let_pass(tmp_path: Path) -> None:
    log = open_log(tmp_path, segment_bytes=2_000)
    life(log)
    send(log, 7, 0, b"open", epoch=12)
    crash(log)
    path = max((tmp_path / "t-0").glob("*.log"))
    with path.open("ab") as file:
        file.write(client_batch(3, 0, b"torn")[:40])
    assert violations(tmp_path, transaction_version=2, killed=True) == []
    assert [found.invariant for found in violations(tmp_path, at_rest=True)] == ["L2", "T1"]


def test_what_a_replica_copies_from_a_leader_that_has_compacted_is_let_pass(tmp_path: Path) -> None:
    """Its last segment has holes then. On a broker that is alone that is a loss."""
    log = open_log(tmp_path, cleanup_policy="compact")
    for sequence in range(4):
        log.append(client_batch(1, sequence, b"v"), NOW)
    log.close(NOW)
    path = tmp_path / "t-0" / f"{0:020}.log"
    batches = list(split(path.read_bytes()))
    path.write_bytes(b"".join(bytes(batches[kept].data) for kept in (0, 3)))
    (tmp_path / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 3\n")
    for index in (tmp_path / "t-0").glob("*index"):
        index.unlink()
    assert {each.invariant for each in violations(tmp_path)} >= {"L1", "L4"}
    (tmp_path / ".semel_cluster").write_text("id")
    assert {"L1", "L2", "L4"}.isdisjoint(each.invariant for each in violations(tmp_path))


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_what_compaction_and_retention_leave_is_let_pass(tmp_path: Path, policy: str) -> None:
    log = open_log(tmp_path, segment_bytes=1_500, cleanup_policy=policy, index_interval_bytes=100)
    life(log)
    if policy == "compact":
        log.roll(NOW)
        log.cleaner.compact(NOW, force=True)
    else:
        log.config = settings(retention_bytes=4_000, segment_bytes=1_500)
        assert log.retention.enforce(NOW) > 2
    log.close(NOW)
    assert violations(tmp_path, transaction_version=2, at_rest=True) == []


# A directory that is not as it must be, one way at a time.


def segment(data: Path) -> Path:
    return data / "t-0" / "00000000000000000000.log"


def written(data: Path, *batches: bytes) -> None:
    """A partition whose only segment holds just these batches."""
    directory = data / "t-0"
    directory.mkdir(parents=True)
    segment(data).write_bytes(b"".join(batches))


def one(
    offset: int,
    *,
    producer_id: int = 7,
    epoch: int = 0,
    sequence: int = 0,
    transactional: bool = False,
    leader_epoch: int = 0,
) -> bytes:
    return build(
        [(b"k", b"v")],
        timestamp_ms=NOW,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=transactional,
        base_offset=offset,
        leader_epoch=leader_epoch,
    )


def marker(offset: int, *, epoch: int, commit: bool = True, coordinator: int = 0) -> bytes:
    return control_batch(7, epoch, commit, coordinator, NOW, offset, 0)


def checkpoint_of_another_epoch(data: Path) -> None:
    written(data, one(0), one(1, sequence=1))
    (data / "t-0" / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n3 1\n")


def flipped(data: Path) -> None:
    raw = bytearray(one(0) + one(1, sequence=1))
    raw[65] ^= 1
    written(data, bytes(raw))


def lost_entry_of_the_transaction_index(data: Path) -> None:
    lawful(data)
    path = min((data / "t-0").glob("*.txnindex"))
    path.write_bytes(path.read_bytes()[34:])


def snapshot_of_another_life(data: Path) -> None:
    lawful(data)
    path = max((data / "t-0").glob("*.snapshot"))
    raw = bytearray(path.read_bytes())
    struct.pack_into(">h", raw, len(raw) - 38, 31_000)
    path.write_bytes(bytes(raw))


def index_that_points_elsewhere(data: Path) -> None:
    lawful(data)
    path = next(path for path in sorted((data / "t-0").glob("*.index")) if path.stat().st_size)
    raw = bytearray(path.read_bytes())
    struct.pack_into(">I", raw, 4, 1 + struct.unpack_from(">I", raw, 4)[0])
    path.write_bytes(bytes(raw))


def partitions_that_disagree(data: Path) -> None:
    written(data, one(0, transactional=True), marker(1, epoch=1))
    shutil.copytree(data / "t-0", data / "t-1")
    other = data / "t-1" / segment(data).name
    other.write_bytes(one(0, transactional=True) + marker(1, epoch=1, commit=False))
    (data / "t-1" / "00000000000000000000.txnindex").write_bytes(struct.pack(">hqqqq", 0, 7, 0, 1, 2))


BREACHES: list[tuple[str, Callable[[Path], None]]] = [
    ("L1", lambda data: written(data, one(0), one(0, sequence=1))),
    ("L1", lambda data: written(data, one(0), one(2, sequence=1))),
    ("L2", flipped),
    ("L3", lambda data: written(data, one(0), one(1))),
    ("L3", lambda data: written(data, one(0), one(1, sequence=1), one(2))),
    ("L4", lambda data: written(data, one(0), one(1, sequence=2))),
    ("L4", lambda data: written(data, one(0, epoch=1), one(1, epoch=0))),
    ("L4", lambda data: written(data, one(0), one(1, epoch=1, sequence=4))),
    ("L5", lambda data: written(data, one(0, leader_epoch=1), one(1, sequence=1, leader_epoch=0))),
    ("L5", checkpoint_of_another_epoch),
    ("T1", lambda data: written(data, one(0, transactional=True))),
    ("T1", lambda data: written(data, one(0, transactional=True), one(1, sequence=1), marker(2, epoch=1))),
    ("T1", lambda data: written(data, one(0, transactional=True), marker(1, epoch=1), marker(2, epoch=1))),
    (
        "T1",
        lambda data: written(data, one(0, transactional=True), one(1, epoch=1, transactional=True), marker(2, epoch=2)),
    ),
    ("T2", lambda data: written(data, one(0, transactional=True), marker(1, epoch=0))),
    ("T2", lambda data: written(data, one(0, transactional=True, epoch=2), marker(1, epoch=1))),
    ("T2", lambda data: written(data, marker(0, epoch=1, coordinator=5), marker(1, epoch=2, coordinator=4))),
    ("T5", lambda data: written(data, one(0, transactional=True), marker(1, epoch=1, commit=False))),
    ("T5", lost_entry_of_the_transaction_index),
    ("R2", partitions_that_disagree),
    ("C4", snapshot_of_another_life),
    ("C5", index_that_points_elsewhere),
]


@pytest.mark.parametrize(("invariant", "breach"), BREACHES, ids=[f"{n}-{name}" for n, (name, _) in enumerate(BREACHES)])
def test_each_breach_is_named(tmp_path: Path, invariant: str, breach: Callable[[Path], None]) -> None:
    breach(tmp_path)
    found = violations(tmp_path, transaction_version=2, at_rest=True)
    assert {violation.invariant for violation in found} == {invariant}, list(map(str, found))
    with pytest.raises(InvariantsBroken, match=invariant):
        check(tmp_path, transaction_version=2, at_rest=True)


def answer(lso: int, hw: int, *batches: bytes) -> FetchResponse.PartitionData:
    return FetchResponse.PartitionData(
        partition_index=0, last_stable_offset=lso, high_watermark=hw, records=b"".join(batches)
    )


@pytest.mark.parametrize(
    ("invariant", "answers"),
    [
        ("T3", [answer(3, 2)]),
        ("T4", [answer(1, 2), answer(1, 1)]),
        ("T4", [answer(2, 2), answer(1, 2)]),
        ("R1", [answer(1, 2, one(0), one(1, sequence=1))]),
        ("R4", [answer(1, 1, one(0)), answer(1, 1, one(0, sequence=5))]),
    ],
)
def test_a_watch_names_what_no_broker_may_answer(invariant: str, answers: list[FetchResponse.PartitionData]) -> None:
    watch = Watch()
    for data in answers:
        watch.saw("t", 1, data)
    assert [violation.invariant for violation in watch.violations] == [invariant]
    with pytest.raises(InvariantsBroken, match=invariant):
        watch.check()


def test_a_brokers_whole_directory_passes_while_it_runs_after_a_crash_and_at_rest(stage: Stage) -> None:
    scene = stage.start(log_segment_bytes=4_000, log_index_interval_bytes=500)
    watch = Watch()
    scene.raw.create("ledger", 2)
    scene.raw.create("latest", cleanup_policy="compact")
    producers = [scene.producer(f"application-{number}") for number in range(3)]
    for round_ in range(20):
        for number, producer in enumerate(producers):
            for partition in (0, 1):
                assert producer.write("ledger", b"%d" % round_ * 20, partition=partition) == 0
            assert producer.send_offset("readers", "ledger", round_) == 0
            if round_ % 4 != number:
                assert producer.end(round_ % 3 != 0) == 0
            elif round_ % 2:
                assert producer.init() == 0
        assert scene.raw.produce("latest", batch(b"%d" % round_, key=b"k%d" % (round_ % 3))).error_code == 0
        for isolation in (0, 1):
            for partition in (0, 1):
                data = scene.raw.fetch("ledger", isolation_level=isolation, max_wait_ms=0, partition=partition)
                watch.saw("ledger", isolation, data)
    watch.check()
    check(scene.broker.data_dir, killed=True)
    later = stage.crash(scene)
    later.on_loop(lambda: later.log("latest").cleaner.compact(later.broker.server.now_ms(), force=True))
    for producer in producers:
        producer.scene = later
        assert producer.init() == 0
    later.close()
    check(later.broker.data_dir, transaction_version=2, at_rest=True)
