"""The documentation's shell sessions, programs and changes to the sources are carried out, page by page."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.pages import Block, blocks_of, name_of, pages
from tests.support.requirements import CHECKOUT
from tests.support.shell import ShellSession, apply_diff, steps

#: What a change to the sources, and the tests it is tried with, may need.
COPIED = ("src", "tests", "docs", "scripts", "pyproject.toml", "README.md", "CONTRIBUTING.md", "CHANGELOG.md")
#: Its session needs Spark: tests/spark/test_pipeline_page.py carries it out.
ELSEWHERE = ("docs/pipeline.md",)
RUN = {
    page: blocks_of(page)
    for page in pages()
    if name_of(page) not in ELSEWHERE and any(block.language == "console" for block in blocks_of(page))
}


def copy_of_the_checkout(to: Path) -> None:
    to.mkdir()
    for name in COPIED:
        whole = CHECKOUT / name
        if whole.is_dir():
            shutil.copytree(whole, to / name, ignore=shutil.ignore_patterns("*.c", "*.egg-info"))
        else:
            shutil.copy(whole, to / name)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_what_a_page_tells_to_do_does_what_it_says(page: Path, tmp_path: Path) -> None:
    place = tmp_path / "session"
    changes_the_sources = any(block.language == "diff" for block in RUN[page])
    if changes_the_sources:
        copy_of_the_checkout(place)
    else:
        place.mkdir()
    source = (place if changes_the_sources else CHECKOUT) / "src"
    with ShellSession(place, tmp_path / "tools", source) as session:
        for block in RUN[page]:
            if block.file_name is not None:
                session.save(block)
            elif block.language == "diff":
                apply_diff(place, block.text)
            elif block.language == "console":
                session.run(block)


def a_session(tmp_path: Path) -> ShellSession:
    (tmp_path / "session").mkdir()
    return ShellSession(tmp_path / "session", tmp_path / "tools")


@pytest.mark.parametrize("untrue", ["$ echo one\ntwo\n", "$ false\n", "$ kill -9 $$\n"])
def test_a_session_that_does_something_else_is_seen(
    untrue: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.shell.COMMAND_S", 2.0)
    with a_session(tmp_path) as session, pytest.raises(AssertionError):
        session.run(Block("console", untrue, 1))


def test_a_session_may_leave_out_what_differs_and_be_killed(tmp_path: Path) -> None:
    with a_session(tmp_path) as session:
        session.run(Block("console", "$ echo begun at 12:30\nbegun at ...\n$ bash -c 'kill -9 $$'\nKilled\n", 1))


def test_a_session_is_commands_with_what_they_print() -> None:
    session = "$ one\na\nb\n$ two \\\n    --long\n$ three\nc\n"
    assert steps(session) == [("one", "a\nb\n"), ("two \\\n    --long", ""), ("three", "c\n")]


def test_a_change_that_no_longer_fits_is_seen(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one = 1\ntwo = 2\n")
    apply_diff(tmp_path, "--- a/a.py\n+++ b/a.py\n@@\n one = 1\n-two = 2\n+two = 3\n")
    assert (tmp_path / "a.py").read_text() == "one = 1\ntwo = 3\n"
    with pytest.raises(AssertionError, match="0 times"):
        apply_diff(tmp_path, "--- a/a.py\n+++ b/a.py\n@@\n-two = 2\n+two = 4\n")
