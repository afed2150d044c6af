"""Requests that arrive a second time, late and in another order: from a zombie, a proxy, a client that was restored."""

from __future__ import annotations

import asyncio
import random

from semel.simulation.disk import ProcessDied
from semel.simulation.faults import fault
from semel.simulation.play import Play


class _Deaf(asyncio.BufferedProtocol):
    """Sends, and does not care for answers."""

    def __init__(self) -> None:
        self._buffer = bytearray(4096)

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        return


#: Older requests do not arrive again: by then their producer may have been forgotten, as it should be.
OLDEST_S = 15.0


@fault("repeated requests", weight=3)
async def repeated_requests(play: Play, chance: random.Random) -> None:
    """Some of the last requests arrive again on a connection of their own."""
    since_s = play.world.loop.time() - OLDEST_S
    heard = play.requests_that_may_come_again(since_s)
    again = chance.sample(heard, min(len(heard), chance.randint(1, 20)))
    if chance.random() < 0.5:
        again = heard[-chance.randint(1, 6) :]
    process, target = play.world.process("ghost"), play.a_broker(chance).machine.name

    async def send() -> None:
        loop = play.world.loop
        try:
            transport, _ = await loop.create_connection(_Deaf, target, 9092)
        except OSError:
            return
        for frame in again:
            transport.write(frame)
            await asyncio.sleep(chance.choice((0.0, 0.0, 0.05, 0.5)))
        await asyncio.sleep(1)
        transport.abort()

    try:
        async with asyncio.timeout(10):
            await play.world.on(process, send())
    except (TimeoutError, ProcessDied):
        play.counts["repeats not sent"] += 1
    finally:
        process.die()
