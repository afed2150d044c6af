"""Work for other brokers: one piece is on its way to a broker at a time, and what comes meanwhile goes together.

A piece that fails, for whatever reason, is handed back. It never stops what comes after it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from semel.broker.durability import Spawn
from semel.errors import Disconnected

logger = logging.getLogger(__name__)

T = TypeVar("T")


class PeerQueues(Generic[T]):
    """`send` gets a broker and all that waits for it. If it raises, `failed` gets the same and the error."""

    def __init__(
        self,
        spawn: Spawn,
        send: Callable[[int, list[T]], Awaitable[None]],
        failed: Callable[[int, list[T], Exception], None],
    ) -> None:
        self._spawn, self._send, self._failed = spawn, send, failed
        #: What waits until the last piece is answered, by broker.
        self._waiting: dict[int, list[T]] = {}

    def add(self, broker: int, item: T) -> None:
        """Send this to a broker, now or with what waits for it."""
        waiting = self._waiting.get(broker)
        if waiting is None:
            waiting = self._waiting[broker] = []
            self._spawn(self._drain(broker))
        waiting.append(item)

    async def _drain(self, broker: int) -> None:
        try:
            while together := self._waiting[broker]:
                self._waiting[broker] = []
                try:
                    await self._send(broker, together)
                except Exception as error:
                    if not isinstance(error, Disconnected):
                        logger.exception("broker %d gave an answer that nobody expected", broker)
                    self._failed(broker, together, error)
        finally:
            del self._waiting[broker]
