"""Producer state snapshots: any bytes are a state that can be used and written again, or are called damaged."""

from __future__ import annotations

import struct

from crc32c import crc32c

from semel.errors import Refused
from semel.log.snapshots import DamagedSnapshot, decode_snapshot, encode_snapshot
from semel.machines.producing.producer_state import REMEMBERED_BATCHES, ProducerEntry, ProducerStates, WrittenBatch
from semel.records.batch import Batch
from semel.records.building import build
from tests.fuzz.target import Draw, Target, expect

_CHECKED_FROM = 6
_ENTRY_BYTES = 46


def one(data: bytes) -> None:
    draw = Draw(data)
    repair = draw.byte()
    sequence, epoch = draw.number(1), draw.byte() % 3
    found = bytearray(draw.rest())
    if repair & 1 and len(found) >= 10:
        if repair & 2:
            found[6:10] = ((len(found) - 10) // _ENTRY_BYTES).to_bytes(4, "big")
            del found[10 + (len(found) - 10) // _ENTRY_BYTES * _ENTRY_BYTES :]
        found[:_CHECKED_FROM] = struct.pack(">hI", 1, crc32c(bytes(found[_CHECKED_FROM:])))
    try:
        entries = decode_snapshot(bytes(found))
    except DamagedSnapshot:
        return
    expect(len(entries) <= len(found) // _ENTRY_BYTES, "more producers than entries")
    expect(all(len(entry.batches) <= REMEMBERED_BATCHES for entry in entries), "too many batches of a producer")
    again = decode_snapshot(encode_snapshot(entries))
    expect(
        all(entry.batches[:-1] == other.batches[:-1] for entry, other in zip(entries, again, strict=True)),
        "batches are lost",
    )
    third = decode_snapshot(encode_snapshot(again))
    expect([entry.facts() for entry in again] == [entry.facts() for entry in third], "a second snapshot differs")
    use(entries, sequence, epoch)


def use(entries: list[ProducerEntry], sequence: int, epoch: int) -> None:
    """A partition works with what it was given: it takes or refuses a batch, and writes its next snapshot."""
    states = ProducerStates()
    states.load(entries)
    expect(states.first_open_offset >= -1, "a transaction is open at no offset")
    states.expire(1_700_000_000_000, 1000 * sequence)
    for entry in list(states)[:3]:
        if not entry.producer_id >= 0:
            continue
        row = [(b"k", b"v")]
        batch = Batch.parse(
            build(row, producer_id=entry.producer_id, producer_epoch=epoch, base_sequence=sequence, timestamp_ms=5)
        )
        try:
            repeated = states.check_data(entry.producer_id, epoch, sequence, sequence, False)
        except Refused:
            continue
        if repeated is None:
            states.remember_data(batch, 2**40, 5, heard_ms=5)
            expect(entry.last_sequence == sequence, "a batch that was taken is not remembered")
    decode_snapshot(encode_snapshot(states))


def seeds() -> list[bytes]:
    entries = []
    for number in range(3):
        entry = ProducerEntry(number + 5, number, number - 1)
        entry.last_timestamp_ms = 1_700_000_000_000
        entry.current_transaction_first_offset = -1 if number % 2 else 12
        entry.batches = [WrittenBatch(9 + 10 * place, 19 + 10 * place, 9, 5) for place in range(number * 3)][-5:]
        entries.append(entry)
    wrapped = ProducerEntry(9, 0, 0)
    wrapped.batches = [WrittenBatch(3, 100, 9, 5)]
    whole = encode_snapshot(entries)
    return [
        b"\0\0\0" + whole,
        b"\x01\x0a\0" + whole,
        b"\x03\x14\x01" + whole,
        b"\x03\x04\x02" + encode_snapshot([wrapped]),
        b"\x03\0\0" + encode_snapshot([]),
    ]


TARGET = Target(
    "any bytes are a producer state that can be used and written again, or a damaged snapshot",
    one,
    seeds,
    max_bytes=600,
)
