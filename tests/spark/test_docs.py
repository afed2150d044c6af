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
