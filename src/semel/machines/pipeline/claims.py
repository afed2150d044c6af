"""The claim guard: in each epoch, an output partition has exactly one writing task. The driver judges.

Guarantees: a second claim for a partition is refused, and so is a claim from another epoch. A micro-batch may commit
only if every claimed partition was reported exactly once.

Why this is needed: a task that runs again may bring other rows, or the same rows in another order, under the same
sequence numbers, and the broker would drop them as duplicates. Spark's attempt number does not help: it starts at zero
again when a stage is resubmitted. So a task claims a partition before its first produce. A refused claim fails the
job, and the whole micro-batch runs again in a new epoch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

#: A producer id, its epoch, and the number of the DataFrame in the transaction: under these a task claims partitions.
Epoch = tuple[int, int, int]


class ClaimRefused(Exception):
    """Another task of this epoch already writes the partition. The micro-batch must run again in a new epoch."""


class RowRefused(ValueError):
    """A row that can never be written as it is. The text says which row, and what to change."""


class ReportsDisagree(Exception):
    """The tasks' reports do not match their claims. The micro-batch is aborted."""


class WriteReport(NamedTuple):
    """What one task wrote to one partition, as acknowledged by the broker."""

    topic: str
    partition: int
    records: int
    first_offset: int
    last_offset: int
    #: Of the record batches, as they were sent.
    size_bytes: int = 0


class ClaimBook:
    """Who writes what in the current epoch."""

    def __init__(self) -> None:
        self._epoch: Epoch | None = None
        self._claimed: set[tuple[str, int]] = set()
        self._mistake = ""

    def open(self, epoch: Epoch) -> None:
        """Start an epoch. Claims for any other epoch are refused from now on."""
        self._epoch = epoch
        self._claimed = set()
        self._mistake = ""

    def close(self) -> None:
        """End the epoch: no task may start to write."""
        self._epoch = None

    def refusal(self, epoch: Epoch, topic: str, partition: int) -> str:
        """Enter a claim. Returns why it is refused, or an empty string if it is granted."""
        if epoch != self._epoch:
            return f"{topic}-{partition}: epoch {epoch} is over, the current one is {self._epoch}"
        if (topic, partition) in self._claimed:
            return f"{topic}-{partition} is already claimed in epoch {epoch}: a task ran twice"
        self._claimed.add((topic, partition))
        return ""

    def complain(self, epoch: Epoch, why: str) -> None:
        """Note why the micro-batch can never be written. Only the first complaint of the current epoch is kept."""
        if epoch == self._epoch:
            self._mistake = self._mistake or why

    @property
    def mistake(self) -> str:
        """Why the last micro-batch can never be written; empty if no task complained."""
        return self._mistake

    @property
    def claimed(self) -> frozenset[tuple[str, int]]:
        """The partitions claimed in this epoch."""
        return frozenset(self._claimed)


def check_reports(claimed: frozenset[tuple[str, int]], reports: Iterable[WriteReport]) -> None:
    """Raise `ReportsDisagree` unless each claimed partition was reported once, with offsets for all its records."""
    reports = list(reports)
    reported = [(report.topic, report.partition) for report in reports]
    if len(set(reported)) != len(reported) or set(reported) != claimed:
        raise ReportsDisagree(
            f"claimed: {sorted(claimed)}, reported: {sorted(reported)}; each output partition must have one writer "
            "that finished"
        )
    for report in reports:
        if report.last_offset - report.first_offset + 1 < report.records:
            raise ReportsDisagree(
                f"{report.topic}-{report.partition}: {report.records} records cannot lie in offsets "
                f"{report.first_offset} to {report.last_offset}"
            )
