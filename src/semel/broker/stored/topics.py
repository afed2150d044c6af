"""The topics there are, as the metadata store keeps them.

Guarantees:

- `rows` is what is on disk. A change that the disk refuses is not in it.
- A change on its way to the disk is never lost by one that is made meanwhile: the later one waits for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from semel.broker.stored.entry import StoredEntry
from semel.broker.stored.metadata_store import TOPICS, LocalMetadataStore

#: A topic as it is stored: its id, the number of its partitions, its own settings.
TopicRow = dict[str, Any]
#: Changed topics by name; None for one that is deleted.
TopicChanges = Mapping[str, TopicRow | None]


def topic_row(topic_id: object, partition_count: int, configs: Mapping[str, str]) -> TopicRow:
    """A topic as it is stored."""
    return {"id": str(topic_id), "partitions": partition_count, "configs": configs}


class StoredTopics:
    """The entry of the store, read once and replaced as a whole."""

    def __init__(self, store: LocalMetadataStore) -> None:
        self._entry = StoredEntry(store, TOPICS, failure="the metadata store cannot be written")
        self.rows: dict[str, TopicRow] = {}

    @property
    def version(self) -> int:
        """How often topics were changed, less one."""
        return self._entry.version

    def read(self) -> Any:
        """What is stored, not checked yet; None if nothing is."""
        return self._entry.read()

    def save(self, changes: TopicChanges) -> None:
        """Store changes now, after those that are on their way to the disk."""
        self._entry.wait()
        self._entry.replace(self._value(changes))
        self._apply(changes)

    async def save_beside(self, changes: TopicChanges, first: Callable[[], object] | None = None) -> None:
        """Store changes beside the event loop, and do `first` there before. One such call at a time."""
        await self._entry.replace_beside(self._value(changes), first=first, then=partial(self._apply, changes))

    def _value(self, changes: TopicChanges) -> dict[str, Any]:
        rows = {**self.rows, **changes}
        return {"version": 1, "topics": {name: row for name, row in rows.items() if row is not None}}

    def _apply(self, changes: TopicChanges) -> None:
        for name, row in changes.items():
            if row is None:
                self.rows.pop(name, None)
            else:
                self.rows[name] = row
