"""What a data directory remembers of its cluster's ZooKeeper: it shows when one of the two is an old copy (E12).

Guarantees:

- Before a life of the broker begins in ZooKeeper, its number is on disk here. So a directory that knows a smaller
  number than ZooKeeper is an older copy of itself, and a ZooKeeper that knows a smaller number than the directory is
  one.
- Some of the newest changes that this broker has seen are remembered as well, with ZooKeeper's number of each
  transaction. A ZooKeeper that does not have them was restored from before.
- A directory without the file, of a broker that has been in the cluster, has lost files: it counts as an older copy. A
  file that is there and cannot be read says nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

from crc32c import crc32c

from semel.cluster.session import NoNode, Stat, ZooKeeperSession
from semel.log.files import Files
from semel.machines.znodes import paths

logger = logging.getLogger(__name__)

LAST_LIFE = ".semel_life"
#: How many changes are remembered: some of the nodes may be deleted rightly.
MOST_SEEN = 8


class LastLife:
    """Of one data directory."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self.path = directory / LAST_LIFE
        #: The number of the last life (the broker epoch), and whether it has surely begun. None: not known.
        self.broker_epoch: int | None = None
        self.has_begun = False
        self.is_missing = False
        #: The end of the producer ids that this broker has claimed.
        self.producer_ids_end = 0
        #: Nodes that were there, with the transactions that changed them last.
        self.seen: dict[str, int] = {}
        self._least_seen = -1
        self._is_written = True
        self._one_at_a_time = asyncio.Lock()
        self._read()

    def _read(self) -> None:
        try:
            check, _, body = self._files.read(self.path).partition(b"\n")
            if int(check, 16) != crc32c(body):
                raise ValueError("its CRC-32C does not match its bytes")
            known: dict[str, Any] = json.loads(body)
            epoch, begun = int(known["broker_epoch"]), bool(known["begun"])
            end, seen = int(known["producer_ids_end"]), {str(path): int(at) for path, at in known["seen"].items()}
        except FileNotFoundError:
            self.is_missing = True
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("%s cannot be read, and says nothing: %s", self.path, error)
            return
        self.broker_epoch, self.has_begun, self.producer_ids_end, self.seen = epoch, begun, end, seen
        if len(seen) >= MOST_SEEN:
            self._least_seen = min(seen.values())

    # Notes

    def saw(self, path: str, stat: Stat) -> None:
        """A node is there, as it was changed last."""
        if stat.ephemeral_owner == 0 and stat.mzxid > self._least_seen and self.seen.get(path) != stat.mzxid:
            self.seen[path] = stat.mzxid
            self._is_written = False
            if len(self.seen) > MOST_SEEN:
                del self.seen[min(self.seen, key=self.seen.__getitem__)]
                self._least_seen = min(self.seen.values())

    async def claimed(self, producer_ids_end: int) -> None:
        """Before the first of these ids is given out."""
        self.producer_ids_end, self._is_written = max(self.producer_ids_end, producer_ids_end), False
        await self.write_down()

    async def begins(self, broker_epoch: int) -> None:
        """Before ZooKeeper is told."""
        self.broker_epoch, self.has_begun, self._is_written = broker_epoch, False, False
        await self.write_down()

    async def began(self) -> None:
        """ZooKeeper has it. Without this note an old ZooKeeper is noticed one life later: nothing stops because of it,
        and it is written with the next one."""
        self.has_begun, self._is_written = True, False
        try:
            await self.write_down()
        except OSError as error:
            logger.warning("%s cannot be written: %s", self.path, error)

    def forget(self) -> None:
        """What comes is compared with what this ZooKeeper has."""
        self.seen, self._least_seen, self.broker_epoch = {}, -1, None

    async def write_down(self) -> None:
        """What is new since the last time."""
        async with self._one_at_a_time:
            if self._is_written or self.broker_epoch is None:
                return
            known = {
                "broker_epoch": self.broker_epoch,
                "begun": self.has_begun,
                "producer_ids_end": self.producer_ids_end,
                "seen": self.seen,
            }
            self._is_written = True
            body = json.dumps(known).encode()
            data = b"%08x\n" % crc32c(body) + body
            try:
                await asyncio.get_running_loop().run_in_executor(None, self._files.replace, self.path, data)
            except OSError:
                self._is_written = False
                raise

    # Comparing

    def is_older_than(self, life_version: int) -> bool:
        """Whether this directory knows less of its broker than ZooKeeper, which knows this life of it: it was restored
        from a copy, or has lost files."""
        return self.is_missing or (self.broker_epoch is not None and life_version > self.broker_epoch)

    async def what_is_missing(self, session: ZooKeeperSession, broker_id: int) -> str:
        """What ZooKeeper does not have any more, in words; empty if it has everything that is remembered here."""
        if self.broker_epoch is None:
            return ""
        await session.sync("/")
        surely = self.broker_epoch if self.has_begun else self.broker_epoch - 1
        stat = await session.exists(paths.life(broker_id))
        if (-1 if stat is None else stat.version) < surely:
            return f"this broker has begun life {surely}, and there {'none' if stat is None else stat.version} is known"
        for path, changed_at in self.seen.items():
            try:
                _, stat = await session.get(path)
            except NoNode:
                continue  # deleted meanwhile, or not there yet: that cannot be told apart
            if stat.mzxid < changed_at:
                return f"{path} was changed by transaction {changed_at:#x}, and there {stat.mzxid:#x} is the last"
        return ""
