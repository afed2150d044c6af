"""Producer state at a start: the newest snapshot that can be used, and a replay of the batches after it."""

from __future__ import annotations

from collections.abc import Iterator

from semel.errors import Refused
from semel.log.damage import DamagedLog
from semel.log.file_names import SNAPSHOT_SUFFIX, file_stem, snapshot_path
from semel.log.indexes import AbortedTransaction
from semel.log.partition_files import PartitionFiles
from semel.log.segment import Segment
from semel.log.snapshots import DamagedSnapshot, decode_snapshot
from semel.machines.producing.producer_state import CompletedTransaction, ProducerStates
from semel.records.batch import Batch, check
from semel.records.markers import read_marker


def replay(producers: ProducerStates, batch: Batch, heard_ms: int) -> CompletedTransaction | None:
    """Remember one stored batch: what appending it did, without asking whether it may be appended.

    `heard_ms`: when its producer was last heard of, as far as the files can tell. Its records may be much older.
    """
    if batch.producer_id < 0:
        return None
    if not batch.is_control:
        producers.remember_data(batch, batch.base_offset, batch.max_timestamp, heard_ms=heard_ms)
        return None
    if batch.record_count == 0:
        # Compaction has removed the whole transaction and its marker.
        return None
    marker = read_marker(batch)
    completed = producers.completes(batch.producer_id, batch.base_offset, marker.commit)
    producers.remember_marker(
        batch.producer_id, batch.producer_epoch, marker.coordinator_epoch, batch.base_offset, batch.max_timestamp
    )
    return completed


def aborted(completed: CompletedTransaction) -> AbortedTransaction:
    """The entry of an aborted transaction in the index of the segment that holds its marker."""
    return AbortedTransaction(
        completed.producer_id, completed.first_offset, completed.last_offset, completed.last_stable_offset
    )


class ProducerLoader:
    """Builds the producer state of one partition from its snapshots and its batches."""

    def __init__(
        self, listing: PartitionFiles, now_ms: int, producer_id_expiration_ms: int, repairs: list[str]
    ) -> None:
        self._listing = listing
        self._files = listing.files
        self._directory = listing.directory
        self._now_ms = now_ms
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self._repairs = repairs
        self.producers = ProducerStates()

    def valid_snapshots(self) -> Iterator[int]:
        """The offsets, rising, of the snapshots that can be read."""
        for offset in self._listing.offsets(SNAPSHOT_SUFFIX):
            try:
                decode_snapshot(self._files.read(snapshot_path(self._directory, offset)))
            except (DamagedSnapshot, FileNotFoundError):
                continue  # one that cannot be used may have been removed since the files were listed
            yield offset

    def load_snapshot(self, offset: int) -> bool:
        """Begin with the snapshot of this offset. False if it cannot be used."""
        try:
            entries = decode_snapshot(self._files.read(snapshot_path(self._directory, offset)))
        except (DamagedSnapshot, FileNotFoundError) as error:
            self._repairs.append(f"snapshot {file_stem(offset)} is not used: {error}")
            return False
        self.producers.load(entries)
        self.producers.expire(self._now_ms, self._producer_id_expiration_ms)
        return True

    def load_newest_snapshot(self, snapshots: list[int], at_most: int) -> int:
        """Begin with the newest usable snapshot that is not past `at_most`; unusable ones are removed, from the list as
        well. Returns the offset from which to replay."""
        for offset in reversed([offset for offset in snapshots if offset <= at_most]):
            if self.load_snapshot(offset):
                return offset
            snapshots.remove(offset)
            self._files.remove(snapshot_path(self._directory, offset))
        self.producers.load([])
        return 0

    def replay_segments(self, segments: list[Segment], count: int, start: int) -> None:
        """Replay the batches from offset `start` on, out of the first `count` segments. `DamagedLog` if they are not
        whole."""
        for number, segment in enumerate(segments[:count]):
            if number + 1 < len(segments) and segments[number + 1].base_offset <= start:
                continue
            end, expected, heard_ms = 0, segment.base_offset, self.written_ms(segment)
            for position, batch in segment.batches_with_positions():
                try:
                    check(batch, stored=True)
                except Refused as refused:
                    raise DamagedLog(segment.log_path, position, refused.why) from None
                # A retry would be answered with the offset that the batch claims.
                segment.check_place(batch, expected, position)
                if batch.base_offset >= start:
                    replay(self.producers, batch, heard_ms)
                end, expected = position + batch.size_bytes, batch.next_offset
            if end < segment.size_bytes:
                raise DamagedLog(segment.log_path, end, "the bytes there are no record batch")

    def written_ms(self, segment: Segment) -> int:
        """When the last batch of a segment was written, by the clock of the file system."""
        return min(self._now_ms, self._files.modified_ms(segment.log_path)) if segment.size_bytes else -1
