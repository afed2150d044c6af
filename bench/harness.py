"""What every bench family shares: servers started alike, runs that alternate, ratios by round, and a kept table.

A family is a function that measures one running server and returns a number per row. The harness starts Apache Kafka
and Semel in turn, each alone on the machine and each with an empty data directory, as often as there are rounds; the
one that goes first changes every round. A ratio is taken within a round, and the median of the rounds is reported, so
a slow minute of the machine falls on both.
"""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.apache_kafka import ApacheKafka
from tests.support.processes import BrokerProcess, Process
from tests.support.requirements import CHECKOUT

#: As Kafka's own start script runs it.
KAFKA_JVM = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
)

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. The goal bounds the ratio Semel / Kafka, or Semel's own figure where `alone` is set, or
    the figure on each of the two where `each` is set: it is then itself a ratio. A row without a goal explains another.
    """

    name: str
    unit: str
    goal: float | None
    higher_is_better: bool
    alone: bool = False
    each: bool = False

    def met_by(self, figure: float) -> bool:
        if self.goal is None:
            return True
        return figure >= self.goal if self.higher_is_better else figure <= self.goal

    @property
    def goal_text(self) -> str:
        if self.goal is None:
            return ""
        bound = f"{'>=' if self.higher_is_better else '<='} {self.goal:,.4g}"
        return f"{bound} {self.unit}" if self.alone else f"{bound}x"


@dataclass(slots=True)
class Server:
    """A server under measurement; `launch` and `stop` let a family time its start."""

    kind: str
    semel: BrokerProcess | None = None
    kafka: ApacheKafka | None = None

    @property
    def _server(self) -> BrokerProcess | ApacheKafka:
        server = self.semel or self.kafka
        assert server is not None
        return server

    @property
    def bootstrap_servers(self) -> str:
        return self._server.bootstrap_servers

    @property
    def process(self) -> Process:
        return self._server.running

    def launch(self) -> Process:
        """Starts the process without waiting until it is ready; a data directory is prepared beforehand."""
        if self.kafka is not None:
            self.kafka.format()
        return self._server.launch()

    def start(self) -> None:
        self._server.start()


@dataclass(frozen=True, slots=True)
class Family:
    """Rows that are measured together. `starts_itself` where the start is part of what is measured."""

    name: str
    rows: tuple[Row, ...]
    measure: Callable[[Any], dict[str, float]]
    starts_itself: bool = False
    semel_alone: bool = False
    rounds: int = 3
    #: The module that is run as Semel's broker.
    module: str = "semel"
    #: What is measured if it is not one broker: by its kind, "semel" or "kafka".
    servers: Callable[[str], AbstractContextManager[Any]] | None = None


@dataclass(slots=True)
class Outcome:
    """All that was measured of one row."""

    row: Row
    semel: list[float] = field(default_factory=list)
    kafka: list[float] = field(default_factory=list)

    @property
    def figure(self) -> float:
        """What the goal is held against: the median ratio, Semel's median if it is alone, or the worse median."""
        if self.row.alone:
            return statistics.median(self.semel)
        if self.row.each:
            worst = max if not self.row.higher_is_better else min
            return worst(statistics.median(self.semel), statistics.median(self.kafka))
        return statistics.median(ours / theirs for ours, theirs in zip(self.semel, self.kafka, strict=True))

    @property
    def met(self) -> bool:
        return self.row.met_by(self.figure)


@contextmanager
def server(kind: str, module: str = "semel") -> Iterator[Server]:
    """A server of one kind with an empty data directory, not started yet; gone without a trace afterwards."""
    directory = Path(tempfile.mkdtemp(prefix=f"bench-{kind}-"))
    try:
        if kind == "kafka":
            with_kafka = ApacheKafka(jvm=KAFKA_JVM, directory=directory)
            try:
                yield Server(kind, kafka=with_kafka)
            finally:
                with_kafka.close()
        else:
            broker = BrokerProcess(directory / "data", module=module)
            try:
                yield Server(kind, semel=broker)
            finally:
                broker.close()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def run(family: Family, say: Callable[[str], None]) -> list[Outcome]:
    outcomes = {row.name: Outcome(row) for row in family.rows}
    for number in range(family.rounds):
        kinds = ["semel"] if family.semel_alone else ["kafka", "semel"]
        for kind in kinds if number % 2 == 0 else reversed(kinds):
            with family.servers(kind) if family.servers else server(kind, family.module) as under_test:
                if not family.starts_itself:
                    under_test.start()
                figures = family.measure(under_test)
            said = ", ".join(f"{name} {figure:,.4g}" for name, figure in figures.items())
            say(f"  {family.name} round {number + 1} {kind}: {said}")
            for name, figure in figures.items():
                outcome = outcomes[name]
                (outcome.semel if kind == "semel" else outcome.kafka).append(figure)
    return list(outcomes.values())


def machine() -> dict[str, str]:
    """What the figures were measured on."""
    model = "unknown"
    information = Path("/proc/cpuinfo")
    if information.exists():
        named = [line for line in information.read_text().splitlines() if line.startswith("model name")]
        model = named[0].partition(":")[2].strip() if named else platform.machine()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    java = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr.splitlines()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=CHECKOUT)
    versions = {name: importlib.metadata.version(name) for name in ("confluent-kafka", "uvloop")}
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "semel": commit.stdout.strip() or "unknown",
        "kafka": "Apache Kafka 4.3.1, KRaft, one node, -Xmx1G; in the rows of three brokers three nodes, -Xmx512m each",
        "cpu": f"{model}, {len(os.sched_getaffinity(0))} cores",
        "memory": f"{memory:.1f} GiB",
        # More than the bench itself puts on the machine means that it was not alone, and its figures say less.
        "load average": " ".join(f"{load:.1f}" for load in os.getloadavg()),
        "system": f"{platform.system()} {platform.machine()}",
        "python": sys.version.split()[0],
        "java": java[0] if java else "unknown",
        **versions,
    }


def readable(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 1000 else f"{figure:.3g}"


def table(outcomes: list[Outcome]) -> str:
    """The figures as a Markdown table."""
    lines = ["| measured | unit | Semel | Kafka | ratio | goal | |", "|---|---|--:|--:|--:|--:|---|"]
    for outcome in outcomes:
        row = outcome.row
        kafka = readable(statistics.median(outcome.kafka)) if outcome.kafka else ""
        ratio = "" if row.alone or row.each else f"{outcome.figure:.3g}x"
        semel = readable(statistics.median(outcome.semel))
        verdict = "" if row.goal is None else "met" if outcome.met else "**missed**"
        lines.append(f"| {row.name} | {row.unit} | {semel} | {kafka} | {ratio} | {row.goal_text} | {verdict} |")
    return "\n".join(lines)


def keep(outcomes: list[Outcome], name: str) -> Path:
    """Writes the table and its raw figures to `bench/results`; the Markdown file's path."""
    RESULTS.mkdir(exist_ok=True)
    about = machine()
    raw: dict[str, object] = {}
    for outcome in outcomes:
        raw[outcome.row.name] = {
            "unit": outcome.row.unit,
            "semel": outcome.semel,
            "kafka": outcome.kafka,
            "figure": outcome.figure,
            "goal": outcome.row.goal_text,
            "met": outcome.met,
        }
    path = RESULTS / f"{name}.md"
    path.with_suffix(".json").write_text(json.dumps({"machine": about, "rows": raw}, indent=1) + "\n")
    described = "\n".join(f"- {key}: {value}" for key, value in about.items())
    explained = "Each figure is the median of its rounds; a ratio is taken within a round."
    path.write_text(f"# Bench: {name}\n\n{table(outcomes)}\n\n{explained}\n\n{described}\n")
    return path
