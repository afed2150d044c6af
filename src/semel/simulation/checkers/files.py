"""After the last stop: the data directory keeps the invariants L, T and C (`semel.testing.invariants`)."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from semel.simulation.checkers import ON_THE_FILES
from semel.simulation.play import Play
from semel.simulation.world import DATA
from semel.testing.invariants import violations


def check_files(play: Play) -> None:
    """Write the simulated disk to a real directory, and check that."""
    with TemporaryDirectory(prefix="semel-simulation-") as directory:
        play.broker.machine.disk.copy_to(DATA, Path(directory))
        only_new = not any(workload.uses_old_protocol for workload in play.workloads)
        for violation in violations(directory, transaction_version=2 if only_new else None, at_rest=True)[:5]:
            play.world.violated(f"files: {violation}")


ON_THE_FILES["files"] = check_files
