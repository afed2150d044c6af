"""Opening the log of a partition, or creating it.

It guarantees that a new partition inherits nothing from a deleted one of the same name, that files which lost something
are reported (`DamagedLog`) and not opened, and that such a partition is found just as damaged by the next start.
"""

from __future__ import annotations

import logging
import os
from dataclasses import replace
from pathlib import Path
from random import Random
from uuid import UUID

from crc32c import crc32c

from semel.config import Values
from semel.environment import MACHINE
from semel.log import checkpoints, damage, manifest, recovery
from semel.log.checkpoints import LeaderEpochs
from semel.log.file_names import INDEX_SUFFIX, LOG_SUFFIX
from semel.log.files import Files
from semel.log.partition_log import DEFAULT_PRODUCER_ID_EXPIRATION_MS, PartitionLog

logger = logging.getLogger(__name__)


def open_partition_log(
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
    producer_id_expiration_ms: int = DEFAULT_PRODUCER_ID_EXPIRATION_MS,
    unsynced_may_be_lost: bool = False,
    expected: manifest.Marks | None = None,
    before: manifest.Marks | None = None,
    is_replicated: bool = False,
    committed_is_there: bool = False,
    same_boot: bool = False,
    chance: Random = MACHINE.chance,
) -> PartitionLog:
    """Open the log, or create it. Raises `DamagedLog` when the files lost something that was once safely there.

    `clean`: the data directory was closed in order, so nothing has to be scanned.
    `unsynced_may_be_lost`: the machine went down, and nothing was promised before its fsync.
    `expected`: the files as the last clean stop left them. `before`: the same, of a stop before the last start.
    `is_replicated`: there are other replicas, so the high watermark is where the checkpoint has it, not at the end. And
    the topics are not this broker's: one may have been deleted and created again while it was away, so a log with
    records that does not say whose they are is damaged.
    `committed_is_there`: of a replica, everything below the high watermark that was written down: the machine did not
    go down since.
    `same_boot`: the machine surely has not gone down since the last start. Then a directory with a recovery point, also
    with 0, is there unless somebody removed it.
    """
    path = os.fspath(directory)
    fresh = not files.exists(path)
    if fresh and expected is not None:
        raise damage.missing_partition(path)
    if fresh and recovery_point is not None and (recovery_point or same_boot):
        raise damage.missing_partition(path, recovery_point)
    parent = os.path.dirname(path)
    name = (topic, partition)
    high_watermark = None
    if is_replicated:
        high_watermark = checkpoints.read_offsets(files, parent, checkpoints.HIGH_WATERMARKS).get(name, 0)
    committed = high_watermark if committed_is_there and high_watermark is not None else 0
    if fresh and committed:
        raise damage.missing_partition(path, committed, "was committed")
    if fresh:
        files.make_directory(path)
        first = checkpoints.encode_leader_epochs([(0, 0)])
        files.write_into(f"{path}/{checkpoints.LEADER_EPOCH_CHECKPOINT}", first, 0)
    else:
        if committed_is_there:
            _refuse_without_log(files, path)
        expected = manifest.read_expected(files, path) if expected is None else expected
    if fresh:
        # A topic of the same name may have lived and died here.
        for checkpoint in checkpoints.OF_PARTITIONS:
            checkpoints.forget_offset(files, parent, checkpoint, name)
    if log_start_offset is None:
        log_start_offset = checkpoints.read_offsets(files, parent, checkpoints.LOG_START_OFFSETS).get(name, 0)
    epochs = LeaderEpochs([(0, 0)]) if fresh else checkpoints.read_leader_epochs(files, path)
    if epochs is not None and not manifest.is_as_left(files, path, checkpoints.LEADER_EPOCH_CHECKPOINT, expected):
        logger.warning("%s/%s is damaged; it is rebuilt from the log", path, checkpoints.LEADER_EPOCH_CHECKPOINT)
        epochs = None
    is_rebuilt = epochs is None
    if epochs is None:
        # Only the batches know which epochs there were: all of them are read. What was safely on disk still has to be
        # there.
        epochs, clean = LeaderEpochs(), False
    contiguous_from = 0
    if fresh:
        recovery_point = None
    else:
        contiguous_from = checkpoints.read_offsets(files, parent, checkpoints.CLEANER_OFFSETS).get(name, 0)
    context = recovery.LoadContext(
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
        before=before,
        is_replicated=is_replicated,
    )
    try:
        loaded = recovery.load(files, path, epochs, context)
    except damage.DamagedLog:
        found = _load_with_the_epochs_of_before(files, path, context)
        if found is None:
            if expected is not None:
                manifest.write_expected(files, path, expected)
            raise
        loaded, is_rebuilt = found, True
    if loaded.end_offset < committed:
        for segment in loaded.segments:
            segment.close()
        raise damage.short_log(path, loaded.end_offset, committed)
    if expected is not None:
        manifest.remove_expected(files, path)
    log = PartitionLog(path, topic, partition, files, config, loaded, chance, high_watermark=high_watermark)
    log.producer_id_expiration_ms = producer_id_expiration_ms
    log.flusher.is_created = fresh
    log.log_start_offset = max(log.log_start_offset, log_start_offset)
    log.high_watermark = max(log.high_watermark, log.log_start_offset)
    log.high_watermark_follows_end = not is_replicated
    if loaded.leader_epochs_changed or (is_rebuilt and not _has_epochs(files, path, log.leader_epochs)):
        log.write_leader_epochs()  # also without a batch: a torn file would keep Apache Kafka from starting
    try:
        stored = None if fresh else _stored_topic_id(files, path, expected)
        if stored is None and topic_id is not None:
            may_be_foreign = is_replicated and not fresh and log.end_offset > 0
            if may_be_foreign and not is_named_by_manifest(topic_id, expected):
                raise damage.NamelessPartition(path, topic_id)
            _write_topic_id(files, path, topic_id, in_place=fresh)
        elif stored is not None and topic_id is not None and stored != topic_id:
            raise damage.ForeignPartition(f"{path}/{checkpoints.PARTITION_METADATA}", stored, topic_id)
        log.topic_id = topic_id or stored or checkpoints.NO_TOPIC_ID
    except damage.DamagedLog:
        log.segments.close()
        raise
    for repair in loaded.repairs:
        logger.warning("%s-%d: %s", topic, partition, repair)
    return log


def _load_with_the_epochs_of_before(
    files: Files, path: str, context: recovery.LoadContext
) -> recovery.Loaded | None:
    """After a crash the checkpoint of the leader epochs may be what is damaged, and not the log. That is so if the
    batches have just the epochs that it had at the last clean stop, and it is another file now. None otherwise.
    """
    name, before = checkpoints.LEADER_EPOCH_CHECKPOINT, context.before
    was = manifest.known_crc(before, name)
    if was is None or manifest.is_as_left(files, path, name, before):
        return None
    try:
        loaded = recovery.load(files, path, LeaderEpochs(), replace(context, clean=False))
    except damage.DamagedLog:
        return None
    if crc32c(checkpoints.encode_leader_epochs(loaded.leader_epochs.entries)) != was:
        for segment in loaded.segments:
            segment.close()
        return None
    logger.warning("%s/%s is damaged; it is rebuilt from the log", path, name)
    return loaded


def _refuse_without_log(files: Files, directory: str) -> None:
    """The log file of a segment is made before its indexes."""
    names = files.names(directory)
    left = sorted(name for name in names if name.endswith(INDEX_SUFFIX))
    if left and not any(name.endswith(LOG_SUFFIX) for name in names):
        raise damage.missing_log(f"{directory}/{left[0].removesuffix(INDEX_SUFFIX)}{LOG_SUFFIX}")


def _has_epochs(files: Files, directory: str, epochs: LeaderEpochs) -> bool:
    path = f"{directory}/{checkpoints.LEADER_EPOCH_CHECKPOINT}"
    return files.exists(path) and files.read(path) == checkpoints.encode_leader_epochs(epochs.entries)


# The topic id of a partition is the one that its file names, which must be that of the topic where this is known.


def _write_topic_id(files: Files, directory: str, topic_id: UUID, *, in_place: bool) -> None:
    """`in_place`: into a file that nobody relies on yet, and without waiting for the disk."""
    path, data = f"{directory}/{checkpoints.PARTITION_METADATA}", checkpoints.encode_partition_metadata(topic_id)
    if in_place:
        files.write_into(path, data, 0)
    else:
        files.replace(path, data)


def ensure_topic_id(files: Files, directory: str, topic_id: UUID, expected: manifest.Marks | None) -> None:
    """Write the file of a partition that surely is this topic's, if it does not name any."""
    if _stored_topic_id(files, directory, expected) is None:
        _write_topic_id(files, directory, topic_id, in_place=False)


def _stored_topic_id(files: Files, directory: str, expected: manifest.Marks | None) -> UUID | None:
    try:
        return read_topic_id(files, directory, expected)
    except (FileNotFoundError, checkpoints.DamagedCheckpoint) as error:
        logger.warning("%s/%s is not what was written: %s", directory, checkpoints.PARTITION_METADATA, error)
        return None


def read_topic_id(files: Files, directory: str, expected: manifest.Marks | None) -> UUID:
    """The topic id in a partition's file. `DamagedCheckpoint` if it is not what was written there."""
    stored = checkpoints.decode_partition_metadata(files.read(f"{directory}/{checkpoints.PARTITION_METADATA}"))
    if not manifest.is_as_left(files, directory, checkpoints.PARTITION_METADATA, expected):
        raise checkpoints.DamagedCheckpoint("it is not what was written at the last stop")
    return stored


def is_named_by_manifest(topic_id: UUID, expected: manifest.Marks | None) -> bool:
    """Whether the last clean stop left a file that names this topic, whatever has become of it since."""
    crc = manifest.known_crc(expected, checkpoints.PARTITION_METADATA)
    return crc is not None and crc == crc32c(checkpoints.encode_partition_metadata(topic_id))
