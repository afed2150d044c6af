"""Inspecting the files of a log without opening it: what they hold, and what is wrong with them.

Nothing is written, and it does not matter whether a broker is running. Where a file can be compared with the log beside
it (an index with its batches, an aborted transaction with its marker), it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from semel.config.codecs import CODECS
from semel.errors import Refused
from semel.log import checkpoints
from semel.log.checkpoints import DamagedCheckpoint
from semel.log.coordinator_words import in_words
from semel.log.file_names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
)
from semel.log.files import Files
from semel.log.indexes import (
    decode_offset_entries,
    decode_time_entries,
    decode_transaction_entries,
)
from semel.log.segment import Segment
from semel.log.snapshots import DamagedSnapshot, decode_snapshot
from semel.log.tails import valid_batch_after
from semel.records.batch import Batch, check, look_into, read_records
from semel.records.markers import read_marker


@dataclass(slots=True)
class Inspection:
    """One file: what kind it is, what it holds, what is wrong with it."""

    path: str
    kind: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def inspect(path: str, *, records: bool = False) -> Inspection:
    """Read one file of any kind. `records`: a log's records too, those of coordinators in words."""
    name = os.path.basename(path)
    for suffix, kind, reader in _KINDS:
        if name.endswith(suffix) or name == suffix:
            inspection = Inspection(path, kind)
            try:
                if reader is None:
                    _inspect_log(inspection, records)
                else:
                    reader(inspection, Files().read(path))
            except Refused as damage:
                inspection.problems.append(damage.why)
            except (DamagedSnapshot, DamagedCheckpoint, UnicodeError) as error:
                inspection.problems.append(str(error))
            except OSError as error:
                inspection.problems.append(f"cannot be read: {error.strerror}")
            return inspection
    if name in _OF_THE_BROKER or os.path.basename(os.path.dirname(os.path.abspath(path))) == ".metadata":
        return Inspection(path, "a file of the broker, which checks it at its start")
    return Inspection(path, "unknown", problems=["the name is not one of a log's files"])


class _ReadOnly(Files):
    """Files that cannot be changed: an inspection must not even set the mark that makes a start rebuild an index."""

    def write_into(self, path: str | os.PathLike[str], data: bytes | bytearray | memoryview, position: int) -> None:
        return

    def replace(
        self, path: str | os.PathLike[str], data: bytes | bytearray | memoryview, *, durable: bool = True
    ) -> None:
        return


# Batches


def _segment_of(path: str) -> Segment | None:
    """The log beside a file (or the file itself), for reading only; None when there is none."""
    directory, name = os.path.split(path)
    stem = name.split(".")[0]
    log_path = os.path.join(directory, stem + LOG_SUFFIX)
    files = _ReadOnly()
    if not stem.isdigit() or not files.exists(log_path):
        return None
    segment = Segment(files, directory or ".", int(stem), files.size(log_path), 0)
    segment.adopt(files.open_to_read(log_path))
    return segment


def _inspect_log(inspection: Inspection, records: bool) -> None:
    segment = _segment_of(inspection.path)
    if segment is None:
        inspection.problems.append("a log's name is its first offset in 20 digits")
        return
    try:
        checker = _BatchChecker(inspection.problems, segment.base_offset)
        end = 0
        for position, batch in segment.batches_with_positions():
            checker.check(position, batch)
            inspection.rows.append(_batch_row(position, batch))
            if records and checker.crc_holds and checker.records_hold:
                inspection.rows.extend(_record_rows(inspection, position, batch))
            end = position + batch.size_bytes
        if end < segment.size_bytes:
            left = segment.size_bytes - end
            later = valid_batch_after(segment, end, checker.next_offset)
            if later is None:
                what = "nothing valid follows, so this is a write that was cut short; the next start cuts it off"
            else:
                what = f"yet a valid batch follows at byte {later}, so this is damage; a broker will not open the log"
            inspection.problems.append(f"the {left} bytes from byte {end} on are no batch: {what}")
    finally:
        segment.close()


class _BatchChecker:
    """Compares each batch with those before it."""

    def __init__(self, problems: list[str], base_offset: int) -> None:
        self._problems = problems
        self.next_offset = base_offset
        self.crc_holds = self.records_hold = True
        self._leader_epoch = -1
        self._producers: dict[int, tuple[int, int]] = {}

    def check(self, position: int, batch: Batch) -> None:
        where = f"the batch at byte {position} (offset {batch.base_offset})"
        self.crc_holds = self.records_hold = True
        try:
            check(batch, stored=True)
        except Refused as refused:
            self.crc_holds = False
            self._problems.append(f"{where}: {refused.why}")
        else:
            self._check_records(where, batch)
        if batch.base_offset < self.next_offset:
            self._problems.append(f"{where} is out of order: {self.next_offset} or more must stand there")
        if batch.leader_epoch < self._leader_epoch:
            self._problems.append(f"{where} has leader epoch {batch.leader_epoch} after {self._leader_epoch}")
        self.next_offset = max(self.next_offset, batch.next_offset)
        self._leader_epoch = max(self._leader_epoch, batch.leader_epoch)
        if batch.producer_id >= 0:
            self._check_producer(where, batch)

    def _check_records(self, where: str, batch: Batch) -> None:
        """Check the records, also in a compressed batch: a reader would stop at a bad one, even if the CRC is right."""
        try:
            look_into(batch, stored=True)
        except Refused as refused:
            self.records_hold = False
            self._problems.append(f"{where}: no reader gets past its records: {refused.why}")

    def _check_producer(self, where: str, batch: Batch) -> None:
        known = self._producers.get(batch.producer_id)
        if known is not None and batch.producer_epoch < known[0]:
            self._problems.append(
                f"{where}: producer {batch.producer_id} falls from epoch {known[0]} to {batch.producer_epoch}"
            )
        sequenced = batch.base_sequence >= 0
        if known is not None and sequenced and batch.producer_epoch == known[0] and known[1] >= 0:
            # Compaction leaves gaps, but a sequence that comes twice is always wrong.
            if 0 <= (known[1] - batch.base_sequence) % 2**31 < 2**30:
                self._problems.append(
                    f"{where}: producer {batch.producer_id} epoch {batch.producer_epoch} wrote sequence "
                    f"{batch.base_sequence} after {known[1]}: the same record twice"
                )
        same_epoch = known is not None and known[0] == batch.producer_epoch
        last = batch.last_sequence if sequenced else (known[1] if known is not None and same_epoch else -1)
        self._producers[batch.producer_id] = (batch.producer_epoch, last)


def _batch_row(position: int, batch: Batch) -> dict[str, Any]:
    row: dict[str, Any] = {
        "position": position,
        "offset": batch.base_offset,
        "last_offset": batch.last_offset,
        "records": batch.record_count,
        "size_bytes": batch.size_bytes,
        "codec": CODECS[batch.codec] if batch.codec < len(CODECS) else str(batch.codec),
        "timestamp": batch.max_timestamp,
        "leader_epoch": batch.leader_epoch,
        "producer_id": batch.producer_id if batch.producer_id >= 0 else None,
        "epoch": batch.producer_epoch if batch.producer_id >= 0 else None,
        "sequence": batch.base_sequence if batch.base_sequence >= 0 else None,
        "what": _what(batch),
    }
    if batch.delete_horizon_ms is not None:
        row["delete_horizon_ms"] = batch.delete_horizon_ms
    return row


def _what(batch: Batch) -> str:
    if not batch.is_control:
        return "transactional" if batch.is_transactional else "data"
    if batch.record_count == 0:
        return "marker, emptied"
    try:
        marker = read_marker(batch)
    except Refused as refused:
        return f"control ({refused.why})"
    return f"{'COMMIT' if marker.commit else 'ABORT'} by coordinator epoch {marker.coordinator_epoch}"


def _record_rows(inspection: Inspection, position: int, batch: Batch) -> Iterator[dict[str, Any]]:
    if batch.is_control:
        return
    topic = os.path.basename(os.path.dirname(os.path.abspath(inspection.path))).rpartition("-")[0]
    try:
        for record in read_records(batch):
            yield {
                "position": None,
                "offset": record.offset,
                "timestamp": record.timestamp,
                "key": _readable(record.key),
                "value": _readable(record.value),
                "headers": {name: _readable(content) for name, content in record.headers},
                "what": in_words(topic, record.key, record.value),
            }
    except Refused as refused:
        inspection.problems.append(f"the records of the batch at byte {position} cannot be read: {refused.why}")


def _readable(content: bytes | None) -> str | None:
    if content is None:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return "0x" + content.hex()
    return text if text.isprintable() else "0x" + content.hex()


# Indexes


def _batches_at(segment: Segment, position: int) -> Batch | None:
    return next(segment.batches(position), None) if 0 <= position < segment.size_bytes else None


def _inspect_offset_index(inspection: Inspection, data: bytes) -> None:
    offsets, positions = decode_offset_entries(data)
    segment = _segment_of(inspection.path)
    base_offset = _base_offset(inspection.path)
    for relative, position in zip(offsets, positions, strict=True):
        offset = base_offset + relative
        inspection.rows.append({"offset": offset, "position": position})
        if segment is None:
            continue
        found = _batches_at(segment, position)
        if found is None:
            inspection.problems.append(f"offset {offset} points to byte {position}, where no batch is")
        elif found.last_offset != offset:
            inspection.problems.append(
                f"offset {offset} points to byte {position}, where a batch ends with offset {found.last_offset}"
            )
    _finish(inspection, segment)


def _inspect_time_index(inspection: Inspection, data: bytes) -> None:
    timestamps, offsets = decode_time_entries(data)
    segment = _segment_of(inspection.path)
    base_offset = _base_offset(inspection.path)
    for timestamp, relative in zip(timestamps, offsets, strict=True):
        offset = base_offset + relative
        inspection.rows.append({"timestamp": timestamp, "offset": offset})
        if segment is None:
            continue
        placed = segment.locate(offset)
        found = _batches_at(segment, placed.position) if placed is not None else None
        if found is None or found.last_offset != offset:
            inspection.problems.append(f"offset {offset} is not the last of any batch")
        elif found.max_timestamp != timestamp:
            inspection.problems.append(
                f"the batch that ends with offset {offset} has timestamp {found.max_timestamp}, not {timestamp}"
            )
    _finish(inspection, segment)


def _inspect_transaction_index(inspection: Inspection, data: bytes) -> None:
    segment = _segment_of(inspection.path)
    for entry in decode_transaction_entries(data):
        inspection.rows.append(dict(entry._asdict()))
        placed = segment.locate(entry.last_offset) if segment is not None else None
        if segment is None:
            continue
        found = _batches_at(segment, placed.position) if placed is not None else None
        if found is None or not found.is_control or found.producer_id != entry.producer_id:
            inspection.problems.append(
                f"offset {entry.last_offset} should be the abort marker of producer {entry.producer_id} and is not"
            )
    _finish(inspection, segment)


def _finish(inspection: Inspection, segment: Segment | None) -> None:
    if segment is None:
        inspection.problems.append("there is no log beside it to hold it against")
    else:
        segment.close()


def _base_offset(path: str) -> int:
    stem = os.path.basename(path).split(".")[0]
    return int(stem) if stem.isdigit() else 0


# The rest


def _inspect_snapshot(inspection: Inspection, data: bytes) -> None:
    for entry in decode_snapshot(data):
        inspection.rows.append(
            {
                "producer_id": entry.producer_id,
                "epoch": entry.producer_epoch,
                "last_sequence": entry.last_sequence if entry.batches else None,
                "last_offset": entry.last_offset if entry.batches else None,
                "timestamp": entry.last_timestamp_ms,
                "coordinator_epoch": entry.coordinator_epoch,
                "transaction_from": entry.current_transaction_first_offset if entry.has_open_transaction else None,
                "batches": len(entry.batches),
            }
        )


def _inspect_leader_epochs(inspection: Inspection, data: bytes) -> None:
    for epoch, start in checkpoints.decode_leader_epochs(data):
        inspection.rows.append({"leader_epoch": epoch, "start_offset": start})


def _inspect_metadata(inspection: Inspection, data: bytes) -> None:
    topic_id = checkpoints.decode_partition_metadata(data)
    inspection.rows.append({"topic_id": checkpoints.topic_id_text(topic_id), "uuid": str(topic_id)})


def _inspect_offsets(inspection: Inspection, data: bytes) -> None:
    for (topic, partition), offset in checkpoints.decode_offsets(data).items():
        inspection.rows.append({"topic": topic, "partition": partition, "offset": offset})


#: What else lies in a data directory.
_OF_THE_BROKER = frozenset(
    (
        ".kafka_cleanshutdown",
        ".lock",
        ".semel_boot_id",
        ".semel_cluster",
        ".semel_life",
        ".semel_manifest",
        "meta.properties",
    )
)
#: (end of the name, kind of file, function that reads it); None: a log, which is read batch by batch.
_KINDS: list[tuple[str, str, Callable[[Inspection, bytes], None] | None]] = [
    (LOG_SUFFIX, "record batches", None),
    (TIME_INDEX_SUFFIX, "time index", _inspect_time_index),
    (TRANSACTION_INDEX_SUFFIX, "aborted transactions", _inspect_transaction_index),
    (INDEX_SUFFIX, "offset index", _inspect_offset_index),
    (SNAPSHOT_SUFFIX, "producer state", _inspect_snapshot),
    (checkpoints.LEADER_EPOCH_CHECKPOINT, "leader epochs", _inspect_leader_epochs),
    (checkpoints.PARTITION_METADATA, "partition metadata", _inspect_metadata),
    ("-offset-checkpoint", "offsets per partition", _inspect_offsets),
]
