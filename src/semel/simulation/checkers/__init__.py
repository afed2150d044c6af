"""What must hold. One file each, in three tables: while everything runs, at rest, and on the files that are left.

A checker calls `play.world.violated` with what it found. One that runs beside the work is a coroutine that never ends;
it must not disturb: it sends nothing and changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semel.simulation.play import Play

WHILE_RUNNING: dict[str, Callable[[Play], Any]] = {}
AT_REST: dict[str, Callable[[Play], Awaitable[None]]] = {}
ON_THE_FILES: dict[str, Callable[[Play], None]] = {}

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
