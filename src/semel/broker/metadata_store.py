"""Small facts that must outlive the process, each changed only by whoever has read its latest version.

Guarantees:

- An update names the version it read. If the stored version is another, nothing changes and `Conflict` is raised.
- An update is whole or absent after a crash: written beside, fsynced, renamed, and the directory fsynced.
- Producer ids come in blocks that are claimed by such an update before the first id of the block is used, so a
  crash loses ids and never repeats one.
"""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

from semel.errors import ErrorCode, Refused
from semel.log.files import Files

logger = logging.getLogger(__name__)

PRODUCER_ID_BLOCK = "latest_producer_id_block"
PRODUCER_ID_BLOCK_SIZE = 1000
LAST_PRODUCER_ID = 2**63 - 1


class Conflict(Exception):
    """Somebody else changed the entry since it was read."""


class LocalMetadataStore:
    """One file per entry: the entry's version on the first line, its JSON on the second."""

    def __init__(self, directory: Path, files: Files) -> None:
        self._directory = directory
        self._files = files
        if not directory.exists():
            directory.mkdir(parents=True)
            # What is stored in it is durable; so must be its own name.
            files.sync_directory(directory.parent)

    def get(self, name: str) -> tuple[Any, int]:
        """The entry's value and version; (None, -1) when there is none."""
        path = self._directory / name
        try:
            text = path.read_text()
        except FileNotFoundError:
            return None, -1
        version, _, body = text.partition("\n")
        return json.loads(body), int(version)

    def update(self, name: str, value: Any, expected_version: int) -> int:
        """Replace the entry if it is still at `expected_version` (-1: it must not exist yet); the new version."""
        version = self._version(name)
        if version != expected_version:
            raise Conflict(f"{name} is at version {version}, not {expected_version}")
        self._files.replace(self._directory / name, f"{version + 1}\n{_json(value)}\n".encode())
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

    def __init__(self, store: LocalMetadataStore, broker: int) -> None:
        self._store = store
        self._broker = broker
        self._next = 0
        self._end = -1

    def take(self) -> int:
        """The next unused producer id."""
        if self._next > self._end:
            self._claim_block()
        taken = self._next
        self._next += 1
        return taken

    def _claim_block(self) -> None:
        while True:
            block, version = self._store.get(PRODUCER_ID_BLOCK)
            start = int(block["block_end"]) + 1 if block else 0
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
                self._store.update(PRODUCER_ID_BLOCK, claim, version)
            except Conflict:
                continue
            except OSError as error:
                raise Refused(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE, f"no block of producer ids could be claimed: {error}"
                ) from error
            self._next, self._end = start, end
            return
