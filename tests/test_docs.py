"""What the documentation says is run: the README's Python, the examples in docstrings, the commands it names."""

from __future__ import annotations

import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import semel

CHECKOUT = Path(__file__).resolve().parents[1]
README = (CHECKOUT / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)

#: What a user imports from; examples in docstrings there are promises.
ROOMS = ("semel.broker.embedded", "semel.client", "semel.config", "semel.errors", "semel.records", "semel.testing")


def public_modules() -> list[str]:
    names = ["semel", *ROOMS]
    for room in ROOMS:
        path = getattr(importlib.import_module(room), "__path__", ())
        names += [module.name for module in pkgutil.walk_packages(path, f"{room}.") if "_speedups" not in module.name]
    return names


def examples_of(name: str) -> list[doctest.DocTest]:
    """In the order of the source: a consumer may read what the producer above it wrote."""
    found = doctest.DocTestFinder().find(importlib.import_module(name))
    return sorted((test for test in found if test.examples), key=lambda test: test.lineno or 0)


@pytest.mark.parametrize("name", [name for name in public_modules() if examples_of(name)])
def test_examples_in_docstrings_are_true(name: str, semel_broker) -> None:
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in examples_of(name):
        test.globs.update(broker=semel_broker.bootstrap_servers, semel=semel)
        runner.run(test)
    assert runner.summarize().failed == 0


def test_the_first_python_of_the_readme_does_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(PYTHON[0], "README.md", "exec"), {})
    assert capsys.readouterr().out == "[b'12.50']\n"


def test_the_readmes_test_is_a_test_that_passes(tmp_path: Path) -> None:
    (tmp_path / "test_readme.py").write_text(PYTHON[1])
    path = os.pathsep.join([str(CHECKOUT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "."]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


def test_every_python_in_the_readme_compiles() -> None:
    assert len(PYTHON) == 3
    for block in PYTHON:
        compile(block, "README.md", "exec")


@pytest.mark.parametrize("command", sorted(set(re.findall(r"semel ((?:broker|topic|txn|log|group) [a-z]+)", README))))
def test_every_command_that_the_readme_names_is_there(command: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT / "src")}
    words = [sys.executable, "-m", "semel", *command.split(), "--help"]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=30)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("Usage: semel " + command)


def test_links_between_documents_lead_somewhere() -> None:
    for document in [CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md", *sorted((CHECKOUT / "docs").glob("*.md"))]:
        for link in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / link).exists(), f"{document.name} links to {link}"


def test_the_figures_of_the_readme_are_the_ones_that_were_measured() -> None:
    measured = (CHECKOUT / "bench" / "results" / "all.md").read_text()
    shown = README.partition("<!-- figures: begin -->")[2].partition("<!-- figures: end -->")[0]
    assert re.findall(r"^\|.*", shown, re.MULTILINE) == re.findall(r"^\|.*", measured, re.MULTILINE)


def test_every_room_on_the_map_exists_and_every_room_is_on_the_map() -> None:
    drawn = (CHECKOUT / "docs" / "architecture.md").read_text().split("```")[1]
    named = set(re.findall(r"^  (\w+)/", drawn, re.MULTILINE))
    there = {path.parent.name for path in (CHECKOUT / "src" / "semel").glob("*/__init__.py")}
    assert named == there
