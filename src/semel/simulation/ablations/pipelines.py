"""The safeguards of a pipeline's driver."""

from __future__ import annotations

from typing import Any

from semel.machines.pipeline.batch_marker import BatchVerdict
from semel.machines.pipeline.claims import ClaimBook, Epoch
from semel.simulation.ablations import Patch, ablation, nothing
from semel.simulation.workloads import pipeline

DIES = ("client killed", "lost answers", "broker killed")


def _every_attempt_may_write(patch: Patch) -> None:
    refusal = ClaimBook.refusal

    def refuse(self: ClaimBook, epoch: Epoch, task: int, attempt: str) -> str:
        self._attempts.pop(task, None)
        return refusal(self, epoch, task, attempt)

    patch.set(ClaimBook, "refusal", refuse)


@ablation(
    "claim guard: a task writes once in an epoch",
    "pipeline", faults=DIES,
    unseen_because="the tasks' reports are compared with what was given to them",
)
def without_the_claim_guard(patch: Patch) -> None:
    _every_attempt_may_write(patch)


@ablation("claim guard and the comparison of the reports", "pipeline", faults=DIES)
def without_the_claim_guard_and_the_reports(patch: Patch) -> None:
    _every_attempt_may_write(patch)
    patch.set(pipeline, "check_reports", nothing)


@ablation("marker check: a batch that was committed is not run again", "pipeline", faults=DIES)
def without_the_marker_check(patch: Patch) -> None:
    def judge(*_: Any) -> BatchVerdict:
        return BatchVerdict.RUN

    patch.set(pipeline, "judge_batch", judge)
