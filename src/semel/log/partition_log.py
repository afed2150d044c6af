"""One partition's log: what a broker appends to and reads from.

It guarantees that offsets are given once and rise, that a batch is checked before it is written and remembered only
after, that no reader is given anything past the high watermark (or, read_committed, past the last stable offset), and
that after an I/O error nothing more is accepted until a restart has looked at the files.

Everything here is synchronous and belongs to one thread. The slow parts (fsync, compaction) are handed out as
callables that may run elsewhere.
"""

from __future__ import annotations

import logging
import os
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from semel.config import Values
from semel.errors import ErrorCode, Refused
from semel.log import checkpoints, recovery
from semel.log.checkpoints import LeaderEpochs
from semel.log.files import Files
from semel.log.indexes import AbortedTransaction
from semel.log.segment import SNAPSHOT_SUFFIX, Segment, file_stem
from semel.log.snapshots import SNAPSHOTS_KEPT, encode_snapshot
from semel.log.timestamps import TimestampSearch
from semel.machines.producer_state import Guard, ProducerStates
from semel.records.batch import Batch, build, check, place, read_records
from semel.records.layout import LOG_APPEND_TIME, TRANSACTIONAL
from semel.records.markers import control_batch

logger = logging.getLogger(__name__)

READ_UNCOMMITTED = 0
READ_COMMITTED = 1

_CODECS = {"uncompressed": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
#: Descriptors of older segments that stay open for readers.
_OPEN_READERS = 4
#: Where recent reads ended: the next read of a consumer begins there.
_REMEMBERED_POSITIONS = 256
_DEFAULT_PRODUCER_ID_EXPIRATION_MS = 86_400_000


class Appended(NamedTuple):
    """Where a batch is. `append_time_ms` is -1 unless the topic takes the broker's clock."""

    base_offset: int
    last_offset: int
    append_time_ms: int
    log_start_offset: int
    duplicate: bool = False


class Read(NamedTuple):
    """Whole batches, and what a reader must know about them. `aborted` is None for read_uncommitted."""

    data: bytes
    aborted: list[tuple[int, int]] | None
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class PartitionLog(TimestampSearch):
    """The log of one partition."""

    def __init__(
        self, directory: str, topic: str, partition: int, files: Files, config: Values, loaded: recovery.Loaded
    ) -> None:
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.files = files
        self.segments = loaded.segments
        self.producers: ProducerStates = loaded.producers
        self.end_offset = loaded.end_offset
        self.high_watermark = loaded.end_offset
        self.log_start_offset = loaded.segments[0].base_offset
        self.recovery_point = loaded.recovery_point
        self.leader_epochs: LeaderEpochs = loaded.leader_epochs
        self.leader_epoch = max(loaded.leader_epochs.latest, 0)
        self.repairs = loaded.repairs
        self.topic_id = checkpoints.NO_TOPIC_ID
        self.producer_id_expiration_ms = _DEFAULT_PRODUCER_ID_EXPIRATION_MS
        #: Whether the high watermark is the end of the log: so for a partition that has no other replica and does not
        #: wait for fsync. Otherwise somebody calls `advance_high_watermark`.
        self.high_watermark_follows_end = True
        #: Whether a transaction's first batch must carry a guard (`transaction.partition.verification.enable`).
        self.verifies_transactions = True
        #: The I/O error that stopped writes, if there was one.
        self.failed: OSError | None = None
        self.snapshots = loaded.snapshots
        self._bases = [segment.base_offset for segment in self.segments]
        self._active = self.segments[-1]
        self._positions: dict[int, tuple[Segment, int]] = {}
        self._readers: list[Segment] = []
        self.doomed: list[tuple[int, list[str]]] = []
        self.config = config

    # Opening and closing

    @classmethod
    def open(
        cls,
        directory: Path | str,
        topic: str,
        partition: int,
        config: Values,
        now_ms: int,
        *,
        topic_id: UUID | None = None,
        clean: bool,
        files: Files,
        recovery_point: int | None = None,
        log_start_offset: int | None = None,
        producer_id_expiration_ms: int = _DEFAULT_PRODUCER_ID_EXPIRATION_MS,
    ) -> PartitionLog:
        """Open the log, or create it. `clean`: the data directory was closed in order, so nothing need be scanned.

        Raises `DamagedLog` when the files lost something that was once safely there.
        """
        path = os.fspath(directory)
        fresh = not files.exists(path)
        if fresh:
            files.make_directory(path)
            files.replace(f"{path}/{checkpoints.LEADER_EPOCH_CHECKPOINT}", b"0\n0\n", durable=False)
        parent = os.path.dirname(path)
        name = (topic, partition)
        if log_start_offset is None:
            starts = checkpoints.read_offsets(files, parent, checkpoints.LOG_START_OFFSETS)
            log_start_offset = 0 if fresh else starts.get(name, 0)
        contiguous_from = 0
        if not clean and not fresh:
            contiguous_from = checkpoints.read_offsets(files, parent, checkpoints.CLEANER_OFFSETS).get(name, 0)
        loaded = recovery.load(
            files,
            path,
            LeaderEpochs() if fresh else _read_leader_epochs(files, path),
            recovery.Circumstances(
                clean=clean or fresh,
                now_ms=now_ms,
                index_interval_bytes=config["index.interval.bytes"],
                producer_id_expiration_ms=producer_id_expiration_ms,
                recovery_point=recovery_point,
                contiguous_from=contiguous_from,
                log_start_offset=log_start_offset,
            ),
        )
        log = cls(path, topic, partition, files, config, loaded)
        log.producer_id_expiration_ms = producer_id_expiration_ms
        log.log_start_offset = min(max(log.log_start_offset, log_start_offset), log.end_offset)
        if loaded.leader_epochs_changed:
            log._write_leader_epochs()
        log._settle_topic_id(topic_id, fresh)
        for repair in loaded.repairs:
            logger.warning("%s-%d: %s", topic, partition, repair)
        return log

    def _settle_topic_id(self, topic_id: UUID | None, fresh: bool) -> None:
        path = f"{self.directory}/{checkpoints.PARTITION_METADATA}"
        stored = None
        if not fresh and self.files.exists(path):
            stored = checkpoints.decode_partition_metadata(self.files.read(path))
        if stored is not None and topic_id is not None and stored != topic_id:
            raise Refused(ErrorCode.INCONSISTENT_TOPIC_ID, f"{self.directory} belongs to topic id {stored}")
        self.topic_id = topic_id or stored or checkpoints.NO_TOPIC_ID
        if stored is None and topic_id is not None:
            self.files.replace(path, checkpoints.encode_partition_metadata(topic_id), durable=False)

    def close(self, now_ms: int) -> None:
        """Leave everything on disk as a clean start wants to find it. A failed log is left for recovery."""
        self.files.drain()
        if self.failed is None:
            self.flush()
            if self.end_offset > (self.snapshots[-1] if self.snapshots else self._bases[0]):
                self._write_snapshot(self.end_offset, encode_snapshot(self.producers))
        for segment in self.segments:
            segment.close()

    # Settings

    @property
    def config(self) -> Values:
        return self._config

    @config.setter
    def config(self, config: Values) -> None:
        """Holds from the next append on."""
        self._config = config
        self._segment_bytes: int = config["segment.bytes"]
        self._index_bytes: int = config["segment.index.bytes"]
        self._segment_ms: int = config["segment.ms"]
        self._index_interval_bytes: int = config["index.interval.bytes"]
        self._max_message_bytes: int = config["max.message.bytes"]
        self._after_max_ms: int = config["message.timestamp.after.max.ms"]
        self._before_max_ms: int = config["message.timestamp.before.max.ms"]
        self._append_time = config["message.timestamp.type"] == "LogAppendTime"
        self._codec: int | None = _CODECS.get(config["compression.type"])
        self._compacted = "compact" in config["cleanup.policy"]

    # Appending

    def append(
        self, data: bytes | bytearray | memoryview, now_ms: int, *, guard: Guard | None = None
    ) -> Appended:
        """A client's batch: check, write, remember. `Refused` leaves everything as it was."""
        if self.failed is not None:
            raise self._refusal()
        batch = Batch.parse(data)
        size = len(batch.data)
        if size != len(data):
            raise Refused(ErrorCode.INVALID_RECORD, "a partition is sent exactly one batch at a time")
        if size > self._max_message_bytes:
            raise Refused(
                ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {size} bytes, max.message.bytes is {self._max_message_bytes}"
            )
        if size > self._segment_bytes:
            raise Refused(ErrorCode.RECORD_LIST_TOO_LARGE, f"a batch of {size} bytes is larger than a segment")
        if batch.base_offset != 0:
            raise Refused(ErrorCode.INVALID_RECORD, f"a client's batch begins at offset 0, not {batch.base_offset}")
        check(batch, framing=not batch.attributes & 0x07, require_keys=self._compacted)
        if not self._append_time:
            self._check_timestamps(batch, now_ms)
        producer_id = batch.producer_id
        if producer_id >= 0:
            transactional = batch.attributes & TRANSACTIONAL != 0
            written = self.producers.check_data(
                producer_id, batch.producer_epoch, batch.base_sequence, batch.last_sequence, transactional
            )
            if written is not None:
                append_time_ms = written.timestamp_ms if self._append_time else -1
                return Appended(
                    written.first_offset, written.last_offset, append_time_ms, self.log_start_offset, True
                )
            if transactional and self.verifies_transactions:
                self.producers.check_verified(producer_id, batch.producer_epoch, guard)
        if self._codec is not None and self._codec != batch.codec:
            batch = _recompressed(batch, self._codec)
        return self._write(batch, now_ms)

    def append_internal(
        self, data: bytes | bytearray | memoryview, now_ms: int, *, guard: Guard | None = None
    ) -> Appended:
        """A coordinator's own batch: no sequences, so only the epoch fences it.

        A host that asked a transaction coordinator elsewhere passes the guard it took before it asked; without one it
        vouches for the transaction itself.
        """
        if self.failed is not None:
            raise self._refusal()
        batch = Batch.parse(data)
        if len(batch.data) != len(data):
            raise Refused(ErrorCode.INVALID_RECORD, "exactly one batch at a time")
        if len(data) > max(self._max_message_bytes, self._segment_bytes):
            raise Refused(ErrorCode.MESSAGE_TOO_LARGE, f"a batch of {len(data)} bytes is larger than a segment")
        if batch.producer_id >= 0:
            self.producers.check_epoch(batch.producer_id, batch.producer_epoch)
            if guard is not None and batch.is_transactional:
                self.producers.check_verified(batch.producer_id, batch.producer_epoch, guard)
        return self._write(batch, now_ms)

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        coordinator_epoch: int,
        transaction_version: int,
        now_ms: int,
    ) -> Appended:
        """End a transaction here. The retry of a marker that is already written is a success and writes nothing."""
        if self.failed is not None:
            raise self._refusal()
        original = self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch, transaction_version)
        if original is not None:
            return Appended(original, original, -1, self.log_start_offset, True)
        offset = self.end_offset
        data = control_batch(
            producer_id, producer_epoch, commit, coordinator_epoch, now_ms, offset, self.leader_epoch
        )
        completed = self.producers.completes(producer_id, offset, commit)
        try:
            segment = self._segment_for(len(data), offset, now_ms, now_ms)
            self._begin_epoch_if_new(offset)
            segment.write(data, len(data), offset, now_ms, self._index_interval_bytes)
            # From here the offset is taken, whatever happens. The transaction ends only once an abort is in the
            # index: until then the last stable offset must not move (K-7866).
            self.end_offset = offset + 1
            if completed is not None and completed.aborted:
                segment.transaction_index.load(self.files)
                segment.transaction_index.append(
                    self.files,
                    AbortedTransaction(
                        producer_id, completed.first_offset, offset, completed.last_stable_offset
                    ),
                )
        except OSError as error:
            self._fail(error)
            raise self._refusal() from error
        self.producers.remember_marker(producer_id, producer_epoch, coordinator_epoch, offset, now_ms)
        if self.high_watermark_follows_end:
            self.advance_high_watermark(self.end_offset)
        return Appended(offset, offset, -1, self.log_start_offset)

    def _write(self, batch: Batch, now_ms: int) -> Appended:
        offset = self.end_offset
        last_offset = offset + batch.last_offset_delta
        data = batch.data
        size = len(data)
        append_time_ms = -1
        timestamp_ms = batch.max_timestamp
        if self._append_time:
            append_time_ms = timestamp_ms = now_ms
            if data.readonly:
                data = memoryview(bytearray(data))
        try:
            segment = self._segment_for(size, last_offset, timestamp_ms, now_ms)
            if self.leader_epoch != self.leader_epochs.latest:
                self._begin_epoch_if_new(offset)
            position = segment.size_bytes
            if data.readonly:
                # Base offset and leader epoch are outside the CRC: written in front of the rest, nothing is copied.
                head = (
                    offset.to_bytes(8, "big") + bytes(data[8:12]) + self.leader_epoch.to_bytes(4, "big", signed=True)
                )
                segment.write([head, data[16:]], size, last_offset, timestamp_ms, self._index_interval_bytes)
            else:
                place(data, offset, self.leader_epoch, now_ms if self._append_time else None)
                segment.write(data, size, last_offset, timestamp_ms, self._index_interval_bytes)
        except OSError as error:
            self._fail(error)
            raise self._refusal() from error
        if batch.producer_id >= 0:
            transactional = batch.attributes & TRANSACTIONAL != 0
            self.producers.remember_data(
                batch.producer_id,
                batch.producer_epoch,
                batch.base_sequence,
                batch.last_sequence,
                offset,
                last_offset,
                timestamp_ms,
                transactional,
            )
            if transactional and self.producers.first_open_offset == offset:
                # read_committed will stop here again and again.
                self._remember_position(offset, segment, position)
        self.end_offset = last_offset + 1
        if self.high_watermark_follows_end:
            self.advance_high_watermark(last_offset + 1)
        return Appended(offset, last_offset, append_time_ms, self.log_start_offset)

    def _check_timestamps(self, batch: Batch, now_ms: int) -> None:
        newest = batch.max_timestamp
        if newest - now_ms > self._after_max_ms or now_ms - max(batch.base_timestamp, 0) > self._before_max_ms:
            raise Refused(
                ErrorCode.INVALID_TIMESTAMP,
                f"timestamps from {batch.base_timestamp} to {newest} are too far from the broker's clock, {now_ms}",
            )

    def start_verification(
        self,
        producer_id: int,
        producer_epoch: int,
        first_sequence: int,
        *,
        now_ms: int = 0,
        supports_epoch_bump: bool = False,
    ) -> Guard | None:
        """A guard to hold while the coordinator is asked; None when the transaction is already open here."""
        return self.producers.start_verification(
            producer_id, producer_epoch, first_sequence, now_ms, supports_epoch_bump
        )

    # Segments

    def _segment_for(self, size: int, last_offset: int, timestamp_ms: int, now_ms: int) -> Segment:
        active = self._active
        if active.size_bytes == 0 and last_offset - active.base_offset < 2**31:
            return active
        if (
            active.has_room_for(size, last_offset, self._segment_bytes, self._index_bytes)
            and active.age_ms(timestamp_ms, now_ms) <= self._segment_ms
        ):
            return active
        return self.roll(now_ms)

    def roll(self, now_ms: int) -> Segment:
        """Close the active segment and begin the next one. What was written so far becomes durable in the background,
        and only then gets the snapshot that says so."""
        if self._active.size_bytes == 0:
            return self._active
        offset = self.end_offset
        self._active.finish()
        segment = Segment(self.files, self.directory, offset, 0, now_ms)
        segment.create_files()
        self._keep_for_readers(self._active)
        self.segments.append(segment)
        self._bases.append(offset)
        self._active = segment
        state = encode_snapshot(self.producers)
        sync = self.prepare_flush()

        def make_durable() -> None:
            try:
                sync()
                self._write_snapshot(offset, state)
            except OSError as error:
                self._fail(error)

        self.files.in_background(make_durable)
        return segment

    def _write_snapshot(self, offset: int, state: bytes) -> None:
        self.files.replace(f"{self.directory}/{file_stem(offset)}{SNAPSHOT_SUFFIX}", state)
        kept = [*(known for known in self.snapshots if known != offset), offset]
        self.snapshots = kept[-SNAPSHOTS_KEPT:]
        for old in kept[:-SNAPSHOTS_KEPT]:
            self.files.remove(f"{self.directory}/{file_stem(old)}{SNAPSHOT_SUFFIX}")

    def _keep_for_readers(self, segment: Segment) -> None:
        self._readers.append(segment)
        while len(self._readers) > _OPEN_READERS:
            self._readers.pop(0).close()

    def _segment_holding(self, offset: int) -> int:
        return max(bisect_right(self._bases, offset) - 1, 0)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.segments)

    # Failure

    def _fail(self, error: OSError) -> None:
        """No more writes (K-10778). What a failed write left behind is cut now if the disk lets us, else by recovery."""
        if self.failed is None:
            self.failed = error
            logger.error("%s-%d takes no more writes: %s", self.topic, self.partition, error)
        try:
            if self._active.is_open:
                self._active.cut_unfinished()
        except OSError as second:
            logger.error("%s-%d: the unfinished write could not be cut: %s", self.topic, self.partition, second)

    def _refusal(self) -> Refused:
        return Refused(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{self.topic}-{self.partition} takes no writes since an I/O error ({self.failed}); restart to recover",
        )

    # Durability

    def prepare_flush(self) -> Callable[[], int]:
        """What to run, on any thread, to make everything written so far durable; it answers the offset reached."""
        files = self.files
        end_offset = self.end_offset
        dirty: list[tuple[Segment, int, int]] = []
        for segment in reversed(self.segments):
            if segment.synced_bytes >= segment.size_bytes:
                if segment.base_offset < self.recovery_point:
                    break
                continue
            segment.write_indexes()
            dirty.append((segment, files.duplicate(segment.descriptor), segment.size_bytes))

        def flush() -> int:
            try:
                for segment, descriptor, _ in dirty:
                    files.sync(descriptor)
                    for path in segment.paths()[1:]:
                        if files.exists(path):
                            files.sync_path(path)
                if dirty:
                    files.sync_directory(self.directory)
            finally:
                for _, descriptor, _ in dirty:
                    files.close(descriptor)
            for segment, _, size in dirty:
                segment.synced_bytes = max(segment.synced_bytes, size)
            self.recovery_point = max(self.recovery_point, end_offset)
            return end_offset

        return flush

    def flush(self) -> int:
        """Everything written so far is durable when this returns; the answer is the offset reached."""
        try:
            return self.prepare_flush()()
        except OSError as error:
            self._fail(error)
            raise self._refusal() from error

    # Watermarks

    @property
    def last_stable_offset(self) -> int:
        """Everything below has an outcome that can no longer change."""
        first = self.producers.first_unstable_offset
        return first if 0 <= first < self.high_watermark else self.high_watermark

    def advance_high_watermark(self, offset: int) -> None:
        """Everything below `offset` may be read. Never goes back."""
        if offset > self.high_watermark:
            self.high_watermark = min(offset, self.end_offset)
            self.producers.replicated_to(self.high_watermark)

    # Leader epochs

    def begin_leader_epoch(self, epoch: int) -> None:
        """This broker leads under `epoch` from here on."""
        if epoch > self.leader_epoch:
            self.leader_epoch = epoch

    def _begin_epoch_if_new(self, offset: int) -> None:
        if self.leader_epochs.assign(self.leader_epoch, offset):
            self._write_leader_epochs()

    def _write_leader_epochs(self) -> None:
        self.files.replace(
            f"{self.directory}/{checkpoints.LEADER_EPOCH_CHECKPOINT}",
            checkpoints.encode_leader_epochs(self.leader_epochs.entries),
            durable=False,
        )

    def offset_for_leader_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset): where the asked epoch, or the last one before it, ended."""
        if epoch == self.leader_epoch:
            return epoch, self.end_offset
        return self.leader_epochs.end_offset_for(epoch, self.end_offset)

    # Reading

    def read(self, offset: int, max_bytes: int, isolation: int = READ_UNCOMMITTED, *, at_least_one: bool = True) -> Read:
        """Whole batches from the one that holds `offset` on: as many as fit, never past what this reader may see."""
        last_stable_offset = self.last_stable_offset
        if offset < self.log_start_offset or offset > self.end_offset:
            raise Refused(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within {self.log_start_offset} to {self.end_offset}",
            )
        limit = last_stable_offset if isolation == READ_COMMITTED else self.high_watermark
        data, upper_bound = b"", offset
        if offset < limit:
            data, upper_bound = self._read_batches(offset, limit, max_bytes, at_least_one)
        aborted = None
        if isolation == READ_COMMITTED:
            aborted = self._aborted_within(offset, upper_bound) if data else []
        return Read(data, aborted, self.high_watermark, last_stable_offset, self.log_start_offset)

    def _read_batches(self, offset: int, limit: int, max_bytes: int, at_least_one: bool) -> tuple[bytes, int]:
        """(whole batches, the offset after them)."""
        place = self._position_of(offset)
        if place is None:
            return b"", offset
        segment, position = place
        end_position, end_offset = self._end_within(segment, limit)
        available = end_position - position
        if available <= 0:
            return b"", offset
        data = segment.read(position, min(available, max(max_bytes, 0)))
        if len(data) < available:
            whole, end_offset = segment.whole_batches(data, position)
            if whole == 0:
                if not at_least_one:
                    return b"", offset
                first = next(segment.walk(position))
                whole, end_offset = first.size_bytes, first.last_offset + 1
                data = segment.read(position, whole)
            if whole < len(data):
                data = data[:whole]
            self._remember_position(end_offset, segment, position + whole)
        elif segment is self._active:
            self._remember_position(end_offset, segment, end_position)
        return data, end_offset

    def _position_of(self, offset: int) -> tuple[Segment, int] | None:
        """Where to begin reading for `offset`; None at the end of the log."""
        known = self._positions.get(offset)
        if known is not None and (known[1] < known[0].size_bytes or known[0] is self._active):
            return known
        for segment in self.segments[self._segment_holding(offset) :]:
            if not segment.is_open and segment is not self._active:
                self._keep_for_readers(segment)
            placed = segment.locate(offset)
            if placed is not None:
                return segment, placed.position
        return None

    def _end_within(self, segment: Segment, limit: int) -> tuple[int, int]:
        """How far a read up to the offset `limit` may go in this segment: (position, offset)."""
        if segment is self._active:
            if limit >= self.end_offset:
                return segment.size_bytes, self.end_offset
        else:
            next_base = self._bases[self._segment_holding(segment.base_offset) + 1]
            if limit >= next_base:
                return segment.size_bytes, next_base
        known = self._positions.get(limit)
        if known is not None and known[0] is segment:
            return known[1], limit
        placed = segment.locate(limit)
        if placed is None:
            return segment.size_bytes, limit
        self._remember_position(limit, segment, placed.position)
        return placed.position, limit

    def _remember_position(self, offset: int, segment: Segment, position: int) -> None:
        if len(self._positions) >= _REMEMBERED_POSITIONS:
            self._positions.clear()
        self._positions[offset] = (segment, position)

    def _aborted_within(self, offset: int, upper_bound: int) -> list[tuple[int, int]]:
        """Aborted transactions with data in [offset, upper_bound), as (producer id, first offset)."""
        found: list[AbortedTransaction] = []
        for segment in self.segments[self._segment_holding(offset) :]:
            segment.transaction_index.load(self.files)
            if segment.transaction_index.collect(offset, upper_bound, found):
                break
        return [(entry.producer_id, entry.first_offset) for entry in found]


def _read_leader_epochs(files: Files, directory: str) -> LeaderEpochs:
    path = f"{directory}/{checkpoints.LEADER_EPOCH_CHECKPOINT}"
    if not files.exists(path):
        return LeaderEpochs()
    return LeaderEpochs(checkpoints.decode_leader_epochs(files.read(path)))


def _recompressed(batch: Batch, codec: int) -> Batch:
    """The same records under the codec the topic asks for."""
    return Batch.parse(
        build(
            read_records(batch),
            codec=codec,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            transactional=batch.is_transactional,
            timestamp_ms=batch.base_timestamp,
        )
    )
