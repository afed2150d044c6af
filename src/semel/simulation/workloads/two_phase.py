"""Two-phase commit (KIP-939): another database decides, and the transaction follows, whoever dies in between."""

from __future__ import annotations

import asyncio

from semel.errors import KafkaError
from semel.machines.values import ProducerIdentity
from semel.simulation.play import Actor, Play
from semel.simulation.workloads import Workload, workload
from semel.simulation.workloads.transfers import TRANSACTIONAL
from semel.testing.history import Ended, Ending, Outcome

TOPIC = "prepared"
NOTHING = ProducerIdentity(-1, -1)


@workload("two-phase")
class TwoPhase(Workload):
    """The other database is a dictionary that survives everything: what it holds was decided."""

    judged_topics = (TOPIC,)

    def __init__(self, play: Play) -> None:
        super().__init__(play)
        play.set_for_brokers({"transaction.two.phase.commit.enable": True})
        #: By actor: the identity that the database has stored, and the transaction it belongs to.
        self.decided: dict[str, tuple[ProducerIdentity, object]] = {}
        play.actor("coordinator-0", self.write)

    async def prepare(self) -> None:
        await self.play.admin(lambda admin: admin.create_topic(TOPIC, partitions=2))

    async def write(self, actor: Actor) -> None:
        """First finish what an earlier life has left, as the database says."""
        play, chance = self.play, actor.chance
        settings = {**TRANSACTIONAL, "transaction_two_phase_commit_enable": True}
        del settings["transaction_timeout_ms"]
        async with play.clients.producer(**settings, transactional_id=actor.name) as producer:
            left = await producer.init_transactions(keep_prepared=True)
            identity, transaction = self.decided.get(actor.name, (NOTHING, None))
            if left is not None:
                await producer.complete_transaction(identity)
                if left == identity:
                    play.note(Ended(actor.who, transaction, Outcome.OK))
                    play.counts["prepared by another life"] += 1
            number = 0
            while not play.is_ending:
                number += 1
                transaction = (actor.who, number)
                await producer.begin_transaction()
                deliveries = []
                for partition in range(2):
                    value = play.next_value(actor.who)
                    place = play.sending(actor.who, TOPIC, partition, value, transaction)
                    deliveries.append((place, await producer.send(TOPIC, value, partition=partition)))
                try:
                    for place, delivery in deliveries:
                        play.sent(place, (await delivery).offset)
                    identity = await producer.prepare_transaction()
                except KafkaError:
                    play.note(Ended(actor.who, transaction, Outcome.FAILED))
                    await producer.abort_transaction()
                    continue
                if chance.random() < 0.7:
                    # From here on it is committed, whatever happens.
                    play.note(Ending(actor.who, transaction))
                    self.decided[actor.name] = identity, transaction
                else:
                    play.note(Ended(actor.who, transaction, Outcome.FAILED))
                    identity = NOTHING
                await asyncio.sleep(chance.choice((0.0, 0.2, 1.0)))
                await producer.complete_transaction(identity)
                if identity is not NOTHING:
                    play.note(Ended(actor.who, transaction, Outcome.OK))
                    play.counts["commits in two phases"] += 1
                await asyncio.sleep(chance.random() * 0.2)
