"""Loads a partition from its files, after a clean stop or a crash.

After a clean stop nothing is scanned: the manifest it left, the tail of the last segment and the last snapshot are
enough. Without a manifest the tail of every segment is read: each must reach to the next one. After a crash every batch
from the recovery point on is checked:

- A torn tail, where nothing valid follows, is cut at the last valid batch.
- Damage, where valid batches follow or where the bytes had already been fsynced, is reported as `DamagedLog`. To skip
  it would lose acknowledged records, and only a person can decide that.
- If the machine itself went down and nothing was promised before an fsync, a segment that lacks its end is the end of
  the log, as in Kafka, even if a later segment survived. The later one is set aside: not served and not removed.
- A hole before the place where the log begins is what a power failure left of retention: what is before it is removed.
- Indexes, transaction index, leader epochs and producer state are rebuilt by replaying the batches.

Recovery may itself be killed at any point: the next one cuts and rewrites the same again.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from semel.errors import Refused
from semel.log.checkpoints import LeaderEpochs
from semel.log.damage import DamagedLog, missing_segments
from semel.log.file_names import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SEGMENT_SUFFIXES,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    file_stem,
    snapshot_path,
)
from semel.log.files import Files
from semel.log.indexes import (
    OFFSET_ENTRY_SIZE,
    TIME_ENTRY_SIZE,
    TRANSACTION_ENTRY_SIZE,
    AbortedTransaction,
    DamagedIndex,
)
from semel.log.manifest import Marks, check_segments, is_as_left, known_crc
from semel.log.partition_files import PartitionFiles
from semel.log.producer_recovery import ProducerLoader, aborted, replay
from semel.log.segment import Segment
from semel.log.tails import set_aside, valid_batch_after
from semel.machines.producing.producer_state import ProducerStates
from semel.records.batch import Batch, check


@dataclass(slots=True)
class Loaded:
    """What was loaded from the files of a partition."""

    segments: list[Segment]
    producers: ProducerStates
    end_offset: int
    #: Everything below this offset was fsynced, as far as the files can tell.
    recovery_point: int
    #: Offsets of the remaining snapshots, rising.
    snapshots: list[int]
    leader_epochs: LeaderEpochs
    leader_epochs_changed: bool = False
    #: What was repaired, in words.
    repairs: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LoadContext:
    """What the loader has to know besides the files."""

    clean: bool
    now_ms: int
    index_interval_bytes: int
    producer_id_expiration_ms: int
    #: As the checkpoint of the data directory has it. The last snapshot is another source: it is written only after
    #: everything below it was fsynced.
    recovery_point: int | None
    #: The log was compacted up to here. From here on offsets have no gaps.
    contiguous_from: int
    #: Whether the topic is compacted: then only the last segment is sure to have no gaps.
    compacted: bool
    log_start_offset: int
    #: The machine went down, and nothing was promised before its fsync: a segment may lack its end although the next
    #: one exists. Otherwise everything that was written is there, unless the disk is faulty.
    unsynced_may_be_lost: bool = False
    #: The files as the last clean stop left them, where that is known.
    expected: Marks | None = None
    #: After a crash: the files as the last clean stop left them. They may have been written since.
    before: Marks | None = None
    #: Whether other replicas have what is lost here.
    is_replicated: bool = False


def load(files: Files, directory: str, leader_epochs: LeaderEpochs, context: LoadContext) -> Loaded:
    """Load the partition. Raises `DamagedLog` rather than lose a record silently."""
    loader = _Loader(files, directory, leader_epochs, context)
    try:
        return loader.run()
    except BaseException:
        for segment in loader.segments:
            segment.close()  # nobody else will
        raise


class _Loader:
    def __init__(self, files: Files, directory: str, leader_epochs: LeaderEpochs, context: LoadContext) -> None:
        self.files = files
        self.directory = directory
        self.context = context
        self.epochs = leader_epochs
        self.epochs_changed = False
        #: There was no checkpoint of leader epochs: they are found in the batches.
        self.finds_epochs = not leader_epochs.entries
        self.repairs: list[str] = []
        self.listing = PartitionFiles(files, directory)
        self.sizes = self.listing.sizes
        self.state = ProducerLoader(self.listing, context.now_ms, context.producer_id_expiration_ms, self.repairs)
        #: There is no segment on disk yet.
        self.is_fresh = False
        self.segments: list[Segment] = []
        self.contiguous_from = context.contiguous_from

    def run(self) -> Loaded:
        loaded = self._load()
        if loaded.end_offset < self.context.log_start_offset:
            self._begin_anew(loaded, self.context.log_start_offset)
        return loaded

    def _load(self) -> Loaded:
        self.repairs += self.listing.settle_interrupted_changes()
        if self.context.expected is not None:
            check_segments(self.directory, self.sizes, self.context.expected)
            gone = [name for name in self.context.expected if name.endswith(SNAPSHOT_SUFFIX) and name not in self.sizes]
            if gone:
                self.repairs.append(
                    f"{self.directory}/{gone[-1]} is missing; producer state is rebuilt from the records"
                )
        segments = self.segments = self._segments()
        if self.context.expected is None:
            self._remove_what_came_back(segments)
        snapshots = self.listing.offsets(SNAPSHOT_SUFFIX)
        if len(segments) == 1 and segments[0].size_bytes == 0:
            # A new log, or everything was deleted: then only a snapshot has the producer state.
            self.state.load_newest_snapshot(snapshots, segments[0].base_offset)
            if any(self.sizes.get(file_stem(segments[0].base_offset) + suffix) for suffix in SEGMENT_SUFFIXES[1:]):
                # A power cut took the batches and left their indexes.
                segments[0].rewrite_indexes()
            return self._make_loaded(segments, segments[0].base_offset, snapshots)
        suspect = self._first_suspect(segments)
        if self.context.expected is None:
            suspect = self._first_that_does_not_join(segments, suspect)
        if suspect is None:
            end_offset = self._tail(segments[-1])
            if end_offset is not None and end_offset == (self.context.recovery_point or end_offset):
                if end_offset not in snapshots or not self.state.load_snapshot(end_offset):
                    start = self.state.load_newest_snapshot(snapshots, end_offset)
                    self.state.replay_segments(segments, len(segments), start)
                return self._make_loaded(segments, end_offset, snapshots)
            suspect = len(segments) - 1
        return self._recover(segments, suspect, snapshots)

    # Segments

    def _segments(self) -> list[Segment]:
        self.listing.remove_orphans()
        segments = [
            Segment(self.files, self.directory, base, self.sizes[file_stem(base) + LOG_SUFFIX], self.context.now_ms)
            for base in self.listing.offsets(LOG_SUFFIX)
        ]
        contiguous_from = self._contiguous_from([segment.base_offset for segment in segments])
        for segment in segments:
            stem = file_stem(segment.base_offset)
            segment.has_no_gaps = segment.base_offset >= contiguous_from
            if stem + TRANSACTION_INDEX_SUFFIX not in self.sizes:
                segment.transaction_index.hold([])
            else:
                # Kept for the next stop, also if nobody reads the index until then.
                segment.transaction_index.crc = known_crc(self.context.expected, stem + TRANSACTION_INDEX_SUFFIX)
            if segment.size_bytes:
                segment.offset_index.crc = known_crc(self.context.expected, stem + INDEX_SUFFIX)
                segment.time_index.crc = known_crc(self.context.expected, stem + TIME_INDEX_SUFFIX)
        if not segments:
            segments.append(Segment(self.files, self.directory, self.context.log_start_offset, 0, self.context.now_ms))
            self.is_fresh = True
        return segments

    def _remove_what_came_back(self, segments: list[Segment]) -> None:
        """Remove old segments that retention had removed and a power failure brought back, without all of those that
        followed them: what they hold was given up, and the hole behind them is not damage.

        Where the log begins is written before a segment is removed. A hole at or after that place is another matter,
        and old segments that came back without a hole are left to retention.
        """
        begins_at = self.context.log_start_offset
        if not self.finds_epochs:
            begins_at = max(begins_at, self.epochs.entries[0][1])
        contiguous_from = self._contiguous_from([segment.base_offset for segment in segments])
        count = 0
        for number, (segment, following) in enumerate(itertools.pairwise(segments)):
            if following.base_offset > begins_at:
                break
            end_offset = self._tail(segment)
            segment.rest()
            if end_offset is not None and following.base_offset > end_offset >= contiguous_from:
                count = number + 1
        if count == 0:
            return
        for segment in segments[:count]:
            segment.close()
            for suffix in SEGMENT_SUFFIXES:
                self.listing.remove(file_stem(segment.base_offset) + suffix)
        self.repairs.append(
            f"removed {count} old segments, from {segments[0].log_path} on: they were removed before (the log begins "
            f"at offset {begins_at}), came back when the machine went down, and do not reach to "
            f"{segments[count].log_path}"
        )
        del segments[:count]

    def _contiguous_from(self, bases: list[int]) -> int:
        """From here on offsets have no gaps."""
        if self.context.compacted and bases:
            return max(self.context.contiguous_from, bases[-1])
        return self.context.contiguous_from

    def _first_that_does_not_join(self, segments: list[Segment], suspect: int | None) -> int | None:
        """The first segment, before those that are read anyway, whose last batch does not reach to the next one."""
        contiguous_from = self._contiguous_from([segment.base_offset for segment in segments])
        for number in range(len(segments) - 1 if suspect is None else suspect):
            segment, following = segments[number], segments[number + 1].base_offset
            end_offset = self._tail(segment)
            segment.rest()
            if end_offset is None or end_offset > following or following > end_offset >= contiguous_from:
                return number
        return suspect

    def _first_suspect(self, segments: list[Segment]) -> int | None:
        """The number of the first segment that has to be read whole."""
        suspect = None
        if not self.context.clean:
            point = max(self.context.recovery_point or 0, max(self.state.valid_snapshots(), default=0))
            suspect = len(segments) - 1
            # If the leader epochs are only in the batches, all segments are read.
            while suspect > 0 and (segments[suspect].base_offset > point or self.finds_epochs):
                suspect -= 1
        for number, segment in enumerate(segments):
            if suspect is not None and number >= suspect:
                break
            if self._index_is_missing(segment):
                stem = file_stem(segment.base_offset)
                self.repairs.append(f"an index of segment {stem} is missing or damaged: all from there on are rebuilt")
                return number
        return suspect

    def _index_is_missing(self, segment: Segment) -> bool:
        stem = file_stem(segment.base_offset)
        index = self.sizes.get(stem + INDEX_SUFFIX)
        times = self.sizes.get(stem + TIME_INDEX_SUFFIX)
        aborts = self.sizes.get(stem + TRANSACTION_INDEX_SUFFIX, 0)
        if index is None or times is None:
            return True
        expected = self.context.expected
        if expected is not None:
            named = (stem + suffix for suffix in SEGMENT_SUFFIXES[1:])
            if any(name in expected and self.sizes.get(name) != expected[name].size_bytes for name in named):
                return True
            # The other two are checked, and if need be rebuilt, when they are first used.
            if not is_as_left(self.files, self.directory, stem + TRANSACTION_INDEX_SUFFIX, expected):
                return True
        elif self._list_went_bad(stem):
            return True
        return bool(index % OFFSET_ENTRY_SIZE or times % TIME_ENTRY_SIZE or aborts % TRANSACTION_ENTRY_SIZE)

    def _list_went_bad(self, stem: str) -> bool:
        """After a crash: whether a segment is as long as a stop left it, and its list of aborts is another."""
        before = self.context.before
        log = None if before is None else before.get(stem + LOG_SUFFIX)
        if log is None or log.size_bytes != self.sizes.get(stem + LOG_SUFFIX):
            return False
        return not is_as_left(self.files, self.directory, stem + TRANSACTION_INDEX_SUFFIX, before)

    def _tail(self, segment: Segment) -> int | None:
        """The offset after the last batch, read from the last index entry on; None if index and log do not match."""
        if segment.size_bytes == 0:
            return segment.base_offset
        try:
            return segment.load_tail()
        except (DamagedIndex, DamagedLog) as error:
            self.repairs.append(f"{error.why}; the log is read again")
            return None

    # Recovery

    def _recover(self, segments: list[Segment], suspect: int, snapshots: list[int]) -> Loaded:
        self.contiguous_from = self._contiguous_from([segment.base_offset for segment in segments])
        start = self.state.load_newest_snapshot(snapshots, segments[suspect].base_offset)
        self.state.replay_segments(segments, suspect, start)
        end_offset = segments[suspect].base_offset
        for number in range(suspect, len(segments)):
            segment = segments[number]
            end_offset, valid_bytes, what = self._check_segment(segment, end_offset, start)
            following = segments[number + 1].base_offset if number + 1 < len(segments) else end_offset
            if valid_bytes == segment.size_bytes and following > end_offset >= self.contiguous_from:
                what = f"offsets {end_offset} to {following - 1} are missing before the next segment"
            elif valid_bytes == segment.size_bytes:
                what = ""
            if what:
                self._cut(segments, number, valid_bytes, end_offset, what)
                del segments[number + 1 :]
            if number < len(segments) - 1:
                segment.finish()
            is_last = number == len(segments) - 1
            # A snapshot may tell the next start not to read this segment: then it believes the indexes.
            segment.rewrite_indexes(durable=not is_last)
            if is_last:
                break
        if self.epochs.truncate_from_end(end_offset):
            self.epochs_changed = True
        return self._make_loaded(segments, end_offset, snapshots)

    def _check_segment(self, segment: Segment, expected: int, replay_from: int) -> tuple[int, int, str]:
        """Check every batch and rebuild the indexes. Returns (next offset, valid bytes, why the rest is not valid)."""
        size = segment.size_bytes
        segment.forget_indexes()
        aborts: list[AbortedTransaction] = []
        valid_bytes, heard_ms = 0, self.state.written_ms(segment)
        what = "the bytes there are no record batch"
        expected = max(expected, segment.base_offset)
        for position, batch in segment.batches_with_positions():
            try:
                check(batch, stored=True)
            except Refused as refused:
                what = refused.why
                break
            impossible = self._impossible(segment, batch, expected)
            if impossible:
                # A torn write has no valid CRC, so this is something else.
                raise DamagedLog(segment.log_path, position, impossible)
            completed = replay(self.state.producers, batch, heard_ms) if batch.base_offset >= replay_from else None
            if completed is not None and completed.aborted:
                aborts.append(aborted(completed))
            if batch.leader_epoch >= 0 and self.epochs.assign(batch.leader_epoch, batch.base_offset):
                self.epochs_changed = True
            interval = self.context.index_interval_bytes
            segment.note(position, batch.size_bytes, batch.last_offset, batch.max_timestamp, interval)
            expected = batch.next_offset
            valid_bytes = position + batch.size_bytes
        segment.size_bytes = size
        segment.synced_bytes = segment.cold_bytes = 0
        segment.transaction_index.hold(aborts)
        return expected, valid_bytes, what

    def _impossible(self, segment: Segment, batch: Batch, expected: int) -> str:
        """What is wrong with offset or leader epoch of a batch, which its CRC does not cover; empty if nothing is."""
        if batch.base_offset < expected:
            return f"a batch claims offset {batch.base_offset} where {expected} or more must stand"
        if batch.base_offset > expected and expected >= self.contiguous_from:
            return f"a batch claims offset {batch.base_offset} where {expected} must stand"
        if not segment.can_hold(batch):
            return f"a batch claims offset {batch.base_offset}, too far from where its segment begins"
        known = self.epochs.epoch_at(batch.base_offset)
        # Batches before the first known epoch were deleted, wherever in a segment they are.
        is_known = known >= 0 and not self.finds_epochs
        if self.context.unsynced_may_be_lost and self.context.is_replicated:
            # The checkpoint may have been lost with the power while the batch was not. The leader will tell.
            is_known = is_known and batch.base_offset < (self.context.recovery_point or 0)
        if batch.leader_epoch < known or (batch.leader_epoch > known and is_known):
            return f"a batch claims leader epoch {batch.leader_epoch} where {known} wrote"
        return ""

    def _cut(self, segments: list[Segment], number: int, valid_bytes: int, end_offset: int, what: str) -> None:
        """Cut a torn tail. Raises `DamagedLog` if it is damage."""
        segment = segments[number]
        safe = self.context.recovery_point or 0
        if end_offset < safe > self.context.log_start_offset:
            raise DamagedLog(segment.log_path, valid_bytes, f"{what}, in a part of the log that was safely on disk")
        later = valid_batch_after(segment, valid_bytes, end_offset)
        lost = segment.size_bytes - valid_bytes
        repair = f"cut a torn tail of {lost} bytes after offset {end_offset - 1} from {segment.log_path}"
        others = segments[number + 1 :]
        followed = [other for other in others if valid_batch_after(other, -1, end_offset) is not None]
        if later is not None or followed:
            # A disk writes the pages of a file in any order, so the hole may also be within a segment. That looks like
            # a bit that went bad, which is told to somebody, unless other replicas have what was there.
            synced_to = max(self.state.valid_snapshots(), default=0)
            is_hole = self.context.unsynced_may_be_lost and (later is None or self.context.is_replicated)
            if not is_hole or end_offset < synced_to:
                follows = f"a valid batch follows at byte {later}"
                if later is None:
                    follows = f"valid batches follow in {followed[0].log_path}"
                raise DamagedLog(segment.log_path, valid_bytes, f"{what}, yet {follows}")
            place = set_aside(self.files, self.directory, end_offset, segment, valid_bytes, others)
            repair = (
                f"the machine went down before offset {end_offset} of {segment.log_path} was on disk, and the log ends "
                f"there now ({what}); batches behind the hole are set aside in {place}"
            )
        self.repairs.append(repair)
        for other in others:
            other.close()
            for path in other.paths():
                self.files.remove(path)
        segment.size_bytes = valid_bytes
        segment.cut_unfinished()

    def _make_loaded(self, segments: list[Segment], end_offset: int, snapshots: list[int]) -> Loaded:
        safe = self.context.recovery_point or 0
        if end_offset < safe > self.context.log_start_offset:
            if self.is_fresh:
                raise missing_segments(self.directory, safe)
            what = f"the log ends there at offset {end_offset}, yet everything below offset {safe} was safely on disk"
            raise DamagedLog(segments[-1].log_path, segments[-1].size_bytes, what)
        if self.is_fresh:
            segments[0].create_files()
        for segment in segments[:-1]:
            segment.rest()
        for offset in snapshots:
            if offset > end_offset:
                self.files.remove(snapshot_path(self.directory, offset))
        snapshots = [offset for offset in snapshots if offset <= end_offset]
        point = max(self.context.recovery_point or 0, snapshots[-1] if snapshots else 0)
        if self.context.clean:
            point = end_offset
        return Loaded(
            segments=segments,
            producers=self.state.producers,
            end_offset=end_offset,
            recovery_point=min(point, end_offset),
            snapshots=snapshots,
            leader_epochs=self.epochs,
            leader_epochs_changed=self.epochs_changed,
            repairs=self.repairs,
        )

    def _begin_anew(self, loaded: Loaded, start_offset: int) -> None:
        """Everything left was deleted by DeleteRecords, and more: no offset below the start may be assigned again."""
        for segment in reversed(loaded.segments):
            segment.close()
            for path in segment.paths():
                self.files.remove(path)
        segment = Segment(self.files, self.directory, start_offset, 0, self.context.now_ms)
        segment.create_files()
        self.repairs.append(f"the log ended at offset {loaded.end_offset}; it begins anew at its start, {start_offset}")
        loaded.segments[:] = [segment]
        loaded.end_offset = start_offset
        loaded.leader_epochs_changed |= self.epochs.truncate_from_start(start_offset)
