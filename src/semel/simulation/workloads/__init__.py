"""What clients do in a world. One file each; `WORKLOADS` has them by name.

A workload makes its topics (`prepare`), and adds its clients to the play as actors when it is made. An actor lives
until `play.is_ending`, and then ends by itself. What it sends and sees goes into the play's history. What a workload
knows better than the history checker it checks itself, at rest (`check`).
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, TypeVar

from semel.wire.apis import ApiKey

if TYPE_CHECKING:
    from semel.simulation.play import Play


class Workload:
    """One kind of work."""

    #: The topics whose records are part of the history: everything readable in them is read at rest.
    judged_topics: tuple[str, ...] = ()
    #: Whether it has transactions of the protocol before KIP-890, for whose markers other rules hold.
    uses_old_protocol = False
    #: Requests that nobody repeats to it, because its protocol does not recognise them a second time.
    not_repeated: frozenset[ApiKey] = frozenset()
    #: After how long the broker forgets producers, if the workload has shortened that.
    expires_ms: int | None = None
    #: Whether it is played with one broker, and with several.
    alone, in_a_cluster = True, True

    def __init__(self, play: Play) -> None:
        self.play = play
        self.chance = play.world.chance_for(f"workload {type(self).__name__}")

    async def prepare(self) -> None:
        """Make topics, before any fault."""

    async def check(self, committed: dict[tuple[str, int], list[tuple[int, bytes | None, bytes | None]]]) -> None:
        """Check at rest. `committed`: what a reader of committed records sees, by partition: offset, key, value."""


WORKLOADS: dict[str, type[Workload]] = {}
_Kind = TypeVar("_Kind", bound=type[Workload])


def workload(name: str) -> Callable[[_Kind], _Kind]:
    """Register a workload under this name."""

    def register(kind: _Kind) -> _Kind:
        WORKLOADS[name] = kind
        return kind

    return register


for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
