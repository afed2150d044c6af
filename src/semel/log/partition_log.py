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
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from semel.config import Values
from semel.errors import ErrorCode, Refused
from semel.log import checkpoints, damage, durability, manifest, recovery, retention
from semel.log.admission import Admission
from semel.log.checkpoints import LeaderEpochs
from semel.log.compaction import Compacted, Compaction
from semel.log.files import Files
from semel.log.indexes import AbortedTransaction
from semel.log.reading import Reading
from semel.log.segment import Segment
from semel.log.snapshots import encode_snapshot
from semel.log.timestamps import TimestampSearch
from semel.machines.producing.producer_state import Guard
from semel.records.batch import Batch, place
from semel.records.layout import TRANSACTIONAL
from semel.records.markers import control_batch

logger = logging.getLogger(__name__)

_DEFAULT_PRODUCER_ID_EXPIRATION_MS = 86_400_000


class Appended(NamedTuple):
    """Where a batch is. `append_time_ms` is -1 unless the topic takes the broker's clock."""

    base_offset: int
    last_offset: int
    append_time_ms: int
    log_start_offset: int
    duplicate: bool = False


class PartitionLog(Reading, TimestampSearch):
    """The log of one partition."""

    def __init__(
        self, directory: str, topic: str, partition: int, files: Files, config: Values, loaded: recovery.Loaded
    ) -> None:
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.files = files
        self.adopt(loaded)
        self.high_watermark = loaded.end_offset
        self.producers.replicated_to(self.high_watermark)
        self.log_start_offset = loaded.segments[0].base_offset
        self.leader_epoch = max(loaded.leader_epochs.latest, 0)
        self.topic_id = checkpoints.NO_TOPIC_ID
        self.producer_id_expiration_ms = _DEFAULT_PRODUCER_ID_EXPIRATION_MS
        #: Whether the high watermark is the end of the log: so for a partition that has no other replica and does not
        #: wait for fsync. Otherwise somebody calls `advance_high_watermark`.
        self.high_watermark_follows_end = True
        #: Whether a transaction's first batch must carry a guard (`transaction.partition.verification.enable`).
        self.verifies_transactions = True
        #: The I/O error that stopped writes, if there was one.
        self.failed: OSError | None = None
        #: The directory is new and its parent was not synced since: a power cut could take all of it.
        self.is_created = False
        #: The files as `close` left them.
        self.marks: manifest.Marks | None = None
        self._told = set()
        #: Files of segments that left the log, and when to remove them.
        self.doomed: list[tuple[int, list[str]]] = []
        self.config = config

    def adopt(self, loaded: recovery.Loaded) -> None:
        """Stand on what recovery found."""
        self.producers = loaded.producers
        self.segments = loaded.segments
        self.end_offset = loaded.end_offset
        self.recovery_point = loaded.recovery_point
        self.leader_epochs: LeaderEpochs = loaded.leader_epochs
        self.snapshots = loaded.snapshots
        self.repairs = loaded.repairs
        self._segments_changed()
        self._readers = []

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
        unsynced_may_be_lost: bool = False,
        expected: manifest.Marks | None = None,
    ) -> PartitionLog:
        """Open the log, or create it. `clean`: the data directory was closed in order, so nothing need be scanned.
        `unsynced_may_be_lost`: the machine went down, and nobody was promised what had not been fsynced.
        `expected`: the files as the last clean stop left them.

        Raises `DamagedLog` when the files lost something that was once safely there.
        """
        path = os.fspath(directory)
        fresh = not files.exists(path)
        if fresh and expected is not None:
            raise damage.missing_partition(path)
        if fresh and recovery_point:
            raise damage.missing_partition(path, recovery_point)
        if fresh:
            files.make_directory(path)
            first = checkpoints.encode_leader_epochs([(0, 0)])
            files.write_into(f"{path}/{checkpoints.LEADER_EPOCH_CHECKPOINT}", first, 0)
        elif expected is None:
            expected = manifest.kept_expected(files, path)
        parent = os.path.dirname(path)
        name = (topic, partition)
        if fresh:
            # A topic of the same name may have lived and died here.
            for checkpoint in checkpoints.OF_PARTITIONS:
                checkpoints.forget_offset(files, parent, checkpoint, name)
        if log_start_offset is None:
            log_start_offset = checkpoints.read_offsets(files, parent, checkpoints.LOG_START_OFFSETS).get(name, 0)
        epochs = LeaderEpochs([(0, 0)]) if fresh else checkpoints.read_leader_epochs(files, path)
        if not manifest.is_as_left(files, path, checkpoints.LEADER_EPOCH_CHECKPOINT, expected) and epochs is not None:
            logger.warning("%s/%s is damaged; it is rebuilt from the log", path, checkpoints.LEADER_EPOCH_CHECKPOINT)
            epochs = None
        if epochs is None:
            # Only the batches know which epochs there were: all of them are looked at.
            epochs, clean, recovery_point = LeaderEpochs(), False, 0
        contiguous_from = 0
        if fresh:
            recovery_point = None
        else:
            contiguous_from = checkpoints.read_offsets(files, parent, checkpoints.CLEANER_OFFSETS).get(name, 0)
        given = recovery.Circumstances(
            clean=clean or fresh,
            now_ms=now_ms,
            index_interval_bytes=config["index.interval.bytes"],
            producer_id_expiration_ms=producer_id_expiration_ms,
            recovery_point=recovery_point,
            contiguous_from=contiguous_from,
            compacted="compact" in config["cleanup.policy"],
            log_start_offset=log_start_offset,
            unsynced_may_be_lost=unsynced_may_be_lost,
            expected=expected,
        )
        try:
            loaded = recovery.load(files, path, epochs, given)
        except damage.DamagedLog:
            if expected is not None:
                manifest.keep_expected(files, path, expected)
            raise
        if expected is not None:
            manifest.forget_expected(files, path)
        log = cls(path, topic, partition, files, config, loaded)
        log.producer_id_expiration_ms = producer_id_expiration_ms
        log.is_created = fresh
        log.log_start_offset = max(log.log_start_offset, log_start_offset)
        if loaded.leader_epochs_changed:
            log.write_leader_epochs()
        log._settle_topic_id(topic_id, fresh, expected)
        for repair in loaded.repairs:
            logger.warning("%s-%d: %s", topic, partition, repair)
        return log

    def _settle_topic_id(self, topic_id: UUID | None, fresh: bool, expected: manifest.Marks | None) -> None:
        path = f"{self.directory}/{checkpoints.PARTITION_METADATA}"
        stored = None
        if not fresh:
            try:
                stored = checkpoints.decode_partition_metadata(self.files.read(path))
                if not manifest.is_as_left(self.files, self.directory, checkpoints.PARTITION_METADATA, expected):
                    stored = None
                    raise checkpoints.DamagedCheckpoint("it is not what was written at the last stop")
            except (FileNotFoundError, checkpoints.DamagedCheckpoint) as error:
                logger.warning("%s is written anew: %s", path, error)
        if stored is not None and topic_id is not None and stored != topic_id:
            for segment in self.segments:
                segment.close()
            raise damage.ForeignPartition(path, stored, topic_id)
        self.topic_id = topic_id or stored or checkpoints.NO_TOPIC_ID
        if stored is None and topic_id is not None:
            data = checkpoints.encode_partition_metadata(topic_id)
            if fresh:
                self.files.write_into(path, data, 0)
            else:
                self.files.replace(path, data)

    def close(self, now_ms: int) -> None:
        """Leave everything on disk as a clean start wants to find it. A failed log is left for recovery."""
        self.files.drain()
        if self.failed is None:
            try:
                durability.prepare_flush(self, closing=True)()
                if self.end_offset > (self.snapshots[-1] if self.snapshots else self._bases[0]):
                    durability.write_snapshot(self, self.end_offset, encode_snapshot(self.producers))
                self.marks = self._marks()
            except OSError as error:
                self.fail(error)
        for segment in self.segments:
            segment.close()

    def _marks(self) -> manifest.Marks:
        """What this log leaves on disk, for the next start to compare."""
        known = {}
        for segment in self.segments:
            for index in (segment.offset_index, segment.time_index, segment.transaction_index):
                if index.crc is not None:
                    known[index.path.rsplit("/", 1)[1]] = index.crc
        read = (checkpoints.LEADER_EPOCH_CHECKPOINT, checkpoints.PARTITION_METADATA)
        return manifest.marks_of(self.files, self.directory, known, read)

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
        if "compact" in config["cleanup.policy"]:
            # What is in the active segment cannot be compacted, so it must not stay there for longer.
            self._segment_ms = min(self._segment_ms, config["max.compaction.lag.ms"])
        self._jitter_ms: int = min(config["segment.jitter.ms"], self._segment_ms)
        self._index_interval_bytes: int = config["index.interval.bytes"]
        self.admission = Admission(config)
        self._append_time = self.admission.append_time
        self._roll_after_ms = self._drawn_age_ms()

    # Appending

    def append(
        self,
        data: bytes | bytearray | memoryview,
        now_ms: int,
        *,
        guard: Guard | None = None,
        batch: Batch | None = None,
    ) -> Appended:
        """A client's batch: check, write, remember. `Refused` leaves everything as it was.

        `batch`: what this log's `admission` made of `data` already, perhaps elsewhere.
        """
        if self.failed is not None:
            raise self._refusal()
        if batch is None:
            batch = self.admission.check(data, now_ms)
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
        if self.admission.codec is not None:
            batch = self.admission.compressed_anew(batch)
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
        batch = self.admission.check_internal(data)
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
            self.fail(error)
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
            self.fail(error)
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
                now_ms,
            )
            if transactional and self.producers.first_open_offset == offset:
                # read_committed will stop here again and again.
                self._remember_position(offset, segment, position)
        self.end_offset = last_offset + 1
        if self.high_watermark_follows_end:
            self.advance_high_watermark(last_offset + 1)
        return Appended(offset, last_offset, append_time_ms, self.log_start_offset)

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
            and active.age_ms(timestamp_ms, now_ms) <= self._roll_after_ms
        ):
            return active
        return self.roll(now_ms)

    def _drawn_age_ms(self) -> int:
        """How old a segment may get: each a little less than allowed, so that many logs do not roll at once."""
        if not self._jitter_ms:
            return self._segment_ms
        from random import randrange

        return self._segment_ms - randrange(self._jitter_ms)

    def roll(self, now_ms: int) -> Segment:
        """Close the active segment and begin the next one. What was written so far becomes durable in the background,
        and only then gets the snapshot that says so."""
        if self._active.size_bytes == 0:
            return self._active
        offset = self.end_offset
        self._active.finish()
        segment = Segment(self.files, self.directory, offset, 0, now_ms)
        segment.create_files()
        finished, self._active = self._active, segment
        self.segments.append(segment)
        self._bases.append(offset)
        self._older_bytes += finished.size_bytes
        self.uses(finished)
        self._roll_after_ms = self._drawn_age_ms()
        self.files.in_background(durability.snapshot_job(self, offset))
        return segment

    @property
    def size_bytes(self) -> int:
        return self._older_bytes + self._active.size_bytes

    # Deleting

    def delete_records_before(self, offset: int) -> int:
        """DeleteRecords: nothing below `offset` (-1: the high watermark) is served any more. The new log start."""
        deletion = retention.Deletion(self, offset)
        retention.write_down([deletion])
        return deletion.apply()

    def retain(self, now_ms: int) -> int:
        """Let go of what retention no longer wants: segments and idle producers. How many segments went."""
        if self.failed is not None:
            return 0
        self.producers.expire(now_ms, self.producer_id_expiration_ms)
        try:
            return retention.retain(self, now_ms)
        except OSError as error:
            self.fail(error)
            raise self._refusal() from error

    def compact(self, now_ms: int, *, force: bool = False) -> Compacted | None:
        """Plan, run and apply a compaction on this thread; None when there is nothing to do."""
        compaction = Compaction.plan(self, now_ms, force=force)
        if compaction is None:
            return None
        try:
            compaction.run()
            return compaction.apply()
        except Refused:
            compaction.abandon()
            raise
        except OSError as error:
            compaction.abandon()
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"compaction did not finish: {error}") from error

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Forget everything from `offset` on. Producer state goes first: no watermark may rest on what is gone."""
        try:
            retention.truncate_to(self, offset, now_ms)
        except OSError as error:
            self.fail(error)
            raise self._refusal() from error

    def replace_segments(self, first: int, count: int, successors: list[Segment]) -> list[Segment]:
        """Put `successors` where `count` segments from number `first` on were; the answer is what was there."""
        gone = self.segments[first : first + count]
        self.segments[first : first + count] = successors
        self._segments_changed()
        self._readers = [segment for segment in self._readers if segment not in gone]
        for segment in gone:
            segment.close()
        return gone

    def _segments_changed(self) -> None:
        self._bases = [segment.base_offset for segment in self.segments]
        self._active = self.segments[-1]
        #: All but the active one do not change: every waiting fetch asks for the sum, again and again.
        self._older_bytes = sum(segment.size_bytes for segment in self.segments[:-1])
        self._positions = {}

    # Failure

    def fail(self, error: OSError) -> None:
        """No more writes (K-10778). What a failed write left is cut now if the disk lets us, else by recovery."""
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
        return durability.prepare_flush(self)

    def flush(self, *, closing: bool = False) -> int:
        """Everything written so far is durable when this returns; the answer is the offset reached."""
        try:
            return durability.prepare_flush(self, closing=closing)()
        except OSError as error:
            self.fail(error)
            raise self._refusal() from error

    # Leader epochs

    def begin_leader_epoch(self, epoch: int) -> None:
        """This broker leads under `epoch` from here on."""
        if epoch > self.leader_epoch:
            self.leader_epoch = epoch

    def _begin_epoch_if_new(self, offset: int) -> None:
        if self.leader_epochs.assign(self.leader_epoch, offset):
            self.write_leader_epochs()

    def write_leader_epochs(self) -> None:
        """Durable before the first batch of a new epoch is written: a batch of an unknown epoch is damage."""
        self.files.replace(
            f"{self.directory}/{checkpoints.LEADER_EPOCH_CHECKPOINT}",
            checkpoints.encode_leader_epochs(self.leader_epochs.entries),
        )

    def offset_for_leader_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset): where the asked epoch, or the last one before it, ended."""
        if epoch == self.leader_epoch:
            return epoch, self.end_offset
        return self.leader_epochs.end_offset_for(epoch, self.end_offset)
