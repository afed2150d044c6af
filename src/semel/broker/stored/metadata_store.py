"""Small facts that must outlive the process, each changed only by whoever has read its latest version.

Guarantees:

- An update names the version it read. If the stored version is another, nothing changes and `Conflict` is raised.
- An update is whole or absent after a crash: written beside, fsynced, renamed, and the directory fsynced.
- An entry carries a CRC-32C on a line of its own: one that is not what was written is refused, with what to do.
- Producer ids come in blocks that are claimed by such an update before the first id of the block is used, so a
  crash loses ids and never repeats one.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from crc32c import crc32c

from semel.errors import ErrorCode, Refused
from semel.log.checkpoints import MANIFEST
from semel.log.files import Files

logger = logging.getLogger(__name__)

PRODUCER_ID_BLOCK = "latest_producer_id_block"
PRODUCER_ID_BLOCK_SIZE = 1000
LAST_PRODUCER_ID = 2**63 - 1


#: The entry that says which topics there are.
TOPICS = "topics"


class DamagedStore(Refused):
    """A file of the data directory that a broker cannot do without is damaged or gone. Nothing is changed over it."""

    def __init__(self, path: Path, what: str, remedy: str) -> None:
        super().__init__(ErrorCode.KAFKA_STORAGE_ERROR, f"{path} {what}. Nothing was changed. {remedy}")
        self.path = path


class Conflict(Exception):
    """Somebody else changed the entry since it was read."""


class LocalMetadataStore:
    """One file per entry. Its lines: the entry's version, its JSON, the CRC-32C of both."""

    def __init__(self, directory: Path, files: Files) -> None:
        self._directory = directory
        self._files = files
        if not directory.exists():
            directory.mkdir(parents=True)
            # What is stored in it is durable; so must be its own name.
            files.sync_directory(directory.parent)

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
                # Entries of earlier versions have no such line.
                checked = data[: data.rindex(b"\n", 0, len(data) - 1) + 1]
                if data[len(checked) :].rstrip(b"\n") != f"crc32c={crc32c(checked):08x}".encode():
                    raise ValueError("its CRC-32C does not match its bytes")
            value = json.loads(body)
            if not isinstance(value, (dict, list)):
                raise ValueError("it holds no list of values")
            return value, int(version)
        except ValueError as error:
            raise self.damaged(name, str(error)) from None

    def update(self, name: str, value: Any, expected_version: int) -> int:
        """Replace the entry if it is still at `expected_version` (-1: it must not exist yet); the new version."""
        version = self._version(name)
        if version < expected_version:
            # Nobody takes a change back: somebody removed the file, or put an older one in its place.
            raise FileNotFoundError(
                errno.ENOENT, "it was removed or put back under the running broker", str(self._directory / name)
            )
        if version != expected_version:
            raise Conflict(f"{name} is at version {version}, not {expected_version}")
        data = f"{version + 1}\n{_json(value)}\n".encode()
        self._files.replace(self._directory / name, data + f"crc32c={crc32c(data):08x}\n".encode())
        return version + 1

    async def updated(self, name: str, value: Any, expected_version: int) -> int:
        """As `update`, beside the event loop; a value that is a function is called there. A disk that fails refuses."""

        def update() -> int:
            return self.update(name, value() if callable(value) else value, expected_version)

        try:
            return await asyncio.get_running_loop().run_in_executor(None, update)
        except OSError as error:
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"the change could not be written: {error}") from error

    def _version(self, name: str) -> int:
        """The entry's version without the rest of it, which may be long."""
        try:
            with open(self._directory / name, "rb") as file:
                return int(file.readline())
        except FileNotFoundError:
            return -1
        except ValueError as error:
            raise self.damaged(name, str(error)) from None

    def entries(self) -> list[str]:
        """The names of all entries there are."""
        return sorted(path.name for path in self._directory.iterdir() if path.suffix != ".tmp")

    def require(self, names: Iterable[str]) -> None:
        """Refuse to go on without one of these entries: the last clean stop left all of them."""
        for name in sorted(names, key=lambda name: name != TOPICS):
            if not (self._directory / name).exists():
                raise self.missing(name, "it was there when the broker last stopped")

    def damaged(self, name: str, why: str) -> DamagedStore:
        """An entry is not what was written."""
        return DamagedStore(self._directory / name, f"is damaged: {why}", self._remedy(name, missing=False))

    def check_rest(self, read: Iterable[str]) -> None:
        """Look at the entries that nobody has `read` yet: damage is told at a start, not when somebody first asks."""
        for name in sorted({*self.entries()} - {*read}):
            self.get(name)

    def missing(self, name: str, evidence: str) -> DamagedStore:
        """An entry is not there, and something else says that it was."""
        return DamagedStore(self._directory / name, f"is missing, but {evidence}", self._remedy(name, missing=True))

    def _remedy(self, name: str, *, missing: bool) -> str:
        """What to do about an entry; each way works, from the best to the worst."""
        restore = "Restore it from a copy of the data directory."
        manifest = self._directory.parent / MANIFEST
        if name == PRODUCER_ID_BLOCK:
            block = '{"version":1,"broker":1,"block_start":"0","block_end":"999999999"}'
            return (
                f"{restore} Without one, write a file of two lines, 0 and {block}, whose block_end is above every "
                "producer id that was ever given out: an id that is given out twice would take one producer's records "
                "for another's."
            )
        if name == TOPICS:
            return (
                f"{restore} Without one, the records are still in the directories of the partitions, where `semel log "
                "dump --records` reads them; to begin without them, start on another data directory."
            )
        gone = f"remove {manifest}" if missing else f"remove it and {manifest}"
        return f"{restore} To go on without what it held instead, {gone}, start, and set it again."


def _json(value: Any, depth: int = 2) -> str:
    """As `json.dumps` without spaces, one element of an outer list or dict at a time.

    An update may run beside the event loop, and a single call would keep the interpreter to itself however large the
    value is.
    """
    if depth and type(value) is dict:
        return "{" + ",".join([f"{_json_of(key)}:{_json(part, depth - 1)}" for key, part in value.items()]) + "}"
    if depth and type(value) is list:
        return "[" + ",".join([_json(part, depth - 1) for part in value]) + "]"
    return _json_of(value)


_json_of = json.JSONEncoder(separators=(",", ":")).encode


class ProducerIds:
    """Hands out producer ids, none twice, over any number of restarts."""

    def __init__(
        self, store: LocalMetadataStore, broker: int, highest_known: Callable[[], int] = lambda: -1
    ) -> None:
        """`highest_known`: the highest id that is in use although no block was ever claimed."""
        self._store = store
        self._broker = broker
        self._highest_known = highest_known
        self._next = 0
        self._end = -1
        #: As far as the blocks were known to be claimed: if the entry is ever older than that, ids would come twice.
        self._claimed_version = store.get(PRODUCER_ID_BLOCK)[1]

    def take(self) -> int:
        """The next unused producer id."""
        if self._next > self._end:
            self._claim_block()
        taken = self._next
        self._next += 1
        return taken

    def _first_free(self) -> int:
        """Where ids begin when no block was claimed: above those that are in use, whoever made them up."""
        known = self._highest_known()
        if known < 0:
            return 0
        start = (known // PRODUCER_ID_BLOCK_SIZE + 1) * PRODUCER_ID_BLOCK_SIZE
        logger.warning("no block of producer ids was claimed, yet id %d is in use: ids begin at %d", known, start)
        return start

    def _claim_block(self) -> None:
        while True:
            block, version = self._store.get(PRODUCER_ID_BLOCK)
            if version < self._claimed_version:
                raise self._store.missing(PRODUCER_ID_BLOCK, "this broker has claimed a block")
            start = int(block["block_end"]) + 1 if block else self._first_free()
            end = start + PRODUCER_ID_BLOCK_SIZE - 1
            if end > LAST_PRODUCER_ID:
                why = f"producer ids are exhausted: the last block ended at {start - 1}, no id is left to hand out"
                logger.critical(
                    "%s; producers that have one work on, new ones are refused. Start a new data directory and copy "
                    "the topics into it",
                    why,
                )
                raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, why)
            claim = {"version": 1, "broker": self._broker, "block_start": str(start), "block_end": str(end)}
            try:
                self._claimed_version = self._store.update(PRODUCER_ID_BLOCK, claim, version)
            except Conflict:
                continue
            except OSError as error:
                raise Refused(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no block of producer ids could be claimed: {error}"
                ) from error
            self._next, self._end = start, end
            return
