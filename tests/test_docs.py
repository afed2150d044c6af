"""What the documentation says holds: the README's Python, the examples in docstrings, commands, links, files and tests.

`tests/test_docs_commands.py` runs the pages' shell sessions.
"""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import semel
from semel.cli import command_line
from tests.support.pages import blocks_of, name_of, pages
from tests.support.requirements import CHECKOUT

README = (CHECKOUT / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)

#: What a user imports from; examples in docstrings there are promises.
ROOMS = (
    "semel.broker.embedded",
    "semel.broker.embedded_security",
    "semel.client",
    "semel.config",
    "semel.errors",
    "semel.machines.security",
    "semel.records",
    "semel.testing",
)


def text(page: Path) -> str:
    return page.read_text()


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
    assert len(PYTHON) == 3
    exec(compile(PYTHON[0], "README.md", "exec"), {})
    assert capsys.readouterr().out == "[b'12.50']\n"


def test_the_readmes_test_is_a_test_that_passes(tmp_path: Path) -> None:
    (tmp_path / "test_readme.py").write_text(PYTHON[1])
    path = os.pathsep.join([str(CHECKOUT / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "."]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


COMMAND = re.compile(r"semel ((?:broker|topic|txn|log|group|pipeline|user|acl|cert) (?!ready)[a-z-]+)")
COMMANDS = sorted({found for page in pages() for found in COMMAND.findall(text(page))})


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_a_page_names_is_there(command: str) -> None:
    done = CliRunner().invoke(command_line(), [*command.split(), "--help"], prog_name="semel")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("Usage: semel " + command)


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for link, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]+))?\)", text(page)):
        target = page if not link else page.parent / link
        assert target.exists(), f"{name_of(page)} links to {link}"
        if heading:
            assert heading in headings(target), f"{name_of(page)} links to {link}#{heading}"


def headings(page: Path) -> set[str]:
    """The names that headings have in links."""
    titles = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_in_the_table_of_contents() -> None:
    contents = CHECKOUT / "docs" / "README.md"
    linked = {(contents.parent / link).resolve() for link in re.findall(r"\]\(([^)#:]+)\)", contents.read_text())}
    assert set((CHECKOUT / "docs").rglob("*.md")) - {contents} - linked == set()


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_the_blocks_of_a_page_are_of_a_kind_that_is_looked_at(page: Path) -> None:
    for block in blocks_of(page):
        place = f"{name_of(page)}:{block.line}"
        assert block.language in ("", "console", "diff", "mermaid", "properties", "python", "sh", "toml"), place
        if block.language == "python":
            compile(block.text, place, "exec")
        elif block.language == "sh":
            for line in block.text.splitlines():
                check_command(line.partition(" # ")[0].strip(), place)


def check_command(line: str, place: str) -> None:
    """A command that is not run names what is there: targets of the Makefile, modules, files and tests."""
    for target in re.findall(r"^make ([a-z]+)", line):
        assert re.search(rf"^{target}:", (CHECKOUT / "Makefile").read_text(), re.MULTILINE), f"{place}: {line}"
    for module in re.findall(r"python -m (tests[\w.]*|semel[\w.]*|bench[\w.]*)", line):
        assert importlib.util.find_spec(module) is not None, f"{place}: {line}"
    for path, test in re.findall(r"((?:tests|src|docs|examples|bench)/[\w./-]+)(?:::(\w+))?", line):
        assert (CHECKOUT / path).exists(), f"{place}: {line}"
        assert not test or f"def {test}(" in (CHECKOUT / path).read_text(), f"{place}: {line}"


#: `log/files.py`, `tests/broker/soak.py`, `machines/x.py: name`, `tests/x.py::test_name`, `tests/scenarios`
NAMED = re.compile(
    r"`((?:[\w.-]+/)*[\w.-]+\.(?:py|pyx|md|toml|sh)|(?:tests|src|docs|bench)/[\w/-]+)(?:(?:::|: ?)(\w+))?`"
)
ROOTS = (CHECKOUT, CHECKOUT / "src", CHECKOUT / "src" / "semel", CHECKOUT / "tests", CHECKOUT / "docs")


@pytest.mark.parametrize("page", [page for page in pages() if page.name != "CHANGELOG.md"], ids=name_of)
def test_the_files_that_a_page_names_are_there_with_what_it_names_in_them(page: Path) -> None:
    saved = {block.file_name for block in blocks_of(page)}
    saved |= set(re.findall(r"^wrote (\S+)$", text(page), re.MULTILINE))  # by a command of its session
    added = set(re.findall(r"^--- /dev/null\n\+\+\+ b/(.*)$", text(page), re.MULTILINE))
    for name, inside in NAMED.findall(text(page)):
        if name in saved | added:
            continue
        found = [root / name for root in ROOTS if (root / name).exists()]
        if "/" not in name:
            folders = [CHECKOUT / folder for folder in ("src", "tests", "scripts", "examples")]
            found += [path for folder in folders for path in folder.rglob(name)]
        assert found, f"{name_of(page)} names {name}"
        assert not inside or any(inside in path.read_text() for path in found), f"{name_of(page)}: {name}: {inside}"


#: `CoordinatorHost`, `Decision(reply, records, effects)`, `PartitionLog.append_marker`
CLASS = re.compile(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)+)(?:\.(\w+)|\([^`]*\))?`")


def test_the_classes_that_pages_name_are_there() -> None:
    sources = "\n".join(path.read_text() for room in ("src", "tests") for path in (CHECKOUT / room).rglob("*.py"))
    words = set(re.findall(r"\w+", sources))
    for page in pages():
        # The changelog names what was; the pages of docs/states are written from the code.
        if page.name != "CHANGELOG.md" and page.parent.name != "states":
            missing = {name for found in CLASS.findall(text(page)) for name in found if name and name not in words}
            assert missing == set(), f"{name_of(page)} names {sorted(missing)}"


def test_the_figures_of_the_readme_are_the_ones_that_were_measured() -> None:
    """Those of the whole bench, and those that were measured again later."""
    results = CHECKOUT / "bench" / "results"
    families = ("all", "security", "spark")
    rows = {name: re.findall(r"^\|.*", (results / f"{name}.md").read_text(), re.MULTILINE) for name in families}
    later = {row.split("|")[1]: row for row in rows["security"] + rows["spark"]}
    shown = README.partition("<!-- figures: begin -->")[2].partition("<!-- figures: end -->")[0]
    assert re.findall(r"^\|.*", shown, re.MULTILINE) == [later.get(row.split("|")[1], row) for row in rows["all"]]


def test_every_room_on_the_map_exists_and_every_room_is_on_the_map() -> None:
    page = (CHECKOUT / "docs" / "architecture.md").read_text()
    drawn = page.partition("## The room map")[2].split("```")[1]
    named = set(re.findall(r"^  (\w+)/", drawn, re.MULTILINE))
    there = {path.parent.name for path in (CHECKOUT / "src" / "semel").glob("*/__init__.py")}
    assert named == there
