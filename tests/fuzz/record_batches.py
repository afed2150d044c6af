"""Record batches: the compiled loops and their Python twins see the same, whatever the bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from semel.errors import Refused
from semel.records import _pure, _select, _view
from semel.records.batch import check, read_records, retain, split
from semel.records.building import build
from semel.records.layout import HEADER_SIZE, LENGTH_AT, LENGTH_OVERHEAD, MAGIC_AT, Record, Stretch, set_checksum
from tests.fuzz.target import Draw, Target, expect

#: More than a batch of a few kilobytes can need, far less than a machine has.
LIMIT = 1 << 20

#: What of the batch is made right before it is looked at: most changed bytes would otherwise end at the CRC.
REPAIRS = 0b111
_FIELDS = [name for name in dir(_view.Batch) if not name.startswith("_") and name != "parse"]


def outcome(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What a call gives, or how it refuses."""
    try:
        return call(*arguments, **named)
    except Refused as refused:
        return refused.code, refused.why
    except ValueError as error:
        return "ValueError", str(error)


def seen(view: Any, data: Any, position: int) -> Any:
    batch = outcome(view.parse, data, position)
    return batch if isinstance(batch, tuple) else ([getattr(batch, name) for name in _FIELDS], repr(batch))


def same(what: str, ours: Any, twin: Any) -> Any:
    expect(ours == twin, f"{what}: compiled {ours!r:.300}, in Python {twin!r:.300}")
    return ours


def walked(kind: Any, batch: Any, payload: bytes, cuts: list[int], oldest: int, newest: int) -> Any:
    """What a walk notes of records that come in pieces."""
    walk = kind(batch.record_count, False, batch.last_offset_delta, True, batch.base_timestamp, oldest, newest, 3)
    left = b""
    for begin, end in zip([0, *cuts], [*cuts, len(payload)], strict=True):
        left += payload[begin:end]
        used = walk.feed(left, end == len(payload))
        expect(0 <= used <= len(left), "a walk used more than it was given")
        left = left[used:]
        if end == len(payload):
            break
    return (
        walk.walked, walk.first_offset_delta, walk.largest_timestamp, walk.wanted, walk.keyless, walk.far_off,
        walk.has_keyless, walk.has_far_off,
    )


def one(data: bytes) -> None:
    draw = Draw(data)
    flags = draw.byte()
    cuts_seed = draw.byte()
    whole = bytearray(draw.rest())
    if flags & 1 and len(whole) >= LENGTH_AT + 4:
        whole[LENGTH_AT : LENGTH_AT + 4] = max(len(whole) - LENGTH_OVERHEAD, 0).to_bytes(4, "big")
    if flags & 2 and len(whole) > MAGIC_AT:
        whole[MAGIC_AT] = 2
    if flags & 4 and len(whole) > HEADER_SIZE:
        set_checksum(whole)
    same("a batch seen through its header", seen(_select.Batch, whole, 0), seen(_view.Batch, whole, 0))
    try:
        batches = split(whole)
    except Refused:
        return
    for batch in batches[:4]:
        look(batch, stored=bool(flags & 8), cuts_seed=cuts_seed)


def look(batch: Any, *, stored: bool, cuts_seed: int) -> None:
    checked = outcome(check, batch, framing=True, stored=stored, limit=LIMIT)
    compiled = _select.RecordWalk
    _select.RecordWalk = _pure.RecordWalk  # type: ignore[assignment, misc]
    try:
        same("check", checked, outcome(check, batch, framing=True, stored=stored, limit=LIMIT))
    finally:
        _select.RecordWalk = compiled  # type: ignore[misc]
    records = outcome(lambda: list(read_records(batch, LIMIT)))
    if batch.codec == 0:
        look_at_records(batch, bytes(batch.payload), cuts_seed)
    if checked is None or isinstance(checked, int):
        expect(isinstance(records, list), f"a batch is valid, and its records cannot be read: {records!r:.200}")
        expect(len(records) == batch.record_count, "a batch has another number of records than it says")
        if stored and len(records) <= 64:
            kept = outcome(retain, batch, lambda record: bool(record.offset & 1), keep_empty=True)
            if isinstance(kept, bytes):
                wanted = [record for record in records if record.offset & 1]
                again = list(read_records(split(kept)[0], LIMIT))
                expect(again == wanted, "compaction changed a record that it keeps")


def look_at_records(batch: Any, payload: bytes, cuts_seed: int) -> None:
    count, last = batch.record_count, batch.last_offset_delta
    arguments = (payload, count, batch.base_offset, batch.base_timestamp, -1)
    for name, given in (
        ("read_records", arguments),
        ("check_framing", (payload, count, False, last, bool(cuts_seed & 1))),
        ("check_framing", (payload, count, True, last, False)),
    ):
        same(name, outcome(getattr(_select, name), *given), outcome(getattr(_pure, name), *given))
    stretches = [Stretch(*arguments)]
    low = min(batch.base_offset + cuts_seed % 3, 2**63 - 1)
    for given in ((stretches, low, 2**62, True), (stretches, -(2**63), 2**63 - 1, False)):
        same("decode_columns", outcome(_select.decode_columns, *given), outcome(_pure.decode_columns, *given))
    if 0 <= count <= len(payload):
        mask = [bool((cuts_seed >> index % 8) & 1) for index in range(count)]
        for shift in (0, cuts_seed << 20, -(2**63) + 1):
            given = (payload, count, mask, shift)
            same("retain_records", outcome(_select.retain_records, *given), outcome(_pure.retain_records, *given))
    step = 1 + cuts_seed % 61
    cuts = list(range(step, len(payload), step))[:64]
    given = (batch, payload, cuts, -(2**63) if cuts_seed & 2 else 0, 2**63 - 1 if cuts_seed & 4 else 1 << 41)
    same("RecordWalk", outcome(walked, _select.RecordWalk, *given), outcome(walked, _pure.RecordWalk, *given))


def seeds() -> list[bytes]:
    rows = [
        Record(0, 1_700_000_000_000, b"key", b"value", (("name", b"content"), ("other", None))),
        Record(0, 1_700_000_000_001, None, b"v" * 100),
        Record(0, 1_600_000_000_000, b"", None),
    ]
    found = []
    for codec in range(5):
        for flags in (REPAIRS, REPAIRS | 8, 0, 8):
            batch = build(
                rows[: 1 + codec % 3], codec=codec, timestamp_ms=0, producer_id=7, producer_epoch=0, base_sequence=0
            )
            found.append(bytes([flags, 0x35 + codec]) + batch)
    found.append(bytes([REPAIRS, 3]) + build(rows, timestamp_ms=0) + build(rows[:1], timestamp_ms=5))
    return found


TARGET = Target(
    "the compiled loops and their Python twins see the same in any bytes, and what is checked can be read",
    one,
    seeds,
    max_bytes=1024,
)
