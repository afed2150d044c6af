"""Clients without manners: garbage, lengths that lie, requests cut off in the middle, answers that nobody reads.

They promise nothing and get nothing. What they must not do is harm the others, whom other workloads play.
"""

from __future__ import annotations

import asyncio

from semel.simulation.play import Actor, Play
from semel.simulation.workloads import Workload, workload
from semel.simulation.world import PORT


class _Rude(asyncio.BufferedProtocol):
    """Sends, and reads as long as it likes."""

    def __init__(self) -> None:
        self._buffer = bytearray(4096)
        self.is_open = True

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        return

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False


@workload("hostile")
class Hostile(Workload):
    """A few such clients."""

    def __init__(self, play: Play) -> None:
        super().__init__(play)
        for number in range(2):
            play.actor(f"hostile-{number}", self.attack)

    async def attack(self, actor: Actor) -> None:
        """Connect, misbehave, and connect again."""
        play, chance, loop = self.play, actor.chance, self.play.world.loop
        while not play.is_ending:
            try:
                async with asyncio.timeout(3):
                    transport, rude = await loop.create_connection(_Rude, play.a_broker(chance).machine.name, PORT)
            except (OSError, TimeoutError):
                await asyncio.sleep(0.3)
                continue
            for _ in range(chance.randint(1, 4)):
                transport.write(self._message(actor))
                if chance.random() < 0.2:
                    transport.pause_reading()
                await asyncio.sleep(chance.random() * 0.3)
            if rude.is_open and chance.random() < 0.7:
                transport.abort()
            play.counts["attacks"] += 1
            await asyncio.sleep(chance.random())

    def _message(self, actor: Actor) -> bytes:
        chance = actor.chance
        kind = chance.randrange(4)
        if kind == 0:
            return chance.randbytes(chance.randint(1, 300))
        if kind == 1:  # a length that lies
            return chance.choice((0x7FFFFFFF, 100_000, 3, 0, 0xFFFFFFFF)).to_bytes(4, "big") + chance.randbytes(40)
        if kind == 2:  # a frame of random bytes behind a header that is right
            body = chance.randrange(80).to_bytes(2, "big") + chance.randrange(14).to_bytes(2, "big")
            body += chance.randbytes(chance.randint(4, 120))
            return len(body).to_bytes(4, "big") + body
        # Somebody else's request, cut off or with its last bytes changed: a batch's CRC does not hold then. What is cut
        # off may be made whole by what is sent next, so it is none that must not come again.
        heard = self.play.requests_that_may_come_again()
        frame = chance.choice(heard) if heard else b"\0\0\0\4abcd"
        return frame[: chance.randint(1, len(frame) - 1)] if chance.random() < 0.5 else frame[:-3] + b"\xff\xff\xff"
