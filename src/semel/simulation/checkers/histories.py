"""At rest: reads everything back, gives the history to the judge, and lets each workload check what it knows."""

from __future__ import annotations

from semel.simulation.checkers import AT_REST
from semel.simulation.play import CONSUMER_SETTINGS, Play
from semel.testing.history import Assigned, Poll, Reached, Seen, judge

Committed = dict[tuple[str, int], list[tuple[int, bytes | None, bytes | None]]]


async def read_back(play: Play, topics: tuple[str, ...]) -> Committed:
    """Everything that a reader of committed records sees, noted in the history as well."""
    found: Committed = {}

    async def read() -> None:
        async with play.clients.consumer(**CONSUMER_SETTINGS, isolation_level="read_committed") as consumer:
            for topic in topics:
                places = [(one.topic, one.partition) for one in await consumer.partitions_for(topic)]
                consumer.assign(places)
                consumer.seek_to_beginning(places)
                begins = {place: await consumer.position(place) for place in places}
                play.note(Assigned("last", frozenset(places)))
                play.note(Reached("last", tuple(begins.items())))
                ends = {(one.topic, one.partition): end for one, end in (await consumer.end_offsets(places)).items()}
                found.update({place: [] for place in places})
                positions = dict(begins)
                while any(positions[place] < ends[place] for place in places):
                    records = await consumer.poll(timeout_ms=500)
                    seen = tuple(Seen(one.topic, one.partition, one.offset, one.value) for one in records)
                    play.note(Poll("last", seen))
                    for one in records:
                        found[one.topic, one.partition].append((one.offset, one.key, one.value))
                    positions = {place: await consumer.position(place) for place in places}
                play.note(Reached("last", tuple(positions.items())))

    process = play.world.process("last-reader")
    try:
        await play.world.on(process, read())
    finally:
        process.die()
    return found


async def judge_history(play: Play) -> None:
    """R and G: what clients saw has no anomaly."""
    topics = tuple(dict.fromkeys(topic for workload in play.workloads for topic in workload.judged_topics))
    committed = await read_back(play, topics)
    for anomaly in judge(play.history, at_rest=True)[:5]:
        play.world.violated(f"history: {anomaly}")
    for workload in play.workloads:
        await workload.check(committed)


AT_REST["history"] = judge_history
