"""Hands out records one by one, in the user's own thread.

Guarantees: a record counts as handed out only when it was returned; asking for the next one says that the last one is
done; anything that needs a `poll` first (a commit that is due, a rebalance, closing) interrupts the iteration.
"""

from __future__ import annotations

from collections.abc import Callable

from semel.client.consumer.fetcher import Ahead, ConsumerRecord, Fetcher
from semel.client.group.member import GroupMember


class Iteration:
    """The iteration over one consumer. Only `next_record` may be called from another thread than the loop's."""

    __slots__ = ("_ahead", "_fetcher", "_time", "member", "must_poll", "next_commit_at")

    def __init__(self, fetcher: Fetcher, time: Callable[[], float]) -> None:
        self._fetcher = fetcher
        self._time = time
        self._ahead: Ahead | None = None
        #: The group member, to be told that its user is alive.
        self.member: GroupMember | None = None
        #: Something needs a `poll` before the next record is handed out.
        self.must_poll = False
        #: When the next automatic commit is due, in the loop's time; None if there are none.
        self.next_commit_at: float | None = None

    def next_record(self) -> ConsumerRecord | None:
        """The next record; None if there is none at hand, or a `poll` is needed first."""
        ahead = self._ahead
        if ahead is None or self.must_poll or ahead.handed == len(ahead.records):
            return None
        if self.next_commit_at is not None and self._time() >= self.next_commit_at:
            return None
        if self.member is not None:
            self.member.alive()
        ahead.handed += 1
        return ahead.records[ahead.handed - 1]

    def look_ahead(self, most: int) -> list[Ahead]:
        """Have up to `most` records ready for `next_record`. The list is empty if none have arrived."""
        found = self._fetcher.look_ahead(most)
        for ahead in found:
            self._ahead = ahead
        return found

    def take_handed(self) -> None:
        """Move the positions to what was handed out."""
        if self._ahead is not None:
            self._fetcher.take_handed(self._ahead)

    def end(self) -> None:
        """Positions are about to change: drop the records that were looked ahead at."""
        self.take_handed()
        self._ahead = None
