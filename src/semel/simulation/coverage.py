"""Which cells of which state tables the seeds have taken, and which never.

While it is entered, every look into a state table is counted. That is done from here: no machine knows of it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any

from semel.machines import state_pages
from semel.machines.table import StatePage, StateTable, title_of
from semel.simulation.unreached import UNREACHED

#: A cell in a form that another process understands: the name of its table, the state and the event.
Cell = tuple[str, str, str]


class Coverage:
    """Counts cells. Enter it around what is to be counted; it adds up."""

    def __init__(self) -> None:
        self.pages = [page for page in vars(state_pages).values() if isinstance(page, StatePage)]
        #: (table, state, event) of every look.
        self._taken: set[tuple[int, enum.Enum, enum.Enum]] = set()
        self._step: Any = None

    def __enter__(self) -> Coverage:
        step, taken = StateTable.step, self._taken
        self._step = step

        def counting(table: StateTable[Any, Any, Any], state: Any, event: Any) -> Any:
            taken.add((id(table), state, event))
            return step(table, state, event)

        StateTable.step = counting  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *exc_info: object) -> None:
        StateTable.step = self._step  # type: ignore[method-assign]

    @property
    def cells(self) -> frozenset[Cell]:
        """What was taken, for a `Coverage` in another process."""
        names = {id(page.table): page.name for page in self.pages}
        return frozenset(
            (names[table], state.name, event.name) for table, state, event in self._taken if table in names
        )

    def add(self, cells: Iterable[Cell]) -> None:
        """Count what another one counted."""
        tables = {page.name: page.table for page in self.pages}
        for name, state, event in cells:
            table = tables[name]
            self._taken.add((id(table), table.states[state], table.events[event]))

    def never_taken(self, page: StatePage) -> list[str]:
        """The cells of a table that say something, and that no event has met."""
        return [
            f"{title_of(state)}/{event.name.lower()}"
            for state, row in page.table.steps.items()
            for event in row
            if (id(page.table), state, event) not in self._taken
        ]

    def report(self) -> list[str]:
        """One line for each table. Cells that no seed is expected to take (`unreached`) are counted, not named."""
        lines = []
        for page in self.pages:
            cells = sum(len(row) for row in page.table.steps.values())
            never, expected = self.never_taken(page), UNREACHED.get(page.name, {})
            line = f"table {page.name}: {cells - len(never)} of {cells} cells taken"
            if missing := [cell for cell in never if cell not in expected]:
                line += f"; never: {', '.join(missing)}"
            if len(missing) < len(never):
                line += f"; never, as expected: {len(never) - len(missing)}"
            if surprises := self.surprises(page):
                line += f"; TAKEN, which unreached.py excludes: {', '.join(surprises)}"
            lines.append(line)
        return lines

    def surprises(self, page: StatePage) -> list[str]:
        """Cells that were taken although no seed was expected to."""
        never = self.never_taken(page)
        return [cell for cell in UNREACHED.get(page.name, {}) if cell not in never]
