"""After the last stop: the data directory keeps the invariants L, T and C (`semel.testing.invariants`)."""

from __future__ import annotations

from semel.simulation.checkers import ON_THE_FILES
from semel.simulation.disk import StoredData
from semel.simulation.play import Play
from semel.simulation.world import DATA
from semel.testing.invariants import violations


def check_files(play: Play) -> None:
    """Check what is on the simulated disks."""
    only_new = not any(workload.uses_old_protocol for workload in play.workloads)
    forgotten_ms = min((one.expires_ms for one in play.workloads if one.expires_ms is not None), default=None)
    for broker in play.brokers:
        disk = broker.machine.disk
        for rot in disk.rotten:
            rot.restore()  # where it is still bad, nobody has read it
        found = violations(
            StoredData(disk, DATA),
            transaction_version=2 if only_new else None,
            at_rest=True,
            forgotten_after_ms=forgotten_ms,
        )
        for violation in found[:5]:
            of_whom = f" of {broker.machine.name}" if play.is_cluster else ""
            play.world.violated(f"files{of_whom}: {violation}")


ON_THE_FILES["files"] = check_files
