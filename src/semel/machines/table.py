"""A state table: what each event leads to from each state, and the page drawn from it.

A machine asks its table and nothing else which move is legal. `docs/states` is written from the same tables
(`make states`), and a test holds the two equal, so the pages cannot say anything else than the code does.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any, Generic, TypeVar

from semel.errors import ErrorCode

StateT = TypeVar("StateT", bound=enum.Enum)
EventT = TypeVar("EventT", bound=enum.Enum)
CellT = TypeVar("CellT")

#: In a cell: success, and nothing changes. The sender repeats what is already so.
DONE = ErrorCode.NONE


def title_of(state: enum.Enum) -> str:
    """The name of a state on its page: `PREPARE_COMMIT` is PrepareCommit."""
    return "".join(word.capitalize() for word in state.name.split("_"))


def paragraph(text: str) -> str:
    """A paragraph of a page, in lines that an editor shows whole."""
    return fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def bullet(text: str) -> str:
    """An item of a list."""
    return fill(f"- {text}", 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) + "\n"


class StateTable(Generic[StateT, EventT, CellT]):
    """The moves of one machine. A cell holds the next state, or the error code that the sender of the event gets."""

    __slots__ = ("blank", "events", "states", "steps")

    def __init__(
        self,
        states: type[StateT],
        events: type[EventT],
        steps: Mapping[StateT, Mapping[EventT, CellT]],
        *,
        blank: CellT,
    ) -> None:
        self.states = states
        self.events = events
        self.steps = steps
        #: What a cell holds that `steps` does not name.
        self.blank = blank

    def step(self, state: StateT, event: EventT) -> CellT:
        """The cell of this state and this event."""
        return self.steps[state].get(event, self.blank)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatePage:
    """One page of `docs/states`: a table, drawn and explained."""

    #: The file's name, without its ending.
    name: str
    title: str
    table: StateTable[Any, Any, Any]
    #: The file that holds the table.
    source: str
    opening: str
    #: The state that a machine starts in, and the event that makes a machine, where there is such an event.
    first: enum.Enum
    begins: str = ""
    #: The end of the sentence "A blank cell ...".
    blank: str
    #: What each state is, in words.
    meanings: Mapping[Any, str]
    notes: Sequence[str] = ()

    def text(self) -> str:
        """The whole page, in Markdown."""
        parts = [
            f"# {self.title}\n",
            paragraph(self.opening),
            paragraph(
                f"This page is written from the table in `{self.source}` by `make states`. A test holds the two equal."
            ),
            f"```mermaid\n{self.as_mermaid()}```\n",
            "## What the states mean\n",
            "".join(bullet(f"**{title_of(state)}**: {self.meanings[state]}") for state in self.table.states),
            "## Every cell\n",
            paragraph(self._legend()),
            self.as_markdown(),
        ]
        if self.notes:
            parts.append("## Notes\n")
            parts.append("".join(bullet(note) for note in self.notes))
        return "\n".join(parts)

    def as_mermaid(self) -> str:
        """The moves from state to state as a Mermaid state diagram."""
        steps = self.table.steps
        begins = f": {self.begins}" if self.begins else ""
        lines = ["stateDiagram-v2", f"    [*] --> {title_of(self.first)}{begins}"]
        reached: set[enum.Enum] = set()
        for state, row in steps.items():
            moves: dict[enum.Enum, list[str]] = {}
            for event, cell in row.items():
                if isinstance(cell, self.table.states):
                    moves.setdefault(cell, []).append(event.value)
            reached.update(moves)
            lines.extend(
                f"    {title_of(state)} --> {title_of(target)}: {', '.join(names)}" for target, names in moves.items()
            )
        lines.extend(f"    {title_of(state)} --> [*]" for state in reached if not steps[state])
        return "\n".join(lines) + "\n"

    def as_markdown(self) -> str:
        """Every cell, refusals included: a row per event, a column per state that any event leads out of."""
        table = self.table
        states = [state for state in table.states if table.steps[state]]
        lines = [
            "| event | " + " | ".join(title_of(state) for state in states) + " |",
            "|---|" + "---|" * len(states),
        ]
        for event in table.events:
            cells = [self._in_words(table.step(state, event)) for state in states]
            lines.append(f"| {event.value} | " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"

    def _legend(self) -> str:
        # Compared by identity: a state of an IntEnum may be equal to an error code.
        cells = [cell for row in self.table.steps.values() for cell in row.values()]
        sentences = [f"A name like `{title_of(self.first)}` is the next state."]
        if any(isinstance(cell, ErrorCode) and cell is not DONE for cell in cells):
            sentences.append("A name in capitals is the error code that the sender gets.")
        if any(cell is DONE for cell in cells):
            sentences.append("*done* is a success that changes nothing, because it repeats what is already so.")
        sentences.append(f"A blank cell {self.blank}.")
        return " ".join(sentences)

    def _in_words(self, cell: Any) -> str:
        if cell is self.table.blank:
            return ""
        if cell is DONE:
            return "*done*"
        return cell.name if isinstance(cell, ErrorCode) else title_of(cell)
