"""What a reader is shown, against a model that knows every transaction's outcome."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from semel.machines.reading.read_committed import all_batches, committed_batches
from semel.records.batch import Batch, build, place, read_records, split
from semel.records.markers import control_batch


class Log:
    """A partition in memory that also remembers what a reader ought to see."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.end = 0
        self.open: dict[int, tuple[int, list[bytes]]] = {}
        self.aborted: list[tuple[int, int, int]] = []
        self.outcome: dict[bytes, bool] = {}

    def _append(self, batch: bytes) -> int:
        placed = bytearray(batch)
        place(placed, self.end, 0)
        self.data += placed
        offset, self.end = self.end, self.end + Batch.parse(placed).last_offset_delta + 1
        return offset

    def write(self, producer_id: int, values: list[bytes]) -> None:
        offset = self._append(
            build(
                [(None, value) for value in values],
                timestamp_ms=0,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=0,
                transactional=producer_id >= 0,
            )
        )
        if producer_id < 0:
            self.outcome.update(dict.fromkeys(values, True))
        else:
            _, mine = self.open.setdefault(producer_id, (offset, []))
            mine += values

    def end_transaction(self, producer_id: int, commit: bool) -> None:
        first, values = self.open.pop(producer_id)
        at = self._append(control_batch(producer_id, 0, commit, 0, 0))
        self.outcome.update(dict.fromkeys(values, commit))
        if not commit:
            self.aborted.append((producer_id, first, at))

    @property
    def last_stable_offset(self) -> int:
        return min([first for first, _ in self.open.values()], default=self.end)


def shown(batches: object) -> list[bytes | None]:
    return [record.value for batch in batches for record in read_records(batch)]  # type: ignore[attr-defined]


@given(st.data())
def test_a_read_from_anywhere_shows_exactly_what_was_committed(data: st.DataObject) -> None:
    log = Log()
    count = 0
    for _ in range(data.draw(st.integers(0, 25))):
        producer_id = data.draw(st.sampled_from([-1, 1, 2, 3]))
        if producer_id in log.open and data.draw(st.booleans()):
            log.end_transaction(producer_id, data.draw(st.booleans()))
            continue
        values = [b"%d" % (count + n) for n in range(data.draw(st.integers(1, 3)))]
        count += len(values)
        log.write(producer_id, values)
    stable = log.last_stable_offset
    batches = [batch for batch in split(log.data) if batch.base_offset < stable]
    start = data.draw(st.integers(0, len(batches)))
    read = batches[start:]
    if not read:
        return
    # The broker sends the aborted transactions whose range touches what is read, in any order.
    aborted = [(p, first) for p, first, at in log.aborted if at >= read[0].base_offset and first < stable]
    expected = [value for value in shown(all_batches(read)) if log.outcome.get(value or b"", False)]
    assert shown(committed_batches(read, data.draw(st.permutations(aborted)))) == expected


def test_markers_are_shown_to_nobody() -> None:
    log = Log()
    log.write(1, [b"a"])
    log.end_transaction(1, True)
    batches = split(log.data)
    assert len(batches) == 2
    assert shown(all_batches(batches)) == [b"a"]
    assert shown(committed_batches(batches, [])) == [b"a"]


def test_a_producer_that_aborted_once_is_believed_again_afterwards() -> None:
    log = Log()
    for value, commit in ((b"no", False), (b"yes", True), (b"never", False)):
        log.write(1, [value])
        log.end_transaction(1, commit)
    aborted = [(p, first) for p, first, _ in log.aborted]
    assert shown(committed_batches(split(log.data), aborted)) == [b"yes"]
