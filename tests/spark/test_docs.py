"""docs/spark.md and the README, held: their programs run, the tests they name exist, the options are understood."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.spark.source_options import KNOWN
from tests.support.pages import blocks_of
from tests.support.requirements import CHECKOUT

PAGE = (CHECKOUT / "docs" / "spark.md").read_text()


def test_every_test_the_page_names_is_there() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    found = set()
    for folder in ("spark", "machines/pipeline"):
        for path in (CHECKOUT / "tests" / folder).glob("test_*.py"):
            found |= set(re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE))
    assert len(named) > 15
    assert named - found == set()


#: What the design promises to survive, as words that the row of the page begins with.
PROMISED = [
    "a task", "an executor", "a zombie task after the abort", "a task runs twice (speculation)",
    "the driver dies before EndTxn", "the driver dies after EndTxn", "the answer to EndTxn is lost",
    "the transaction times out", "the broker stays away", "the broker is killed between produce and commit",
    "two drivers with one id", "the checkpoint is set back", "the checkpoint is lost, or another query uses the id",
]  # fmt: skip


def recovery_table() -> dict[str, list[str]]:
    """The cells of each row after the first, by the first."""
    section = PAGE.partition("## What fails, and what happens")[2].partition("\n## ")[0]
    rows = [line.strip("| \n").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {first: [cell.strip(" |") for cell in cells] for first, *cells in rows[1:]}


@pytest.mark.parametrize("what_fails", PROMISED)
def test_what_the_design_promises_to_survive_is_a_row_with_a_test(what_fails: str) -> None:
    assert re.findall(r"`test_\w+`", recovery_table()[what_fails][1])


def test_the_rows_that_claim_apache_kafka_name_a_test_that_runs_there() -> None:
    files = ("test_recovery.py", "test_on_apache_kafka.py")
    both, there = ((CHECKOUT / "tests" / "spark" / name).read_text() for name in files)
    on_kafka = set(re.findall(r"^def (test_\w+)", both + there, re.MULTILINE))
    on_kafka |= set(re.findall(r"on_semel\.(test_\w+)", there))
    claimed = {row: cells for row, cells in recovery_table().items() if cells[-1] == "yes"}
    assert len(claimed) >= 10
    for row, cells in claimed.items():
        assert on_kafka & set(re.findall(r"`(test_\w+)`", cells[1])), row


@pytest.mark.parametrize("option", KNOWN)
def test_every_option_of_the_source_is_on_the_page(option: str) -> None:
    assert f"`{option}`" in PAGE


def test_every_argument_of_start_is_on_the_page() -> None:
    pytest.importorskip("pyspark")
    from semel.spark import start

    named = set(re.findall(r"`(\w+)`", PAGE))
    assert set(inspect.signature(start).parameters) - {"frame"} - named == set()


def test_the_demo_ends_as_the_tutorial_says() -> None:
    """What it prints is held by `test_demo.py`."""
    assert "\nexactly once: yes\n" in (CHECKOUT / "docs" / "tutorial.md").read_text()


#: The programs of the pages, each with the address and the directory it names.
PROGRAMS = {
    "docs/spark.md": ("localhost:9092", "/data/checkpoints/ledger"),
    "README.md": ("127.0.0.1:9092", "/var/lib/ledger/checkpoint"),
}


@pytest.mark.spark
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", PROGRAMS)
def test_the_program_of_a_page_does_what_it_says(
    page: str, spark: Any, semel_broker: semel.Broker, tmp_path: Path
) -> None:
    address, checkpoint = PROGRAMS[page]
    servers = {"bootstrap.servers": semel_broker.bootstrap_servers}
    with semel.Admin(servers) as admin:
        admin.create_topic("ledger", partitions=1)
    with semel.Producer(servers) as producer:
        for number in range(3):
            producer.send("payments", f"payment {number}", key="alice")
    program = next(block.text for block in blocks_of(CHECKOUT / page) if "from semel.spark import" in block.text)
    for written, real in (
        (address, semel_broker.bootstrap_servers),
        (checkpoint, str(tmp_path / "checkpoint")),
        ("query.awaitTermination()", ""),
    ):
        program = program.replace(written, real)
    names: dict[str, Any] = {"spark": spark}
    exec(compile(program, page, "exec"), names)
    try:
        names["query"].processAllAvailable()
    finally:
        names["query"].stop()
    with semel.Consumer({**servers, "auto.offset.reset": "earliest"}) as consumer:
        consumer.assign([("ledger", 0)])
        found: list[str] = []
        while len(found) < 3:
            records = consumer.poll(30_000)
            assert records, "nothing more arrives"
            found += [record.value.decode().lower() for record in records if record.value is not None]
    assert found == ["payment 0", "payment 1", "payment 2"]
