"""Producer ids, none handed out twice.

Guarantees:

- Ids come in blocks. A block is claimed in the metadata store before its first id is used, so a crash loses ids and
  never repeats one.
- Two brokers over one store never get the same block: the slower one sees a `Conflict` and claims the next.
- If the entry is lost or put back, no id is handed out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from semel.broker.stored.entry import StoredEntry
from semel.broker.stored.metadata_store import PRODUCER_ID_BLOCK, Conflict, LocalMetadataStore
from semel.errors import ErrorCode, Refused

logger = logging.getLogger(__name__)

PRODUCER_ID_BLOCK_SIZE = 1000
LAST_PRODUCER_ID = 2**63 - 1


class ProducerIds:
    """Hands out producer ids, over any number of restarts."""

    def __init__(self, store: LocalMetadataStore, broker: int, highest_known: Callable[[], int] = lambda: -1) -> None:
        """`highest_known`: the highest id that is in use although no block was ever claimed."""
        self._store = store
        self._entry = StoredEntry(
            store,
            PRODUCER_ID_BLOCK,
            code=ErrorCode.COORDINATOR_NOT_AVAILABLE,
            failure="no block of producer ids could be claimed",
        )
        self._broker = broker
        self._highest_known = highest_known
        self._next = 0
        self._end = -1
        self._entry.read()
        #: The last version this broker knows. If the entry is ever older, ids would be handed out twice.
        self._claimed_version = self._entry.version

    def take(self) -> int:
        """The next unused producer id."""
        if self._next > self._end:
            self._claim_block()
        taken = self._next
        self._next += 1
        return taken

    def _first_free(self) -> int:
        """Where ids begin if no block was claimed: above all ids in use, also those that clients made up."""
        known = self._highest_known()
        if known < 0:
            return 0
        start = (known // PRODUCER_ID_BLOCK_SIZE + 1) * PRODUCER_ID_BLOCK_SIZE
        logger.warning("no block of producer ids was claimed, but id %d is in use: ids begin at %d", known, start)
        return start

    def _claim_block(self) -> None:
        while True:
            last = self._entry.read_as(lambda block: None if block is None else int(block["block_end"]))
            if self._entry.version < self._claimed_version:
                raise self._store.missing_error(PRODUCER_ID_BLOCK, "this broker has claimed a block")
            start = self._first_free() if last is None else last + 1
            end = start + PRODUCER_ID_BLOCK_SIZE - 1
            if end > LAST_PRODUCER_ID:
                why = f"producer ids are exhausted: the last block ended at {start - 1}, no id is left to hand out"
                logger.critical(
                    "%s. Producers that have an id continue, new ones are refused. Start a new data directory and copy "
                    "the topics into it.",
                    why,
                )
                raise Refused(ErrorCode.UNKNOWN_SERVER_ERROR, why)
            claim = {"version": 1, "broker": self._broker, "block_start": str(start), "block_end": str(end)}
            try:
                self._entry.replace(claim)
            except Conflict:
                continue
            self._claimed_version = self._entry.version
            self._next, self._end = start, end
            return
