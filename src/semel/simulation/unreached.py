"""The cells of the state tables that no seed with one broker takes, each with the reason.

`semel simulate --coverage` does not count them as missing, docs/testing.md lists them, and tests hold that they exist,
that the page has them, and that the seeds they play take none of them.
"""

from __future__ import annotations

from collections.abc import Iterable

from semel.machines.table import StatePage

_NOTHING_IN_FLIGHT = "no workload has a request in flight then that could fail so"
_TWO_FAILURES = "no workload has two requests in flight that both fail so"
_IN_ONE_MOMENT = "the state lasts no virtual time"
_NOT_ASKED = "who is authenticated is served by the dispatcher, and the table is not asked"
_OLD_EPOCH = "an old epoch is refused before the table is asked"

#: By table, then by cell.
UNREACHED: dict[str, dict[str, str]] = {
    "transaction": {
        "Empty/commit_again": _OLD_EPOCH,
        "Empty/abort_again": _OLD_EPOCH,
        "Ongoing/commit_again": _OLD_EPOCH,
        "Ongoing/abort_again": _OLD_EPOCH,
    },
    "producer": {
        "Uninitialized/fatal": _NOTHING_IN_FLIGHT,
        "Initializing/initialize": "a second call waits for the first, and the table is not asked",
        "Ready/abortable": _NOTHING_IN_FLIGHT,
        "Ready/fatal": _NOTHING_IN_FLIGHT,
        "Prepared/abortable": _NOTHING_IN_FLIGHT,
        "Prepared/fatal": _NOTHING_IN_FLIGHT,
        "Committing/abortable": _NOTHING_IN_FLIGHT,
        "AbortableError/fatal": _TWO_FAILURES,
        "FatalError/abortable": _TWO_FAILURES,
        "FatalError/fatal": _TWO_FAILURES,
    },
    "classic-member": {
        "Unjoined/forgotten": _NOTHING_IN_FLIGHT,
        "Unjoined/fail": _NOTHING_IN_FLIGHT,
        "Assigning/forgotten": _IN_ONE_MOMENT,
        "Assigning/fail": _IN_ONE_MOMENT,
        "Left/join": "whoever subscribes again is a new member",
    },
    "consumer-member": {
        "Joining/fenced": "a member that joins has no epoch that could be old",
    },
    "authentication": {
        "Authenticated/message": _NOT_ASKED,
        "Authenticated/versions": _NOT_ASKED,
        "Authenticated/other_request": _NOT_ASKED,
    },
}
#: Tables that only a cluster has.
OF_A_CLUSTER = ("leader-replica", "follower-replica")


def rows(pages: Iterable[StatePage]) -> list[str]:
    """The table of docs/testing.md, a line for each table of states that one broker and its clients have."""
    lines = []
    for page in pages:
        if page.name in OF_A_CLUSTER:
            continue
        named = UNREACHED.get(page.name, {})
        cells = sum(len(row) for row in page.table.steps.values())
        by_reason: dict[str, list[str]] = {}
        for cell, why in named.items():
            by_reason.setdefault(why, []).append(cell)
        reasons = "; ".join(f"{', '.join(some)}: {why}" for why, some in by_reason.items())
        lines.append(f"| [{page.name}](states/{page.name}.md) | {cells - len(named)} of {cells} | {reasons} |")
    return lines
