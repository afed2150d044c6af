"""Any history of batches and markers, against a model of a few lines; and any restart, against no restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from semel.errors import Refused
from semel.log.partition_log import PartitionLog
from semel.records.batch import read_records
from tests.log.disk import NOW, batch, crash, end, open_log, read_all, scratch, send, stored

SMALL = {"segment_bytes": 700, "index_interval_bytes": 100}

steps = st.lists(
    st.one_of(
        st.tuples(st.just("plain"), st.just(0), st.just(0), st.integers(1, 3)),
        st.tuples(st.just("idempotent"), st.integers(1, 3), st.integers(0, 5), st.integers(1, 3)),
        st.tuples(st.just("transactional"), st.integers(11, 13), st.integers(0, 5), st.integers(1, 3)),
        st.tuples(st.sampled_from(["commit", "abort"]), st.integers(11, 13), st.just(0), st.just(0)),
    ),
    max_size=40,
)
Step = tuple[str, int, int, int]
calm = settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])


class Model:
    """The specification: a list of values, who is in a transaction, and how it ended."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.next_sequence: dict[int, int] = {}
        self.open: dict[int, list[int]] = {}
        self.aborted: set[int] = set()

    def write(self, producer_id: int, values: list[bytes], transactional: bool) -> None:
        if transactional:
            self.open.setdefault(producer_id, []).extend(range(len(self.values), len(self.values) + len(values)))
        self.next_sequence[producer_id] = self.next_sequence.get(producer_id, 0) + len(values)
        self.values.extend(values)

    def mark(self, producer_id: int, commit: bool) -> None:
        written = self.open.pop(producer_id, [])
        self.aborted.update([] if commit else written)
        self.values.append(None)

    @property
    def stable(self) -> int:
        return min((written[0] for written in self.open.values()), default=len(self.values))

    def committed(self) -> list[tuple[int, bytes]]:
        visible = enumerate(self.values[: self.stable])
        return [(offset, value) for offset, value in visible if value is not None and offset not in self.aborted]


def play(log: PartitionLog, model: Model, history: list[Step]) -> None:
    """A sequence is given relative to what comes next: 0 is next, more is a gap that must be refused."""
    for number, (what, producer_id, gap, count) in enumerate(history):
        values = [b"%d.%d" % (number, i) for i in range(count)]
        if what in ("commit", "abort"):
            end(log, producer_id, commit=what == "commit")
            model.mark(producer_id, what == "commit")
            continue
        if what == "plain":
            log.append(batch(-1, 0, *values), NOW)
            model.write(-1, values, False)
            continue
        known = model.next_sequence.get(producer_id)
        sequence = 0 if known is None else known + gap
        try:
            if what == "transactional":
                send(log, producer_id, sequence, *values)
            else:
                log.append(batch(producer_id, sequence, *values), NOW)
        except Refused:
            assert gap
        else:
            assert not gap or known is None
            model.write(producer_id, values, what == "transactional")
    assert log.end_offset == len(model.values)


def agrees(log: PartitionLog, model: Model, max_bytes: int) -> None:
    assert log.end_offset == len(model.values)
    assert log.last_stable_offset == model.stable
    assert [(r.offset, r.value) for r in read_all(log, 1, max_bytes)] == model.committed()
    plain = [(offset, value) for offset, value in enumerate(model.values) if value is not None]
    assert [(r.offset, r.value) for r in read_all(log, 0, max_bytes)] == plain


@calm
@given(steps, st.integers(1, 2000))
def test_any_sequence_of_batches_by_any_producers_equals_the_model(history: list[Step], max_bytes: int) -> None:
    with scratch() as directory:
        log, model = open_log(Path(directory), **SMALL), Model()
        play(log, model, history)
        agrees(log, model, max_bytes)
        offsets = [record.offset for found in stored(log) for record in read_records(found)]
        assert offsets == list(range(log.end_offset))


@calm
@given(steps, steps, st.sampled_from(["clean", "crash", "crash, all snapshots lost", "crash, last snapshot torn"]))
def test_a_restart_changes_nothing(before: list[Step], after: list[Step], kind: str) -> None:
    """C4: snapshot + tail equals a full replay equals never having stopped. C5: indexes rebuild byte-equal."""
    with scratch() as directory:
        data = Path(directory)
        log, model = open_log(data, **SMALL), Model()
        play(log, model, before)
        facts, transactions = log.producers.facts(), log.producers.open_transactions
        if kind == "clean":
            log.close(NOW)
        else:
            log.flusher.flush(closing=True)
            crash(log)
        indexes = index_files(data)
        snapshots = sorted((data / "t-0").glob("*.snapshot"))
        if kind == "crash, all snapshots lost":
            for path in snapshots:
                path.unlink()
        if kind == "crash, last snapshot torn" and snapshots:
            snapshots[-1].write_bytes(snapshots[-1].read_bytes()[:-3])
        again = open_log(data, clean=kind == "clean", **SMALL)
        assert again.producers.facts() == facts
        assert again.producers.open_transactions == transactions
        assert index_files(data) == indexes
        agrees(again, model, 500)
        play(again, model, after)
        agrees(again, model, 500)


def index_files(data: Path) -> dict[str, bytes]:
    kinds = (".index", ".timeindex", ".txnindex")
    return {path.name: path.read_bytes() for path in (data / "t-0").iterdir() if path.suffix in kinds}


@calm
@given(steps, st.data())
def test_cutting_the_log_back_equals_never_having_written_the_rest(history: list[Step], draw: st.DataObject) -> None:
    """K-12153: producer state first, then the watermarks"""
    with scratch() as directory, scratch() as other:
        log, model = open_log(Path(directory), **SMALL), Model()
        play(log, model, history)
        ends = [0] + [found.next_offset for found in stored(log)]
        cut = draw.draw(st.sampled_from(ends))
        kept = sum(1 for end_offset in ends if 0 < end_offset <= cut)
        log.truncate_to(cut, NOW)
        fresh = open_log(Path(other), **SMALL)
        accepted = accepted_steps(history)[:kept]
        play(fresh, Model(), accepted)
        assert log.end_offset == fresh.end_offset == log.high_watermark
        assert log.last_stable_offset == fresh.last_stable_offset
        assert log.producers.facts() == fresh.producers.facts()


def accepted_steps(history: list[Step]) -> list[Step]:
    """Those that write something, with their gaps closed so that they mean the same alone."""
    known: set[int] = set()
    accepted = []
    for what, producer_id, gap, count in history:
        sequenced = what in ("idempotent", "transactional")
        if sequenced and gap and producer_id in known:
            continue
        if sequenced:
            known.add(producer_id)
        accepted.append((what, producer_id, 0, count))
    return accepted


def test_a_read_in_the_middle_of_a_batch_begins_with_that_batch(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append(batch(-1, 0, b"a", b"b", b"c"), NOW)
    assert [record.offset for record in read_all(log)] == [0, 1, 2]
    data = log.reader.read(2, 1 << 20, 0).data
    assert len(data) == log.size_bytes


@pytest.mark.parametrize("offset", [-1, 2])
def test_an_offset_outside_the_log_is_out_of_range(tmp_path: Path, offset: int) -> None:
    log = open_log(tmp_path)
    log.append(batch(), NOW)
    with pytest.raises(Refused, match="OFFSET_OUT_OF_RANGE"):
        log.reader.read(offset, 100, 0)
