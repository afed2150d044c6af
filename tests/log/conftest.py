"""Logs that a test leaves as a crash would leave them do not keep their files open until the end of the run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.log.disk import close_below


@pytest.fixture(autouse=True)
def files_of_the_dead_are_closed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Do what the operating system does for a process that died: close what the test's directory has open.

    Many of these tests drop a log without closing it, because that is what they are about; they run in one process.
    """
    yield
    directory = request.node.funcargs.get("tmp_path")
    if directory is not None:
        close_below(directory)
