"""Every seed that ever failed, and what it found. Each is played again in `make test`.

The plan is written out, so that a later change of what a seed draws does not change it.
"""

from __future__ import annotations

from semel.simulation.faults import Strike
from semel.simulation.play import Plan

REGRESSIONS: dict[str, Plan] = {
    "a power failure took the whole data directory, whose own name was never fsynced": Plan(
        3,
        ("idempotent",),
        20.0,
        "fsync",
        [Strike(8.5, "client killed", 1), Strike(12.8, "power lost", 77), Strike(14.0, "power lost", 78)],
    ),
    "a classic member asked for its next heartbeat again and again within a millisecond": Plan(
        1, ("copying-eager",), 8.0, "os"
    ),
}
