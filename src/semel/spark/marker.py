"""The marker: what the last committed micro-batch was, kept where only a commit can put it.

It travels as the metadata of the group's offsets inside the micro-batch's own transaction, so it is there if and only
if the micro-batch is. Spark reruns a batch whose end it did not see; the marker tells a rerun from a new batch, and
tells both from a stranger who happens to use the same transactional id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from semel.machines.values import TopicPartition


class MarkerConflict(Exception):
    """The progress on the broker and the checkpoint do not belong together; running on would lose or repeat data."""


class Verdict(Enum):
    """What is to be done with a micro-batch."""

    RUN = "run"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Marker:
    """Which micro-batch of which query was committed, and a hash of where its sources ended."""

    query_id: str
    batch_id: int
    offsets_hash: str

    def to_metadata(self, *, beside_source_offset: bool = True) -> str:
        """The text that goes into the offset commit. It says if the offset beside it is not a source's."""
        marker = {"semel": 1, "query": self.query_id, "batch": self.batch_id, "hash": self.offsets_hash}
        return json.dumps(marker if beside_source_offset else {**marker, "source": False})

    @classmethod
    def from_metadata(cls, text: str | None) -> Marker | None:
        """Read a marker back; text that is not one of ours is None."""
        if not text or not text.startswith('{"semel"'):
            return None
        found = json.loads(text)
        return cls(found["query"], found["batch"], found["hash"])


def is_source_offset(text: str | None) -> bool:
    """Whether the offset beside this metadata is a source's, and not a place to keep the marker.

    >>> is_source_offset(Marker("query", 7, "aa").to_metadata(beside_source_offset=False))
    False
    """
    return Marker.from_metadata(text) is None or json.loads(text or "{}").get("source", True) is not False


def hash_of(end_offsets: list[str]) -> str:
    """A short fingerprint of where a micro-batch's sources end, whatever the order of keys in the text."""
    digest = hashlib.sha256()
    for text in end_offsets:
        try:
            text = json.dumps(json.loads(text), sort_keys=True, separators=(",", ":"))
        except ValueError:
            pass  # a source may write its offset as plain text; it is hashed as it is
        digest.update(text.encode())
        digest.update(b"\n")
    return digest.hexdigest()[:32]


def judge(
    committed: Marker | None,
    batch: Marker,
    transactional_id: str,
    committed_ends: Mapping[TopicPartition, int] = MappingProxyType({}),
    batch_ends: Mapping[TopicPartition, int] | None = MappingProxyType({}),
    begins_at: Callable[[], str] = lambda: "where the batch begins",
) -> Verdict:
    """Decide whether a micro-batch is still to be done.

    The ends are the source offsets, where the source has them: a checkpoint set back by several batches may plan an
    old batch id over newer data, and skipping that would lose it. `batch_ends` is None where they cannot be compared,
    because a source lies elsewhere. `begins_at` says where the batch begins, for the words of a refusal.

    >>> judge(None, Marker("query", 0, "aa"), "ledger-pipeline")
    <Verdict.RUN: 'run'>
    """
    refuse_strangers(committed, batch.query_id, batch.batch_id, transactional_id, committed_ends, begins_at)
    if committed is None:
        return Verdict.RUN
    if batch.batch_id == committed.batch_id and batch.offsets_hash != committed.offsets_hash:
        raise MarkerConflict(
            f"batch {batch.batch_id} was committed with other source offsets than the checkpoint now gives it: the "
            f"checkpoint was rewritten or belongs to other data. {_go_on(committed, committed_ends)}"
        )
    if batch.batch_id < committed.batch_id:
        if batch_ends is None:
            raise MarkerConflict(
                f"the checkpoint is at batch {batch.batch_id} and the broker at batch {committed.batch_id}: the "
                "checkpoint was set back, and its source is not on this cluster, so nobody can say what is new. "
                f"Bring the newer checkpoint back. Without it: {_go_on(committed, {})}"
            )
        beyond = [where for where, end in batch_ends.items() if end > committed_ends.get(where, end)]
        if beyond:
            raise MarkerConflict(
                f"batch {batch.batch_id} was committed long ago (the broker is at batch {committed.batch_id}), but the "
                f"checkpoint now gives it newer data of {beyond[0]}: the checkpoint was set back. Bring the newer one "
                f"back. Without it: {_go_on(committed, committed_ends)}"
            )
    return Verdict.SKIP if batch.batch_id <= committed.batch_id else Verdict.RUN


def refuse_strangers(
    committed: Marker | None,
    query_id: str | None,
    batch_id: int,
    transactional_id: str,
    committed_ends: Mapping[TopicPartition, int] = MappingProxyType({}),
    begins_at: Callable[[], str] = lambda: "where the batch begins",
) -> None:
    """Refuse a checkpoint that does not belong to the progress on the broker. `query_id` is None in an empty one.

    Every refusal names a way that works. A new transactional id alone is none, once a checkpoint has moved past its
    first batch: no id but its own knows what it has written.
    """
    if committed is None:
        if batch_id > 0:
            raise MarkerConflict(
                f"the checkpoint is at batch {batch_id}, but the broker knows no progress of '{transactional_id}': it "
                "expired (offsets.retention.minutes), was deleted, or is kept under another id or on another cluster. "
                f"Nobody can say whether batch {batch_id} was written. If the checkpoint was made with another "
                "transactional_id or other bootstrap_servers, start it with these. If the progress is gone: start with "
                f"an empty checkpoint, and set the source's startingOffsets to {begins_at()}; there batch {batch_id} "
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
                f"progress first: semel pipeline forget {transactional_id}"
            )
        raise MarkerConflict(
            f"{words} Start this checkpoint, which is at batch {batch_id}, with the transactional_id it was made with. "
            "If nobody knows that any more: start with an empty checkpoint and a transactional_id of its own, and set "
            f"the source's startingOffsets to {begins_at()}; there batch {batch_id} begins."
        )
    if batch_id > committed.batch_id + 1:
        raise MarkerConflict(
            f"the checkpoint is at batch {batch_id}, but the last batch committed is {committed.batch_id}: what lies "
            f"between was never written here. {_go_on(committed, committed_ends)}"
        )


def _go_on(committed: Marker, ends: Mapping[TopicPartition, int]) -> str:
    """How to continue behind the last committed batch, without the checkpoint."""
    where: dict[str, dict[str, int]] = {}
    for place in sorted(ends):
        where.setdefault(place.topic, {})[str(place.partition)] = ends[place]
    offsets = json.dumps(where, separators=(",", ":")) if where else "where that batch ended"
    return (
        f"To go on behind batch {committed.batch_id}, start with an empty checkpoint and a new transactional_id, and "
        f"set the source's startingOffsets to {offsets}"
    )
