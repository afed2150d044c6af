"""Transactional producers that are called from two places at once: one aborts what the other one sends.

Neither knows which transaction a record was in, so nothing is said about the records. But each transaction is all or
nothing in the files, nobody waits for ever, and every call ends well or with an error of the protocol.
"""

from __future__ import annotations

import asyncio
from functools import partial

from semel.client.producer.producer import AsyncProducer
from semel.errors import KafkaError, ProducerFenced
from semel.simulation.play import Actor, Play
from semel.simulation.workloads import Workload, workload
from semel.simulation.workloads.copying import create
from semel.simulation.workloads.transfers import TRANSACTIONAL, OldCluster

TOPIC = "by-two-callers"
PARTITIONS = 2


@workload("two-callers")
class TwoCallers(Workload):
    """Two actors share a transactional id and fence each other; each calls its producer from two places."""

    in_a_cluster = False
    #: One of the actors knows only the protocol before KIP-890.
    uses_old_protocol = True

    def __init__(self, play: Play) -> None:
        super().__init__(play)
        play.set_for_brokers({"transaction.two.phase.commit.enable": True})
        for number in range(self.chance.randint(1, 2)):
            play.actor(f"caller-{number}", self.call)

    async def prepare(self) -> None:
        await self.play.admin(partial(create, TOPIC, PARTITIONS))

    async def call(self, actor: Actor) -> None:
        """One producer after the other."""
        play, chance = self.play, actor.chance
        while not play.is_ending:
            # So little patience that records fail while something else is under way.
            settings = {**TRANSACTIONAL, "request_timeout_ms": 700, "delivery_timeout_ms": 1_000}
            if chance.random() < 0.3:
                settings["transaction_two_phase_commit_enable"] = True
                del settings["transaction_timeout_ms"]
            is_old = actor.name.endswith("-1")
            async with play.clients.producer(**settings, transactional_id="two-callers") as producer:
                if is_old:
                    producer._cluster.__class__ = OldCluster
                until = play.world.loop.time() + 1 + 4 * chance.random()
                await asyncio.gather(self._use(actor, producer, until), self._use(actor, producer, until))
                # What was left prepared would stay so for ever.
                try:
                    await producer.init_transactions()
                except KafkaError:
                    play.counts["callers ended in an error"] += 1
        async with play.clients.producer(**TRANSACTIONAL, transactional_id="two-callers") as last:
            await last.init_transactions()

    async def _use(self, actor: Actor, producer: AsyncProducer, until: float) -> None:
        play, chance = self.play, actor.chance
        while play.world.loop.time() < until:
            try:
                await self._call_one(actor, producer)
            except KafkaError as error:
                play.counts[f"callers: {type(error).__name__}"] += 1
                if isinstance(error, ProducerFenced) and chance.random() < 0.3:
                    return  # nothing will ever change that
            await asyncio.sleep(chance.choice((0.0, 0.001, 0.02, 0.2)))

    async def _call_one(self, actor: Actor, producer: AsyncProducer) -> None:
        chance = actor.chance
        what = chance.randrange(12)
        if what == 0:
            await producer.init_transactions(keep_prepared=chance.random() < 0.5)
        elif what < 4:
            await producer.begin_transaction()
        elif what < 8:
            size = 2_000_000 if chance.random() < 0.05 else 0  # more than the broker takes
            value = self.play.next_value(actor.who) + b" " * size
            delivery = await producer.send(TOPIC, value, partition=chance.randrange(PARTITIONS))
            if chance.random() < 0.5:
                await delivery
        elif what == 8:
            identity = await producer.prepare_transaction()
            await asyncio.sleep(chance.choice((0.0, 0.05, 0.5)))
            if chance.random() < 0.7:
                await producer.complete_transaction(identity)
        elif what == 9:
            await producer.commit_transaction()
        else:
            await producer.abort_transaction()
