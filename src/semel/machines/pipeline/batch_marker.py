"""The batch marker: which micro-batch was committed last. It decides whether a batch runs, is skipped or is refused.

Guarantees: a committed batch is never run again, and a batch is skipped only if it was committed. The marker is stored
as the metadata of the group's offsets, inside the micro-batch's own transaction, so it exists if and only if the batch
was committed. Spark runs a batch again when it did not see it end; the marker tells such a rerun from a new batch. A
checkpoint that does not belong to the stored progress is refused: going on would lose rows or write them twice.
"""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from semel.machines.values import TopicPartition


class MarkerConflict(Exception):
    """The checkpoint does not belong to the progress on the broker. Going on would lose or repeat rows."""


class BatchVerdict(Enum):
    """What to do with a micro-batch."""

    RUN = "run"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class BatchMarker:
    """A micro-batch of a query, and a hash of its end offsets."""

    query_id: str
    batch_id: int
    offsets_hash: str

    def to_metadata(
        self, *, beside_source_offset: bool = True, begins_at: int | None = None, rows: int | None = None
    ) -> str:
        """The text that is stored with a committed offset. It says so if that offset is not a source's.

        `begins_at` is where the batch begins in this partition, and `rows` how many it wrote: for the audit.
        """
        marker = {"semel": 1, "query": self.query_id, "batch": self.batch_id, "hash": self.offsets_hash}
        told = {"source": None if beside_source_offset else False, "from": begins_at, "rows": rows}
        return json.dumps({**marker, **{name: value for name, value in told.items() if value is not None}})

    @classmethod
    def from_metadata(cls, text: str | None) -> BatchMarker | None:
        """Read a marker; None if the text is not one."""
        if not text or not text.startswith('{"semel"'):
            return None
        found = json.loads(text)
        return cls(found["query"], found["batch"], found["hash"])


@dataclass(frozen=True, slots=True)
class MarkerDetails:
    """What a marker tells beside the batch. Those of earlier versions tell less."""

    #: Whether the offset with this metadata is a source's. Otherwise it only carries the marker.
    is_source_offset: bool = True
    begins_at: int | None = None
    rows: int | None = None

    @classmethod
    def from_metadata(cls, text: str | None) -> MarkerDetails:
        """Read the details; the defaults if the text is not a marker.

        >>> MarkerDetails.from_metadata(BatchMarker("query", 7, "aa").to_metadata(begins_at=40, rows=2))
        MarkerDetails(is_source_offset=True, begins_at=40, rows=2)
        """
        if BatchMarker.from_metadata(text) is None:
            return cls()
        found = json.loads(text or "{}")
        return cls(found.get("source", True) is not False, found.get("from"), found.get("rows"))


def is_source_offset(text: str | None) -> bool:
    """Whether the offset with this metadata is a source's. Otherwise it only carries the marker.

    >>> is_source_offset(BatchMarker("query", 7, "aa").to_metadata(beside_source_offset=False))
    False
    """
    return MarkerDetails.from_metadata(text).is_source_offset


def fingerprint_of(end_offsets: list[str]) -> str:
    """A hash of the end offsets of a micro-batch. The order of keys in the JSON does not matter."""
    digest = hashlib.sha256()
    for text in end_offsets:
        try:
            text = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
        except ValueError:
            pass  # some sources write plain text instead of JSON: hash it as it is
        digest.update(text.encode())
        digest.update(b"\n")
    return digest.hexdigest()[:32]


def judge_batch(
    committed: BatchMarker | None,
    batch: BatchMarker,
    transactional_id: str,
    committed_ends: Mapping[TopicPartition, int] = MappingProxyType({}),
    batch_ends: Mapping[TopicPartition, int] | None = MappingProxyType({}),
    begins_at: Callable[[], str] = lambda: "where the batch begins",
) -> BatchVerdict:
    """Decide whether a micro-batch runs or is skipped, or raise `MarkerConflict`.

    `committed_ends` and `batch_ends` are source offsets: a checkpoint that was set back several batches may give an old
    batch id to newer data, and skipping that would lose it. `batch_ends` is None where offsets cannot be compared,
    because a source is on another cluster. `begins_at` returns where the batch begins, for the error message.

    >>> judge_batch(None, BatchMarker("query", 0, "aa"), "ledger-pipeline")
    <BatchVerdict.RUN: 'run'>
    """
    refuse_foreign_checkpoint(committed, batch.query_id, batch.batch_id, transactional_id, committed_ends, begins_at)
    if committed is None:
        return BatchVerdict.RUN
    if batch.batch_id == committed.batch_id and batch.offsets_hash != committed.offsets_hash:
        raise MarkerConflict(
            f"batch {batch.batch_id} was committed with other source offsets than the checkpoint now gives it: the "
            f"checkpoint was rewritten or belongs to other data. {_how_to_go_on(committed, committed_ends)}"
        )
    if batch.batch_id < committed.batch_id:
        if batch_ends is None:
            raise MarkerConflict(
                f"the checkpoint is at batch {batch.batch_id} and the broker at batch {committed.batch_id}: the "
                "checkpoint was set back, and its source is not on this cluster, so it is unknown which rows are new. "
                f"Bring the newer checkpoint back. Without it: {_how_to_go_on(committed, {})}"
            )
        beyond = [where for where, end in batch_ends.items() if end > committed_ends.get(where, end)]
        if beyond:
            raise MarkerConflict(
                f"batch {batch.batch_id} was committed long ago (the broker is at batch {committed.batch_id}), but the "
                f"checkpoint now gives it newer data of {beyond[0]}: the checkpoint was set back. Bring the newer one "
                f"back. Without it: {_how_to_go_on(committed, committed_ends)}"
            )
    return BatchVerdict.SKIP if batch.batch_id <= committed.batch_id else BatchVerdict.RUN


def is_to_be_adopted(
    committed: BatchMarker | None,
    query_id: str | None,
    batch_id: int,
    *,
    is_begun: bool,
    accepts_repeat: bool,
    begins_at: Callable[[], str] = lambda: "where the batch begins",
) -> bool:
    """Whether a checkpoint without progress on the broker is to be taken over, so that it goes on with `batch_id`.

    False if there is nothing to take over: a new checkpoint, or one with progress (whose belonging is checked as ever).
    Raises `MarkerConflict` if the batch was begun (`is_begun`) by whoever had the checkpoint before, and writing it
    again was not asked for.

    >>> is_to_be_adopted(None, "query", 7, is_begun=False, accepts_repeat=False)
    True
    """
    if query_id is None or batch_id == 0 or committed is not None:
        return False
    if is_begun and not accepts_repeat:
        raise MarkerConflict(_begun_by_another(batch_id, f"It begins at {begins_at()}. "))
    return True


def refuse_first_batch_of_another(committed: BatchMarker | None, *, is_begun: bool, is_known: bool) -> None:
    """Raise `MarkerConflict` if the first batch of a checkpoint was begun, and not by this transactional id.

    A checkpoint at its first batch has no progress yet, whoever made it. But a pipeline of ours has its id known to the
    coordinator (`is_known`) before Spark writes the batch down.

    >>> refuse_first_batch_of_another(None, is_begun=True, is_known=True)
    """
    if committed is None and is_begun and not is_known:
        raise MarkerConflict(_begun_by_another(0, ""))


def refuse_group_of_another(
    committed: BatchMarker | None,
    of_others: Mapping[TopicPartition, int],
    transactional_id: str,
    batch_id: int,
    forget: str = "",
) -> None:
    """Raise `MarkerConflict` if the group of this name has offsets, and no marker: they belong to a consumer group.

    The pipeline would overwrite them, and the consumers then skip records or get them twice.
    """
    if committed is not None or not of_others:
        return
    place = min(of_others)
    command = forget or forget_command(transactional_id)
    own = f", then start(..., adopt=True), because the checkpoint is at batch {batch_id}" if batch_id > 0 else ""
    raise MarkerConflict(
        f"group '{transactional_id}' has offsets of another program ({place} at {of_others[place]}): a pipeline keeps "
        "its progress in the group of its own name, and would overwrite them. Give the pipeline a transactional_id "
        "that no consumer has as its group.id. If that program is to leave the group and nobody needs its offsets, "
        f"delete them: {command}{own}"
    )


def _begun_by_another(batch_id: int, where: str) -> str:
    return (
        f"batch {batch_id} of this checkpoint was begun and not finished. Whoever ran it before may have written "
        f"some of its rows, or all, and they would be written again. {where}To let the old "
        "pipeline finish it, run that once more until it is idle, then stop it: then nothing is repeated. To take "
        "the risk that rows of this one batch are there twice: start(..., adopt='repeat'), or semel pipeline adopt "
        "FILE --repeat"
    )


def refuse_foreign_checkpoint(
    committed: BatchMarker | None,
    query_id: str | None,
    batch_id: int,
    transactional_id: str,
    committed_ends: Mapping[TopicPartition, int] = MappingProxyType({}),
    begins_at: Callable[[], str] = lambda: "where the batch begins",
    forget: str = "",
) -> None:
    """Raise `MarkerConflict` if the checkpoint does not belong to the progress on the broker.

    `query_id` is None for an empty checkpoint. `forget` is the command that deletes the progress. Every message names a
    way to go on that works. A new transactional id alone is not one, once the checkpoint is past its first batch: only
    the old id knows what was written.
    """
    if committed is None:
        if batch_id > 0:
            raise MarkerConflict(
                f"the checkpoint is at batch {batch_id}, but the broker knows no progress of '{transactional_id}': it "
                "expired (offsets.retention.minutes; a compacted marker_topic keeps it), was deleted (by forget, or "
                "with a source topic), or is kept under another id or on another cluster. "
                f"It is unknown whether batch {batch_id} was written. If the checkpoint was made with another "
                "transactional_id or other bootstrap_servers, start it with these. If the progress is gone, or the "
                "checkpoint was made with another sink, take it over: start(..., adopt=True), or semel pipeline adopt "
                "FILE. To go on without this checkpoint: start with an empty one, and set "
                f"the source's startingOffsets to {begins_at()}; there batch {batch_id} "
                "begins, so that its rows are written twice if it was committed before."
            )
        return
    if committed.query_id != query_id:
        belongs = f"transactional id '{transactional_id}' belongs to query {committed.query_id} (at batch "
        this = f"this is query {query_id}" if query_id else "this is a new query"
        words = f"{belongs}{committed.batch_id}); {this}, from another checkpoint."
        if batch_id == 0:
            raise MarkerConflict(
                f"{words} If the old query is to go on, start it with its own checkpoint. If this is a new one, give "
                "it a transactional_id of its own. If it is to write everything again under this id, delete the old "
                f"progress first: {forget or forget_command(transactional_id)}"
            )
        raise MarkerConflict(
            f"{words} Start this checkpoint, which is at batch {batch_id}, with the transactional_id it was made with. "
            "If that is not known, give it a transactional_id of its own and take it over: start(..., adopt=True). Or "
            "start with an empty checkpoint and a transactional_id of its own, and set "
            f"the source's startingOffsets to {begins_at()}; there batch {batch_id} begins."
        )
    if batch_id > committed.batch_id + 1:
        raise MarkerConflict(
            f"the checkpoint is at batch {batch_id}, but the last batch committed is {committed.batch_id}: what lies "
            f"between was never written here. {_how_to_go_on(committed, committed_ends)}"
        )


def forget_command(transactional_id: str, bootstrap_servers: str = "", marker_topic: str | None = None) -> str:
    """The command that deletes a pipeline's progress, as it can be pasted into a shell.

    >>> forget_command("ledger 1", "localhost:9092", "pipelines")
    "semel pipeline forget 'ledger 1' --bootstrap localhost:9092 --marker-topic pipelines"
    """
    words = ["semel", "pipeline", "forget", transactional_id]
    words += ["--bootstrap", bootstrap_servers] if bootstrap_servers else []
    words += ["--marker-topic", marker_topic] if marker_topic is not None else []
    return shlex.join(words)


def _how_to_go_on(committed: BatchMarker, ends: Mapping[TopicPartition, int]) -> str:
    """What to do to continue after the last committed batch without the checkpoint."""
    where: dict[str, dict[str, int]] = {}
    for place in sorted(ends):
        where.setdefault(place.topic, {})[str(place.partition)] = ends[place]
    offsets = json.dumps(where, separators=(",", ":")) if where else "where that batch ended"
    return (
        f"To go on behind batch {committed.batch_id}, start with an empty checkpoint and a new transactional_id, and "
        f"set the source's startingOffsets to {offsets}"
    )
