"""Names in a data directory: a killed process may have made them without the fsync that keeps them."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from uuid import uuid4

import pytest

from semel.broker.data_directory import METADATA, DataDirectory
from semel.broker.stored.metadata_store import LocalMetadataStore
from semel.config import ConfigError
from semel.log.checkpoints import CLEAN_SHUTDOWN
from semel.log.files import Files
from semel.log.manifest import Manifest


class Synced(Files):
    """Notes which directories are fsynced; the first `failing` times that fails."""

    def __init__(self, failing: int = 0) -> None:
        super().__init__()
        self.directories: list[str] = []
        self.failing = failing

    def sync_directory(self, path: str | os.PathLike[str]) -> None:
        if self.failing:
            self.failing -= 1
            raise OSError(errno.EIO, "input/output error", os.fspath(path))
        self.directories.append(os.fspath(path))
        super().sync_directory(path)


def start(path: Path, files: Files) -> DataDirectory:
    return DataDirectory(path, 1, None, files, uuid4)


@pytest.mark.parametrize("was_clean", [True, False])
def test_a_start_fsyncs_the_names_that_it_found(tmp_path: Path, was_clean: bool) -> None:
    """Whoever made a partition's directory, removed the mark of a clean stop or renamed an entry of the store may have
    been killed before its fsync."""
    first = start(tmp_path, Files())
    LocalMetadataStore(tmp_path / METADATA, Files()).update("entry", {}, -1)
    if was_clean:
        first.close_cleanly(Manifest())
    first.unlock()
    files = Synced()
    second = start(tmp_path, files)
    assert second.open_for_writing() is was_clean
    second.unlock()
    assert not (tmp_path / CLEAN_SHUTDOWN).exists()
    assert {str(tmp_path), str(tmp_path / METADATA)} <= set(files.directories)


def test_a_first_start_after_one_that_was_killed_fsyncs_the_name_of_the_directory(tmp_path: Path) -> None:
    """Else a power failure takes all of it."""
    path = tmp_path / "semel" / "data"
    path.mkdir(parents=True)  # and killed here
    files = Synced()
    start(path, files).unlock()
    assert {str(tmp_path / "semel"), str(tmp_path)} <= set(files.directories)
    files = Synced()
    start(path, files).unlock()
    assert files.directories == [], "what is above a directory that is in use is nobody's concern"


def test_the_name_of_the_store_is_fsynced_although_the_first_try_failed(tmp_path: Path) -> None:
    files = Synced(failing=1)
    store = LocalMetadataStore(tmp_path / METADATA, files)
    with pytest.raises(OSError, match="input/output"):
        store.update("entry", {}, -1)
    store.update("entry", {}, -1)
    assert files.directories[0] == str(tmp_path)


class OfAnotherUser(Files):
    def lock(self, path: str | os.PathLike[str]) -> int:
        raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))


def test_a_directory_that_this_user_may_not_write_is_told_with_the_setting(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="let this user write there, or name another directory"):
        start(tmp_path, OfAnotherUser())
