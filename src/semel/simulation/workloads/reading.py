"""A reader that several workloads have: it follows a topic from its beginning, and notes what it sees."""

from __future__ import annotations

from semel.simulation.play import CONSUMER_SETTINGS, Actor, Play
from semel.testing.history import Assigned, Poll, Reached, Seen


async def follow(play: Play, actor: Actor, topic: str, partitions: int, **settings: object) -> None:
    """Read committed records until the play ends."""
    places = [(topic, number) for number in range(partitions)]
    async with play.clients.consumer(**CONSUMER_SETTINGS, isolation_level="read_committed", **settings) as consumer:
        consumer.assign(places)
        play.note(Assigned(actor.who, frozenset(places)))
        play.note(Reached(actor.who, tuple((place, 0) for place in places)))
        while not play.is_ending:
            records = await consumer.poll(timeout_ms=500)
            seen = tuple(Seen(one.topic, one.partition, one.offset, one.value) for one in records)
            if seen:
                play.note(Poll(actor.who, seen))
