"""Transfers between accounts, each a transaction over two partitions: the sum of what is committed stays zero."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict

from semel.client.cluster.cluster import Cluster
from semel.client.producer.producer import AsyncProducer
from semel.errors import KafkaError
from semel.simulation.play import PRODUCER_SETTINGS, Actor, Play
from semel.simulation.workloads import Workload, workload
from semel.simulation.workloads.reading import follow
from semel.testing.history import Ended, Ending, Outcome
from semel.wire.apis import ApiKey

TOPIC = "accounts"
PARTITIONS = 3
#: Faults that take nobody a second: no transaction times out because of them.
BRIEF = frozenset({"lost answers", "pieces", "reset"})
TRANSACTIONAL: dict[str, object] = {**PRODUCER_SETTINGS, "linger_ms": 0, "transaction_timeout_ms": 8_000}


async def end(play: Play, actor: Actor, producer: AsyncProducer, transaction: object, *, commit: bool) -> None:
    """End a transaction, and note what is known of its outcome."""
    if not commit:
        # Nobody ever asked to commit it, so nothing of it may ever be visible.
        play.note(Ended(actor.who, transaction, Outcome.FAILED))
        await producer.abort_transaction()
        return
    play.note(Ending(actor.who, transaction))
    for patience in range(4, -1, -1):
        try:
            await producer.commit_transaction()
            break
        except KafkaError as error:
            # After a timeout the commit goes on: ask again for its outcome.
            if not error.code.retriable or not patience:
                play.counts[f"commits of unknown fate: {error.code.name}"] += 1
                raise
    play.note(Ended(actor.who, transaction, Outcome.OK))
    play.counts["commits"] += 1


@workload("transfers")
class Transfers(Workload):
    """Each actor has a transactional id of its own, and keeps it through all its lives."""

    judged_topics = (TOPIC,)
    #: How many actors have each transactional id.
    sharing = 1

    def __init__(self, play: Play) -> None:
        super().__init__(play)
        self._prefix = type(self).__name__.lower()
        #: Commits that ended with an error although their time was not up.
        self.refused: list[str] = []
        for number in range(self.chance.randint(1, 3)):
            for twin in range(self.sharing):
                play.actor(f"{self._prefix}-{number}{'ab'[twin]}", self.transfer)
        play.actor(f"{self._prefix}-auditor", lambda actor: follow(self.play, actor, TOPIC, PARTITIONS))

    async def prepare(self) -> None:
        names = await self.play.admin(lambda admin: admin.list_topics())
        if TOPIC not in names:
            await self.play.admin(lambda admin: admin.create_topic(TOPIC, partitions=PARTITIONS))

    async def transfer(self, actor: Actor) -> None:
        """Make transfers, one after the other."""
        play, chance = self.play, actor.chance
        name = actor.name[:-1]
        async with play.clients.producer(**TRANSACTIONAL, transactional_id=name) as producer:
            if self.uses_old_protocol:
                producer._cluster.__class__ = OldCluster
            await producer.init_transactions()
            number = 0
            while not play.is_ending:
                number += 1
                transaction = (actor.who, number)
                await producer.begin_transaction()
                amount = chance.randint(1, 100)
                deliveries = []
                for _ in range(chance.choice((1, 1, 1, 3))):
                    one, two = chance.sample(range(PARTITIONS), 2)
                    for partition, signed in ((one, -amount), (two, amount)):
                        value = play.next_value(actor.who) + f" {signed}".encode()
                        place = play.sending(actor.who, TOPIC, partition, value, transaction)
                        deliveries.append((place, await producer.send(TOPIC, value, partition=partition)))
                    if chance.random() < 0.2:
                        await asyncio.sleep(chance.random() * 0.5)
                is_well = True
                for place, delivery in deliveries:
                    try:
                        play.sent(place, (await delivery).offset)
                    except KafkaError:
                        is_well = False
                if is_late := chance.random() < 0.03:
                    await asyncio.sleep(12)  # longer than its timeout
                try:
                    await end(play, actor, producer, transaction, commit=is_well and chance.random() < 0.8)
                except KafkaError as error:
                    if is_well and not is_late and self.sharing == 1:
                        self.refused.append(f"{transaction}: {error}")
                    raise
                await asyncio.sleep(chance.random() * 0.3)

    async def check(self, committed: dict[tuple[str, int], list[tuple[int, bytes | None, bytes | None]]]) -> None:
        total, by_life = 0, defaultdict[bytes, Counter[str]](Counter)
        for (topic, _), records in committed.items():
            if topic == TOPIC:
                for _, _, value in records:
                    assert value is not None
                    name, _, amount = value.partition(b" ")
                    total += int(amount)
                    by_life[name.rpartition(b".")[0]]["records"] += 1
        # A commit that is asked for again because its answer was lost gets the same answer.
        if self.refused and self.play.struck.keys() <= BRIEF and not self.play.is_cluster:
            self.play.world.violated(f"transfers: without a reason the end was refused: {self.refused[0]}")
        if total != 0:
            self.play.world.violated(f"transfers: the accounts have {total}, nobody put anything in")


class OldCluster(Cluster):
    """What a cluster looks like to a client from before KIP-890."""

    @property
    def transaction_version(self) -> int:
        return 1


@workload("transfers-v1")
class OldTransfers(Transfers):
    """Transfers of clients that know only the old protocol.

    Before KIP-890 all transactions of a producer have one epoch, so an EndTxn that arrives again ends whatever is open
    then, also in Apache Kafka: what was written so far is committed, and the rest may be aborted.
    """

    uses_old_protocol = True
    not_repeated = frozenset({ApiKey.END_TXN})


@workload("zombies")
class Zombies(Transfers):
    """Two actors share each transactional id, so each fences the other again and again."""

    sharing = 2
