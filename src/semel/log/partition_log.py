"""One partition's log: what a broker appends to and reads from.

It guarantees that offsets are given once and rise, that a batch is checked before it is written and remembered only
after, that no reader gets anything past the high watermark (or, read_committed, past the last stable offset), and that
after an I/O error nothing more is accepted until a restart has checked the files.

The log itself appends. Its parts do the rest, each in a file of its own:

- `log.segments` (segments.py): the segments in order, and which of them are open
- `log.reader` (reader.py): batches by offset
- `log.times` (timestamps.py): records by time
- `log.flusher` (flusher.py): fsync, the recovery point and the snapshots
- `log.retention` (retention.py): removes old segments
- `log.cleaner` (compaction.py): plans rounds of compaction
- `log.following` (following.py): what a follower does with its leader's batches; truncation.py cuts a log back
- `log.producers` (machines/producing/producer_state.py): sequences, epochs and open transactions

Everything here is synchronous and belongs to one thread. The slow parts (fsync, compaction) are handed out as
callables that may run elsewhere.
"""

from __future__ import annotations

import logging
from random import Random
from typing import NamedTuple

from semel.config import Values
from semel.errors import ErrorCode, Refused
from semel.log import checkpoints, manifest, recovery
from semel.log.admission import Admission
from semel.log.checkpoints import LeaderEpochs
from semel.log.compaction import Cleaner
from semel.log.files import Files
from semel.log.flusher import LogFlusher
from semel.log.following import Following
from semel.log.producer_recovery import aborted
from semel.log.reader import LogReader
from semel.log.retention import Retention
from semel.log.segment import Segment
from semel.log.segments import Segments
from semel.log.snapshots import encode_snapshot
from semel.log.timestamps import TimestampSearch
from semel.log.truncation import Truncation
from semel.machines.producing.producer_state import ProducerStates
from semel.machines.producing.verifications import Guard
from semel.records.batch import Batch, place
from semel.records.layout import TRANSACTIONAL, parts_in_place
from semel.records.markers import control_batch

logger = logging.getLogger(__name__)

DEFAULT_PRODUCER_ID_EXPIRATION_MS = 86_400_000


class Appended(NamedTuple):
    """Where a batch was written. `append_time_ms` is -1 unless the topic has LogAppendTime."""

    base_offset: int
    last_offset: int
    append_time_ms: int
    log_start_offset: int
    duplicate: bool = False


class PartitionLog:
    """The log of one partition."""

    def __init__(
        self,
        directory: str,
        topic: str,
        partition: int,
        files: Files,
        config: Values,
        loaded: recovery.Loaded,
        chance: Random,
        *,
        high_watermark: int | None = None,
    ) -> None:
        """`high_watermark`: what is known of it, if the partition has other replicas; None: the end of the log."""
        self._chance = chance
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.files = files
        self.reader = LogReader(self)
        self.times = TimestampSearch(self)
        self.flusher = LogFlusher(self)
        self.retention = Retention(self)
        self.cleaner = Cleaner(self)
        self.following = Following(self)
        self.adopt(loaded)
        self.log_start_offset = loaded.segments[0].base_offset
        self.high_watermark = loaded.end_offset
        if high_watermark is not None:
            self.high_watermark = max(min(high_watermark, loaded.end_offset), self.log_start_offset)
        self.producers.replicated_to(self.high_watermark)
        self.leader_epoch = max(loaded.leader_epochs.latest, 0)
        #: Whether the checkpoint of leader epochs has the current one, durably.
        self.epoch_is_on_disk = self.leader_epoch == loaded.leader_epochs.latest
        #: Whether an epoch must be on disk before its first batch. Not for a replica that promises no fsync: after a
        #: power failure it asks its leader, and an election of a thousand partitions must not wait for their disks.
        self.epochs_need_fsync = True
        self.topic_id = checkpoints.NO_TOPIC_ID
        #: Whether the file that names the topic is known to be on disk, where it must be before the first batch: with
        #: fsync others rely on the records of a replica, and only this file says whose they are.
        self.topic_id_is_on_disk = True
        self.producer_id_expiration_ms = DEFAULT_PRODUCER_ID_EXPIRATION_MS
        #: Whether the high watermark is always the end of the log: true for a partition that has no other replica and
        #: does not wait for fsync. Otherwise somebody calls `advance_high_watermark`.
        self.high_watermark_follows_end = True
        #: Whether other brokers have replicas: then they decide how far it is committed, not this broker's disk.
        self.is_replicated = high_watermark is not None
        #: Whether a transaction's first batch must carry a guard (`transaction.partition.verification.enable`).
        self.verifies_transactions = True
        #: The I/O error that stopped writes, if there was one.
        self.failed: OSError | None = None
        #: The files as `close` left them.
        self.marks: manifest.Marks | None = None
        self.config = config

    def adopt(self, loaded: recovery.Loaded) -> None:
        """Take over what recovery found."""
        self.producers: ProducerStates = loaded.producers
        self.segments = Segments(loaded.segments)
        self.end_offset = loaded.end_offset
        self.leader_epochs: LeaderEpochs = loaded.leader_epochs
        self.repairs = loaded.repairs
        self.flusher.recovery_point = loaded.recovery_point
        self.flusher.snapshots = loaded.snapshots

    # Closing

    def close(self, now_ms: int) -> None:
        """Leave the files as a clean start wants to find them. A failed log is left to recovery."""
        self.files.drain()
        if self.failed is None:
            snapshots = self.flusher.snapshots
            try:
                self.flusher.prepare(closing=True)()
                if self.end_offset > (snapshots[-1] if snapshots else self.segments.start_offset):
                    self.flusher.write_snapshot(self.end_offset, encode_snapshot(self.producers))
                self.marks = self._marks_of_files()
            except OSError as error:
                self.fail(error)
        self.segments.close()

    def _marks_of_files(self) -> manifest.Marks:
        """The files that this log leaves on disk, for the next start to compare."""
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
        """In force from the next append on."""
        self._config = config
        self._segment_bytes: int = config["segment.bytes"]
        self._index_bytes: int = config["segment.index.bytes"]
        self._segment_ms: int = config["segment.ms"]
        if "compact" in config["cleanup.policy"]:
            # The active segment is never compacted, so a record must not stay in it for longer than that.
            self._segment_ms = min(self._segment_ms, config["max.compaction.lag.ms"])
        self._jitter_ms: int = min(config["segment.jitter.ms"], self._segment_ms)
        self._index_interval_bytes: int = config["index.interval.bytes"]
        self.admission = Admission(config)
        self._append_time = self.admission.append_time
        self._roll_after_ms = self._draw_roll_age_ms()

    # Appending

    def append(
        self,
        data: bytes | bytearray | memoryview,
        now_ms: int,
        *,
        guard: Guard | None = None,
        batch: Batch | None = None,
    ) -> Appended:
        """Append a client's batch: check, write, remember. `Refused` leaves everything as it was.

        `batch`: the checked batch, if this log's `admission` has checked `data` already, perhaps on another thread.
        """
        if self.failed is not None:
            raise self.refusal()
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
            batch = self.admission.with_topic_codec(batch)
        return self._write(batch, now_ms)

    def append_internal(
        self, data: bytes | bytearray | memoryview, now_ms: int, *, guard: Guard | None = None
    ) -> Appended:
        """Append a coordinator's own batch. It has no sequences, so only the epoch fences it.

        A host that has asked another transaction coordinator passes the guard that it took before it asked. Without a
        guard the host itself knows that the transaction is open.
        """
        if self.failed is not None:
            raise self.refusal()
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
        """End a transaction in this partition. The retry of a written marker succeeds and writes nothing."""
        if self.failed is not None:
            raise self.refusal()
        original = self.producers.check_marker(producer_id, producer_epoch, coordinator_epoch, transaction_version)
        if original is not None:
            return Appended(original, original, -1, self.log_start_offset, True)
        offset = self.end_offset
        data = control_batch(
            producer_id, producer_epoch, commit, coordinator_epoch, now_ms, offset, self.leader_epoch
        )
        completed = self.producers.completes(producer_id, offset, commit)
        try:
            segment = self.segment_for(len(data), offset, now_ms, now_ms)
            if not self.epoch_is_on_disk:
                self._settle_epoch(offset)
            segment.write(data, len(data), offset, now_ms, self._index_interval_bytes)
            # From here on the offset is used, whatever happens. The transaction ends only once an abort is in the
            # index: until then the last stable offset must not move (K-7866).
            self.end_offset = offset + 1
            if completed is not None and completed.aborted:
                segment.transaction_index.load(self.files)
                segment.transaction_index.append(self.files, aborted(completed))
        except OSError as error:
            self.fail(error)
            raise self.refusal() from error
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
            segment = self.segment_for(size, last_offset, timestamp_ms, now_ms)
            if not self.epoch_is_on_disk:
                self._settle_epoch(offset)
            position = segment.size_bytes
            if data.readonly:
                parts = parts_in_place(data, offset, self.leader_epoch)
                segment.write(parts, size, last_offset, timestamp_ms, self._index_interval_bytes)
            else:
                place(data, offset, self.leader_epoch, now_ms if self._append_time else None)
                segment.write(data, size, last_offset, timestamp_ms, self._index_interval_bytes)
        except OSError as error:
            self.fail(error)
            raise self.refusal() from error
        if batch.producer_id >= 0:
            transactional = batch.attributes & TRANSACTIONAL != 0
            self.producers.remember_data(batch, offset, timestamp_ms, heard_ms=now_ms)
            if transactional and self.producers.first_open_offset == offset:
                # Every read_committed reader will stop here until the transaction ends.
                self.segments.remember_position(offset, segment, position)
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

    def segment_for(self, size: int, last_offset: int, timestamp_ms: int, now_ms: int) -> Segment:
        """The segment that the next batch goes into."""
        active = self.segments.active
        if active.size_bytes == 0 and last_offset - active.base_offset < 2**31:
            return active
        if self.fits(active, size, last_offset, timestamp_ms, now_ms):
            return active
        return self.roll(now_ms)

    def fits(self, segment: Segment, size: int, last_offset: int, timestamp_ms: int, now_ms: int) -> bool:
        """Whether so much more may go into a segment."""
        return (
            segment.has_room_for(size, last_offset, self._segment_bytes, self._index_bytes)
            and segment.age_ms(timestamp_ms, now_ms) <= self._roll_after_ms
        )

    def _draw_roll_age_ms(self) -> int:
        """How old a segment may get: a little less than allowed, at random, so that many logs do not roll at once."""
        if not self._jitter_ms:
            return self._segment_ms
        return self._segment_ms - self._chance.randrange(self._jitter_ms)

    def roll(self, now_ms: int) -> Segment:
        """Close the active segment and begin the next one. What was written so far is made durable in the background,
        and then gets the snapshot that says so."""
        active = self.segments.active
        if active.size_bytes == 0:
            return active
        offset = self.end_offset
        active.finish()
        segment = Segment(self.files, self.directory, offset, 0, now_ms)
        segment.create_files()
        self.segments.append(segment)
        self._roll_after_ms = self._draw_roll_age_ms()
        self.flusher.snapshot_in_background(offset)
        return segment

    @property
    def size_bytes(self) -> int:
        return self.segments.size_bytes

    # How far readers may see

    @property
    def last_stable_offset(self) -> int:
        """Everything below has an outcome that can no longer change."""
        first = self.producers.first_unstable_offset
        if 0 <= first < self.high_watermark:
            return max(first, self.log_start_offset)
        return self.high_watermark

    def advance_high_watermark(self, offset: int) -> None:
        """Everything below `offset` may be read. It never moves back."""
        if offset > self.high_watermark:
            self.high_watermark = min(offset, self.end_offset)
            self.producers.replicated_to(self.high_watermark)

    # Following

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Remove everything from `offset` on. `log.following` does the same in pieces."""
        while offset < self.end_offset:
            truncation = Truncation(self, offset, now_ms)
            truncation.run()
            if truncation.apply():
                return

    # Failure

    def fail(self, error: OSError) -> None:
        """Take no more writes (K-10778). What a failed write left is cut now if the disk lets us, else by recovery."""
        if self.failed is None:
            self.failed = error
            logger.error("%s-%d takes no more writes: %s", self.topic, self.partition, error)
        try:
            if self.segments.active.is_open:
                self.segments.active.cut_unfinished()
        except OSError as second:
            logger.error("%s-%d: the unfinished write could not be cut: %s", self.topic, self.partition, second)

    def refusal(self) -> Refused:
        return Refused(
            ErrorCode.KAFKA_STORAGE_ERROR,
            f"{self.topic}-{self.partition} takes no writes since an I/O error ({self.failed}); check the disk, then "
            "restart the broker to recover",
        )

    # Leader epochs

    def begin_leader_epoch(self, epoch: int) -> None:
        """This broker leads the partition under `epoch` from now on.

        Rule R4: the epoch gets its entry at once, even if nothing is ever written under it. Otherwise a follower of a
        later leader could not be told where it ended (K-6361). If the disk does not take it, the log takes no writes.
        """
        if epoch < self.leader_epoch:
            return
        self.leader_epoch = epoch
        if self.leader_epochs.assign(epoch, self.end_offset):
            self.store_leader_epochs()

    def _settle_epoch(self, offset: int) -> None:
        """Before the first batch of an epoch: a batch of an epoch that the checkpoint does not know is damage."""
        self.settle_topic_id()
        self.leader_epochs.assign(self.leader_epoch, offset)
        self.write_leader_epochs(durable=self.epochs_need_fsync)

    def settle_topic_id(self) -> None:
        """Before the first batch: its directory says on disk to which topic it belongs."""
        if not self.topic_id_is_on_disk:
            self.files.sync_path(f"{self.directory}/{checkpoints.PARTITION_METADATA}")
            self.files.sync_directory(self.directory)
            self.topic_id_is_on_disk = True

    def store_leader_epochs(self) -> None:
        """Store the leader epochs at the beginning of a role. A batch of an epoch that is not there would be damage to
        the next start, so a disk that fails now ends the log."""
        try:
            self.write_leader_epochs(durable=False)
        except OSError as error:
            self.fail(error)

    def write_leader_epochs(self, *, durable: bool = True) -> None:
        """Store the leader epochs."""
        path = f"{self.directory}/{checkpoints.LEADER_EPOCH_CHECKPOINT}"
        data = checkpoints.encode_leader_epochs(self.leader_epochs.entries)
        # Where a power failure is no promise, a thousand elections must not wait for the disk. What it leaves is found
        # out when it is read, and then the batches tell.
        if durable or self.epochs_need_fsync or not self.files.overwrite(path, data):
            self.files.replace(path, data, durable=durable)
        is_safe = self.topic_id_is_on_disk and (durable or not self.epochs_need_fsync)
        self.epoch_is_on_disk = is_safe and self.leader_epoch == self.leader_epochs.latest

    def offset_for_leader_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of this epoch, or of the last one before it."""
        if epoch == self.leader_epoch:
            return epoch, self.end_offset
        return self.leader_epochs.end_offset_for(epoch, self.end_offset)
