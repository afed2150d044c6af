"""Small entries that must survive a restart. Only who has read an entry's latest version can change it.

Guarantees:

- An update names the version it read. If the stored version is another, nothing changes and `Conflict` is raised.
- After a crash an update is there as a whole or not at all: written to a new file, fsynced, renamed, directory fsynced.
- An entry has a CRC-32C on its last line. A damaged entry is refused, and the error says what to do.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from crc32c import crc32c

from semel.environment import MACHINE
from semel.errors import ErrorCode, Refused
from semel.log.checkpoints import MANIFEST
from semel.log.files import Files

#: The entry that says which producer ids were handed out. Its name and its content are Kafka's.
PRODUCER_ID_BLOCK = "latest_producer_id_block"
#: The entry that says which topics there are.
TOPICS = "topics"
#: The entry with the users. It may be written before a broker's first start.
SCRAM_CREDENTIALS = "scram-credentials"


class DamagedStore(Refused):
    """A file that the broker needs is damaged or missing. The broker changes nothing."""

    def __init__(self, path: Path, what: str, remedy: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} {what}. Nothing was changed. {remedy}")
        self.path = path


class Conflict(Exception):
    """Somebody else changed the entry since it was read."""


class LocalMetadataStore:
    """One file per entry. Its lines: the entry's version, its JSON, the CRC-32C of both."""

    def __init__(
        self, directory: Path, files: Files, threads: Callable[[int, str], Executor] = MACHINE.threads
    ) -> None:
        self._directory = directory
        self._files = files
        self._new_threads = threads
        self._thread: Executor | None = None
        #: The directory is new, and its name not yet on disk.
        self._is_made = False

    def get(self, name: str) -> tuple[Any, int]:
        """The entry's value and version; (None, -1) when there is none. Raises `DamagedStore`."""
        path = self._directory / name
        try:
            data = self._files.read(path)
        except FileNotFoundError:
            return None, -1
        try:
            version, body, *rest = data.decode().split("\n")
            if any(rest):
                # Entries of earlier versions of Semel have no CRC-32C.
                checked = data[: data.rindex(b"\n", 0, len(data) - 1) + 1]
                if data[len(checked) :].rstrip(b"\n") != f"crc32c={crc32c(checked):08x}".encode():
                    raise ValueError("its CRC-32C does not match its bytes")
            value = json.loads(body)
            if not isinstance(value, (dict, list)):
                raise ValueError("it holds no list of values")
            return value, int(version)
        except (ValueError, RecursionError) as error:
            raise self.damage_error(name, str(error)) from None

    def update(self, name: str, value: Any, expected_version: int) -> int:
        """Replace the entry if it is still at `expected_version` (-1: it must not exist yet); the new version."""
        version = self._version(name)
        if version < expected_version:
            # Versions only rise: somebody removed the file, or put an older one in its place.
            raise FileNotFoundError(
                errno.ENOENT, "it was removed or put back under the running broker", str(self._directory / name)
            )
        if version != expected_version:
            raise Conflict(f"{name} is at version {version}, not {expected_version}")
        if not self._files.exists(self._directory):
            # Not before there is something to store: Apache Kafka starts on no directory that has one like this.
            # Passwords and keys may be among the settings.
            self._files.make_directory(self._directory, mode=0o700)
            self._is_made = True
        if self._is_made:
            # Its entries are durable, so its own name must be durable too. If this fails, the next update does it.
            self._files.sync_directory(self._directory.parent)
            self._is_made = False
        data = f"{version + 1}\n{_json(value)}\n".encode()
        self._files.replace(self._directory / name, data + f"crc32c={crc32c(data):08x}\n".encode())
        return version + 1

    def beside(self, work: Callable[[], int]) -> Future[int]:
        """Run a piece of work on the store's own thread, after those that were given before it."""
        if self._thread is None:
            self._thread = self._new_threads(1, "semel-metadata")
        return self._thread.submit(work)

    def close(self) -> None:
        """Let what is being written be written."""
        if self._thread is not None:
            self._thread.shutdown()

    def _version(self, name: str) -> int:
        """The entry's version, without reading the rest, which may be long."""
        try:
            return int(self._files.read_beginning(self._directory / name).partition(b"\n")[0])
        except FileNotFoundError:
            return -1
        except ValueError as error:
            raise self.damage_error(name, str(error)) from None

    def entries(self) -> list[str]:
        """The names of all entries."""
        names = self._files.names(self._directory) if self._files.exists(self._directory) else ()
        return sorted(name for name in names if not name.endswith(".tmp"))

    def require(self, names: Iterable[str]) -> None:
        """Refuse a start if one of these entries is missing: the last clean stop left all of them."""
        for name in sorted(names, key=lambda name: name != TOPICS):
            if not self._files.exists(self._directory / name):
                raise self.missing_error(name, "it was there when the broker last stopped")

    def damage_error(self, name: str, why: str) -> DamagedStore:
        """The error for an entry that is not what was written."""
        return DamagedStore(self._directory / name, f"is damaged: {why}", self._remedy(name, missing=False))

    def check_rest(self, read: Iterable[str]) -> None:
        """Check the entries that were not `read` yet: damage is reported at a start, not at the first use."""
        for name in sorted({*self.entries()} - {*read}):
            self.get(name)

    def missing_error(self, name: str, evidence: str) -> DamagedStore:
        """The error for an entry that is missing although something shows that it existed."""
        return DamagedStore(self._directory / name, f"is missing, but {evidence}", self._remedy(name, missing=True))

    def _remedy(self, name: str, *, missing: bool) -> str:
        """What to do about a damaged or missing entry, the best way first."""
        restore = "Restore it from a copy of the data directory."
        manifest = self._directory.parent / MANIFEST
        if name == PRODUCER_ID_BLOCK:
            block = '{"version":1,"broker":1,"block_start":"0","block_end":"999999999"}'
            return (
                f"{restore} Without one, write a file of two lines, 0 and {block}, whose block_end is above every "
                "producer id that was ever handed out: with an id that is handed out twice, one producer's records "
                "would be taken for another's."
            )
        if name == TOPICS:
            return (
                f"{restore} Without one, the records are still in the directories of the partitions, where `semel log "
                "dump --records` reads them; to begin without them, start on another data directory."
            )
        gone = f"remove {manifest}" if missing else f"remove it and {manifest}"
        return f"{restore} To continue without what it held instead, {gone}, start, and set it again."


def _json(value: Any, depth: int = 2) -> str:
    """As `json.dumps` without spaces, one element of an outer list or dict at a time.

    It may run on a thread. One call for a large value would keep the interpreter from the event loop.
    """
    if depth and type(value) is dict:
        return "{" + ",".join([f"{_json_of(key)}:{_json(part, depth - 1)}" for key, part in value.items()]) + "}"
    if depth and type(value) is list:
        return "[" + ",".join([_json(part, depth - 1) for part in value]) + "]"
    return _json_of(value)


_json_of = json.JSONEncoder(separators=(",", ":")).encode
