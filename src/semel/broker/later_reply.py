"""A reply that waits for other brokers, while its connection serves the next requests (P1).

Guarantees: the request is served when its handler returns, and its connection answers in order. Nothing runs for it
meanwhile: no task, no coroutine. Who finishes it encodes and writes the answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from semel.broker.net.connection import LaterAnswer
from semel.wire.frames import response_frame

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.meter import Measurement


class LaterReply:
    """What a handler returns instead of a reply. Somebody calls `finish` once."""

    __slots__ = ("_answer", "_call", "_measured", "_reply", "_waiting", "is_finished", "when_lost")

    def __init__(self, when_lost: Callable[[], None] | None = None) -> None:
        self.is_finished = False
        #: Called if the client is gone before.
        self.when_lost = when_lost
        self._reply: Any = None
        self._answer: LaterAnswer | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._call: Call | None = None
        self._measured: Measurement | None = None

    def finish(self, reply: Any) -> None:
        """This is the reply. Only the first counts."""
        if self.is_finished:
            return
        self.is_finished = True
        self._reply = reply
        if self._answer is not None:
            self._give(self._answer)
        elif self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def answer(self, call: Call, measured: Measurement | None) -> LaterAnswer:
        """For the connection: the answer that is given when this is finished."""
        self._call, self._measured = call, measured
        answer = self._answer = LaterAnswer(call.connection)
        answer.when_lost = self.when_lost
        if self.is_finished:
            self._give(answer)
        return answer

    def _give(self, answer: LaterAnswer) -> None:
        call, measured, reply = self._call, self._measured, self._reply
        assert call is not None
        if measured is not None:
            measured.count(reply)
        buffers = None if reply is None else response_frame(call.api_key, call.version, call.correlation_id, reply)
        if measured is not None:
            measured.finish()
        answer.give(buffers)

    async def wait(self) -> Any:
        """The reply, for somebody who waits for it."""
        if not self.is_finished:
            self._waiting = asyncio.get_running_loop().create_future()
            try:
                await self._waiting
            except asyncio.CancelledError:
                if self.when_lost is not None:
                    self.when_lost()
                raise
        return self._reply


async def result_of(reply: Any) -> Any:
    """The reply that a handler has returned, or that comes later."""
    if type(reply) is CoroutineType:
        reply = await reply
    return await reply.wait() if type(reply) is LaterReply else reply
