"""The manifest: a list of the files that a clean stop left, so that the next start notices what is missing.

A start after a clean stop scans nothing. It compares names and sizes instead, and the CRC-32C of small files. A segment
that was cut or removed is reported as damage; an index that has changed is rebuilt; a checkpoint of the data directory
is restored from the manifest. The manifest is set aside before a start begins to write, so it always describes the last
stop. A start without a manifest, or with a damaged one, goes by the files alone.

The manifest that was set aside serves a start after a crash. Files may have been written since, so no difference is
damage. But a list of aborted transactions has no checksum of its own: if its segment has the size that it had at the
stop and the list is another, it is rebuilt.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from semel.log.checkpoints import (
    CLEANER_OFFSETS,
    EXPECTED_FILES,
    LOG_START_OFFSETS,
    MANIFEST,
    MANIFEST_BEFORE,
    RECOVERY_POINTS,
)
from semel.log.damage import DamagedLog, missing_segment
from semel.log.file_names import LOG_SUFFIX, PASSING_SUFFIXES
from semel.log.files import Files

logger = logging.getLogger(__name__)

#: Small files of the data directory whose text is stored in the manifest.
KEPT_WHOLE = (LOG_START_OFFSETS, RECOVERY_POINTS, CLEANER_OFFSETS)


class FileMark(NamedTuple):
    """A file as it was left. The CRC-32C is None where it was not known."""

    size_bytes: int
    crc: int | None


Marks = dict[str, FileMark]


@dataclass(slots=True)
class Manifest:
    """A data directory as a clean stop left it."""

    #: Text of the checkpoints of the data directory.
    checkpoints: dict[str, str] = field(default_factory=dict)
    #: Entries of the metadata store.
    entries: list[str] = field(default_factory=list)
    #: Directory name of each partition -> its files, encoded.
    partitions: dict[str, str] = field(default_factory=dict)

    def of_partition(self, directory: str) -> Marks | None:
        """The files of a partition; None where nothing is known of them."""
        line = self.partitions.get(os.path.basename(directory))
        try:
            return None if line is None else decode_marks(line)
        except ValueError as error:
            logger.warning("%s is ignored for %s: %s. Its files are checked instead", MANIFEST, directory, error)
            return None


# One partition


def encode_marks(marks: Mapping[str, FileMark]) -> str:
    return " ".join(
        f"{name}:{mark.size_bytes}:{'' if mark.crc is None else format(mark.crc, '08x')}"
        for name, mark in sorted(marks.items())
    )


def decode_marks(line: str) -> Marks:
    """What `encode_marks` wrote; ValueError if it is something else."""
    marks = {}
    for word in line.split():
        name, size, crc = word.rsplit(":", 2)
        marks[name] = FileMark(int(size), int(crc, 16) if crc else None)
    return marks


def marks_of(files: Files, directory: str, known_crcs: Mapping[str, int], read: Iterable[str]) -> Marks:
    """Every file of a partition that was just closed, with the CRCs that are known and those of files to `read`."""
    marks = {}
    for name, size in files.sizes(directory).items():
        if name.endswith(PASSING_SUFFIXES) or name == EXPECTED_FILES:
            continue
        crc = crc32c(files.read(f"{directory}/{name}")) if name in read else known_crcs.get(name)
        marks[name] = FileMark(size, crc)
    return marks


def check_segments(directory: str, sizes: Mapping[str, int], expected: Marks) -> None:
    """Raise `DamagedLog` if a segment is not as long as it was left."""
    for name, mark in expected.items():
        if not name.endswith(LOG_SUFFIX):
            continue
        path, size = f"{directory}/{name}", sizes.get(name)
        if size is None:
            raise missing_segment(path, mark.size_bytes)
        if size != mark.size_bytes:
            what = f"it has {size} bytes, and had {mark.size_bytes} when the broker last stopped"
            raise DamagedLog(path, min(size, mark.size_bytes), what)


def known_crc(expected: Marks | None, name: str) -> int | None:
    """The CRC-32C a file was left with; None where it is not known."""
    mark = None if expected is None else expected.get(name)
    return None if mark is None else mark.crc


def differs(sizes: Mapping[str, int], expected: Marks) -> bool:
    """Whether any file is missing or has another size. Then opening the partition checks it more closely."""
    return any(sizes.get(name) != mark.size_bytes for name, mark in expected.items())


def is_as_left(files: Files, directory: str, name: str, expected: Marks | None) -> bool:
    """Whether a small file is unchanged; True where that is not known."""
    mark = None if expected is None else expected.get(name)
    if mark is None or mark.crc is None:
        return True
    try:
        data = files.read(f"{directory}/{name}")
    except FileNotFoundError:
        return False
    return len(data) == mark.size_bytes and crc32c(data) == mark.crc


def write_expected(files: Files, directory: str, expected: Marks) -> None:
    """Store the expected files with the partition: the next start has no manifest and must find the same damage."""
    path = f"{directory}/{EXPECTED_FILES}"
    data = _with_crc(encode_marks(expected) + "\n")
    try:
        if not (files.exists(path) and files.read(path) == data):
            files.replace(path, data)
    except OSError as error:
        logger.warning("%s cannot be written: %s", path, error)


def read_expected(files: Files, directory: str) -> Marks | None:
    """What `write_expected` wrote, if this partition was found damaged before."""
    path = f"{directory}/{EXPECTED_FILES}"
    if not files.exists(path):
        return None
    text = _without_crc(files.read(path))
    try:
        return decode_marks("?" if text is None else text)
    except ValueError:
        logger.warning("%s is ignored: it is not what was written", path)
        return None


def remove_expected(files: Files, directory: str) -> None:
    files.remove(f"{directory}/{EXPECTED_FILES}")


# The data directory


def write_manifest(files: Files, data_directory: Path | str, manifest: Manifest) -> None:
    for name in KEPT_WHOLE:
        path = os.path.join(data_directory, name)
        if files.exists(path):
            manifest.checkpoints[name] = files.read(path).decode()
    head = {"version": 1, "checkpoints": manifest.checkpoints, "entries": manifest.entries}
    lines = [json.dumps(head, separators=(",", ":"))]
    lines += [f"{name} {line}" for name, line in sorted(manifest.partitions.items())]
    files.replace(os.path.join(data_directory, MANIFEST), _with_crc("\n".join(lines) + "\n"))


def read_manifest(files: Files, data_directory: Path | str, name: str = MANIFEST) -> Manifest | None:
    """The manifest of the last clean stop; None where there is none, or a damaged one."""
    path = os.path.join(data_directory, name)
    if not files.exists(path):
        return None
    text = _without_crc(files.read(path))
    if text is None:
        logger.warning("%s is ignored: it is not what was written. The files are checked instead", path)
        return None
    try:
        return _decode_manifest(text)
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        # Its CRC is right, so somebody else wrote it: a later version, perhaps.
        logger.warning("%s is ignored: %s. The files are checked instead", path, error)
        return None


def _decode_manifest(text: str) -> Manifest:
    head, *lines = text.split("\n")
    stored = json.loads(head)
    if stored["version"] != 1:
        raise ValueError(f"version {stored['version']} is not known")
    checkpoints, entries = stored["checkpoints"], stored["entries"]
    for name in (*checkpoints, *checkpoints.values(), *entries):
        if not isinstance(name, str):
            raise ValueError(f"{name!r} is not text")
    return Manifest(checkpoints, entries, dict(line.split(" ", 1) for line in lines if line))


def set_manifest_aside(files: Files, data_directory: Path | str) -> None:
    """From now on files change."""
    path = os.path.join(data_directory, MANIFEST)
    if files.exists(path):
        files.rename(path, os.path.join(data_directory, MANIFEST_BEFORE))


def restore_checkpoints(files: Files, data_directory: Path | str, manifest: Manifest) -> None:
    """Restore checkpoints that are missing or changed. A wrong start offset would hide records, or bring deleted ones
    back."""
    for name, text in manifest.checkpoints.items():
        path = os.path.join(data_directory, name)
        found = files.read(path) if files.exists(path) else None
        if found != text.encode():
            what = "missing" if found is None else "not what was written at the last stop"
            logger.warning("%s is %s; it is written anew from %s", path, what, MANIFEST)
            files.replace(path, text.encode())


def _with_crc(text: str) -> bytes:
    data = text.encode()
    return data + f"crc32c={crc32c(data):08x}\n".encode()


def _without_crc(data: bytes) -> str | None:
    """The text before the last line; None when the CRC in that line does not match."""
    end = data.rfind(b"\ncrc32c=") + 1
    if end == 0 or data[end:] != f"crc32c={crc32c(data[:end]):08x}\n".encode():
        return None
    try:
        return data[:end].decode()
    except UnicodeDecodeError:
        return None


