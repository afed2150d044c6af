"""Producer state on disk, in Apache Kafka's snapshot format (version 1).

A snapshot `<offset>.snapshot` says what the producers of a partition had written below that offset. It carries a
CRC-32C, so a torn one is recognised and the state is rebuilt from an older one and the log (K-9892).

Kafka's format has room for one batch per producer. Here a producer with several remembered batches has one entry for
each, oldest first: Kafka reads them in order and keeps the last, which is the one it would have written itself, and a
restart here still recognises a retry of any of the five.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from crc32c import crc32c

from semel.machines.producing.producer_state import REMEMBERED_BATCHES, ProducerEntry, WrittenBatch

SNAPSHOT_VERSION = 1

_HEAD = struct.Struct(">hIi")
_CHECKED_FROM = 6
#: producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, first offset of the
#: open transaction
_ENTRY = struct.Struct(">qhiqiqiq")


class DamagedSnapshot(Exception):
    """A snapshot that is torn, or of an unknown version."""


def encode_snapshot(entries: Iterable[ProducerEntry]) -> bytes:
    body = bytearray()
    count = 0
    for entry in entries:
        if not entry.batches:
            body += _ENTRY.pack(
                entry.producer_id,
                entry.producer_epoch,
                -1,
                -1,
                0,
                entry.last_timestamp_ms,
                entry.coordinator_epoch,
                entry.current_transaction_first_offset,
            )
            count += 1
            continue
        last = entry.batches[-1]
        for batch in entry.batches:
            body += _ENTRY.pack(
                entry.producer_id,
                entry.producer_epoch,
                batch.last_sequence,
                batch.last_offset,
                batch.offset_delta,
                max(entry.last_timestamp_ms, entry.heard_ms) if batch is last else batch.timestamp_ms,
                entry.coordinator_epoch,
                entry.current_transaction_first_offset,
            )
        count += len(entry.batches)
    checked = struct.pack(">i", count) + body
    return struct.pack(">hI", SNAPSHOT_VERSION, crc32c(checked)) + checked


def decode_snapshot(data: bytes) -> list[ProducerEntry]:
    """One entry per producer id. `DamagedSnapshot` if the bytes are not exactly what was written."""
    if len(data) < _HEAD.size:
        raise DamagedSnapshot(f"{len(data)} bytes are too few for a snapshot")
    version, crc, count = _HEAD.unpack_from(data)
    if version != SNAPSHOT_VERSION:
        raise DamagedSnapshot(f"version {version} is not known")
    if crc32c(memoryview(data)[_CHECKED_FROM:]) != crc:
        raise DamagedSnapshot("its CRC-32C does not match its bytes")
    if count < 0 or _HEAD.size + count * _ENTRY.size != len(data):
        raise DamagedSnapshot(f"it claims {count} entries in {len(data)} bytes")
    entries: dict[int, ProducerEntry] = {}
    for row in _ENTRY.iter_unpack(memoryview(data)[_HEAD.size :]):
        producer_id, epoch, last_sequence, last_offset, offset_delta, timestamp, coordinator_epoch, first = row
        entry = entries.get(producer_id)
        if entry is None:
            entry = entries[producer_id] = ProducerEntry(producer_id, epoch, coordinator_epoch)
        entry.last_timestamp_ms = timestamp
        entry.current_transaction_first_offset = first
        if last_offset >= 0:
            batch = WrittenBatch(last_sequence, last_offset, offset_delta, timestamp)
            # If the first batch we have begins with sequence 0, none before it is missing.
            if not entry.batches:
                entry.contiguous_from_zero = batch.first_sequence == 0
            entry.batches.append(batch)
            del entry.batches[:-REMEMBERED_BATCHES]
    return list(entries.values())
