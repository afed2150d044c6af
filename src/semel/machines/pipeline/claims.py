"""The claim guard: in each epoch a task writes once, and the tasks take turns at a partition. The driver judges.

Guarantees: of the attempts of a task only the first that asks may write; the others are refused, and so is everybody
from another epoch. At any time one attempt has the turn at a partition, and no sequence number is given out twice. A
micro-batch may commit only if the tasks' reports name all that they were given.

Why this is needed: all tasks produce with one producer id, so the sequence numbers of a partition must reach the broker
in order, though several tasks write to it. And a task that runs again would write its rows a second time. Spark's
attempt number does not help: it starts at zero again when a stage is resubmitted. So a task claims its place before its
first produce. A refused claim fails the job, and the whole micro-batch runs again in a new epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from semel.records.sequence import next_sequence

#: A producer id, its epoch, and the number of the DataFrame in the transaction: under these a task claims its place.
Epoch = tuple[int, int, int]

#: A topic and a partition.
Place = tuple[str, int]


class ClaimRefused(Exception):
    """Another attempt of this task already writes, or the epoch is over. The micro-batch must run again."""


class RowRefused(ValueError):
    """A row that can never be written as it is. The text says which row, and what to change."""


class ReportsDisagree(Exception):
    """The tasks' reports do not match what they were given. The micro-batch is aborted."""


class WriteReport(NamedTuple):
    """What one task wrote to one partition, as acknowledged by the broker."""

    task: int
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
        self._attempts: dict[int, str] = {}
        self._turns: dict[Place, str] = {}
        self._sequences: dict[Place, int] = {}
        self._given: dict[tuple[int, str, int], int] = {}
        self._lost = ""
        self._mistake = ""

    def open(self, epoch: Epoch, sequences: Mapping[Place, int] = MappingProxyType({})) -> None:
        """Start an epoch. Claims for any other epoch are refused from now on.

        `sequences` are the next ones of the partitions that were written in this transaction before.
        """
        self._epoch = epoch
        self._attempts, self._turns, self._given = {}, {}, {}
        self._sequences = dict(sequences)
        self._lost = self._mistake = ""

    def close(self) -> None:
        """End the epoch: no task may write any more."""
        self._epoch = None

    def refusal(self, epoch: Epoch, task: int, attempt: str) -> str:
        """Enter an attempt of a task. Returns why it is refused, or an empty string if it may write."""
        if epoch != self._epoch:
            return f"task {task}: epoch {epoch} is over, the current one is {self._epoch}"
        if self._lost:
            return f"task {task}: {self._lost}"
        if self._attempts.setdefault(task, attempt) != attempt:
            return f"task {task} already writes in epoch {epoch}: it ran twice"
        return ""

    def take_turn(self, task: int, attempt: str, place: Place, records: int) -> int | None:
        """The sequence number for so many records of an attempt that was not refused; None if it is not its turn."""
        if place in self._turns:
            return None
        self._turns[place] = attempt
        sequence = self._sequences.get(place, 0)
        self._sequences[place] = next_sequence(sequence, records)
        given = task, *place
        self._given[given] = self._given.get(given, 0) + records
        return sequence

    def end_turn(self, epoch: Epoch, attempt: str, place: Place) -> None:
        """All records of this turn are acknowledged: the next task may write."""
        if epoch == self._epoch and self._turns.get(place) == attempt:
            del self._turns[place]

    def lose_turn(self, epoch: Epoch, attempt: str, place: Place) -> None:
        """Who has this turn is gone. Nobody is granted anything any more: the micro-batch must run again.

        If the others waited for the turn instead, they could occupy all executors, and Spark could not run the lost
        task again, which is what fails the job.
        """
        if epoch == self._epoch and self._turns.get(place) == attempt:
            self._lost = f"a task died in its turn at {place[0]}-{place[1]}"

    def complain(self, epoch: Epoch, why: str) -> None:
        """Note why the micro-batch can never be written. Only the first complaint of the current epoch is kept."""
        if epoch == self._epoch:
            self._mistake = self._mistake or why

    @property
    def mistake(self) -> str:
        """Why the last micro-batch can never be written; empty if no task complained."""
        return self._mistake

    @property
    def given(self) -> dict[tuple[int, str, int], int]:
        """How many records each task was given sequence numbers for: by task, topic and partition."""
        return dict(self._given)

    @property
    def sequences(self) -> dict[Place, int]:
        """The next sequence number of each partition that was written in this transaction."""
        return dict(self._sequences)


def check_reports(given: Mapping[tuple[int, str, int], int], reports: Iterable[WriteReport]) -> None:
    """Raise `ReportsDisagree` unless the reports say, each once, all that was given out, with offsets for it."""
    reports = list(reports)
    reported = {(report.task, report.topic, report.partition): report.records for report in reports}
    if len(reported) != len(reports) or reported != given:
        raise ReportsDisagree(
            f"given to tasks: {sorted(given.items())}, reported: {sorted(reports)}; each task must report once what it "
            "was given"
        )
    for report in reports:
        if report.last_offset - report.first_offset + 1 < report.records:
            raise ReportsDisagree(
                f"{report.topic}-{report.partition}: {report.records} records cannot lie in offsets "
                f"{report.first_offset} to {report.last_offset}"
            )
