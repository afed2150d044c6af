"""What a pipeline.toml says when it was read, and the mistakes that were found in one."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .positions import nearest_line

HIDDEN = "[hidden]"


@dataclass(frozen=True, slots=True)
class Mistake:
    """One thing that is wrong: the key, its line in the file if there is one, and what to do."""

    key: str
    why: str
    line: int | None = None

    def text(self, file: str) -> str:
        """One line for a terminal or an editor: `pipeline.toml:12: output.ledger.topic: ...`."""
        where = file if self.line is None else f"{file}:{self.line}"
        return f"{where}: {self.key}: {self.why}" if self.key else f"{where}: {self.why}"


class FileMistakes(Exception):
    """The file cannot be run. `mistakes` are all that were found."""

    def __init__(self, file: str, mistakes: list[Mistake]) -> None:
        super().__init__("\n".join(mistake.text(file) for mistake in mistakes))
        self.file, self.mistakes = file, mistakes


@dataclass(frozen=True, slots=True)
class SourceTable:
    """`[source.NAME]`: what is read. NAME is its view in SQL."""

    name: str
    #: For `spark.readStream.options`, the kafka.* among them.
    options: dict[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True)
class OutputTable:
    """`[output.NAME]`: a topic, and the rows that go there if these are not all of the transform's."""

    name: str
    topic: str
    sql: str | None = None
    function: str | None = None


@dataclass(frozen=True, slots=True)
class DeadLettersTable:
    """`[dead_letters]`: a topic, and which rows of the source go there, by SQL or by a function."""

    topic: str
    when: str | None = None
    function: str | None = None


@dataclass(frozen=True, slots=True)
class PipelineFile:
    """A pipeline.toml without mistakes, as far as the file alone can tell."""

    path: Path
    transactional_id: str
    checkpoint: str
    sources: tuple[SourceTable, ...]
    outputs: tuple[OutputTable, ...]
    #: Of the sink's clients.
    kafka: dict[str, str] = field(repr=False)
    spark: dict[str, str] = field(repr=False)
    sql: str | None = None
    function: str | None = None
    dead_letters: DeadLettersTable | None = None
    trigger: dict[str, Any] | None = None
    #: The arguments of `semel.spark.start` that are numbers and words.
    arguments: dict[str, Any] = field(default_factory=dict)
    metrics_port: int | None = None
    secrets: frozenset[str] = field(default=frozenset(), repr=False)
    lines: dict[tuple[str, ...], int] = field(default_factory=dict, repr=False)

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of the brokers that the outputs are on."""
        return self.kafka["bootstrap.servers"]

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics that are written."""
        dead = () if self.dead_letters is None else (self.dead_letters.topic,)
        return (*(output.topic for output in self.outputs), *dead)

    def hide(self, text: str) -> str:
        """The text without any secret of the file."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
        return text

    def mistake(self, key: str, why: str) -> Mistake:
        """A mistake that was found later, with the line of its key."""
        return Mistake(key, self.hide(why), nearest_line(self.lines, tuple(key.split("."))))
