"""The marker: what the last committed micro-batch was, kept where only a commit can put it.

It travels as the metadata of the group's offsets inside the micro-batch's own transaction, so it is there if and only
if the micro-batch is. Spark reruns a batch whose end it did not see; the marker tells a rerun from a new batch, and
tells both from a stranger who happens to use the same transactional id.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from semel.machines.contract import TopicPartition


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

    def to_metadata(self) -> str:
        """The text that goes into the offset commit."""
        return json.dumps({"semel": 1, "query": self.query_id, "batch": self.batch_id, "hash": self.offsets_hash})

    @classmethod
    def from_metadata(cls, text: str | None) -> Marker | None:
        """Read a marker back; text that is not one of ours is None."""
        if not text or not text.startswith('{"semel"'):
            return None
        found = json.loads(text)
        return cls(found["query"], found["batch"], found["hash"])


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
    batch_ends: Mapping[TopicPartition, int] = MappingProxyType({}),
) -> Verdict:
    """Decide whether a micro-batch is still to be done.

    The ends are the source offsets, where the source has them: a checkpoint set back by several batches may plan an
    old batch id over newer data, and skipping that would lose it.

    >>> done = Marker("q", 7, "a1")
    >>> judge(done, Marker("q", 7, "a1"), "payments"), judge(done, Marker("q", 8, "b2"), "payments")
    (<Verdict.SKIP: 'skip'>, <Verdict.RUN: 'run'>)
    """
    advice = (
        f"Use a new transactional id if this is a new query, or delete the offsets of the group '{transactional_id}' "
        "if its output is to be written again."
    )
    if committed is None:
        if batch.batch_id > 0:
            raise MarkerConflict(
                f"the checkpoint is at batch {batch.batch_id}, but the broker knows no progress of "
                f"'{transactional_id}': its offsets expired or were deleted, so nobody can say whether the batch "
                f"before was written. {advice}"
            )
        return Verdict.RUN
    if committed.query_id != batch.query_id:
        raise MarkerConflict(
            f"transactional id '{transactional_id}' belongs to query {committed.query_id} (at batch "
            f"{committed.batch_id}); this is query {batch.query_id}, from another checkpoint. {advice}"
        )
    if batch.batch_id > committed.batch_id + 1:
        raise MarkerConflict(
            f"the checkpoint is at batch {batch.batch_id}, but the last batch committed is {committed.batch_id}: what "
            f"lies between was never written. {advice}"
        )
    if batch.batch_id == committed.batch_id and batch.offsets_hash != committed.offsets_hash:
        raise MarkerConflict(
            f"batch {batch.batch_id} was committed with other source offsets than the checkpoint now gives it: the "
            f"checkpoint was rewritten or belongs to other data. {advice}"
        )
    beyond = [where for where, end in batch_ends.items() if end > committed_ends.get(where, end)]
    if batch.batch_id < committed.batch_id and beyond:
        raise MarkerConflict(
            f"batch {batch.batch_id} was committed long ago (the broker is at batch {committed.batch_id}), but the "
            f"checkpoint now gives it newer data of {beyond[0]}: the checkpoint was set back. {advice}"
        )
    return Verdict.SKIP if batch.batch_id <= committed.batch_id else Verdict.RUN
