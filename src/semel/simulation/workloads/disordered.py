"""Requests of transactions in any order, by two clients that share an id and believe anything of each other.

They begin and end transactions that are not theirs, end them twice, with the old protocol and with the new one, and do
not wait for what they asked before. What becomes of their transactions is nobody's business: each request must be
answered, the files must be as they have to be, and nothing may stay open at the end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from semel.client.cluster.cluster import Cluster, Coordinator
from semel.errors import ErrorCode, KafkaError
from semel.machines.transactions import requests
from semel.machines.values import ProducerIdentity, TopicPartition
from semel.simulation.event_loop import PROCESS
from semel.simulation.play import CLIENT_SETTINGS, Actor, Play
from semel.simulation.workloads import Workload, workload
from semel.wire.apis import INIT_PRODUCER_ID_TWO_PHASE_VERSION
from semel.wire.messages.transactions import EndTxnResponse, InitProducerIdResponse

TOPIC = "disordered"
PARTITIONS = 2
TRANSACTIONAL_ID = "disorder"
TIMEOUT_MS = 4_000
#: Longer than the broker holds a request back for the markers before it.
PATIENCE_MS = 8_000


@workload("disordered")
class Disordered(Workload):
    """Both clients know the last few identities of the id."""

    uses_old_protocol = True
    in_a_cluster = False

    def __init__(self, play: Play) -> None:
        super().__init__(play)
        play.set_for_brokers({"transaction.two.phase.commit.enable": True})
        self.known: deque[ProducerIdentity] = deque([requests.NO_IDENTITY], maxlen=3)
        #: The last end that anybody asked for.
        self.last_end: requests.Send | None = None
        for number in range(2):
            play.actor(f"disorder-{number}", self.ask)

    async def prepare(self) -> None:
        await self.play.admin(lambda admin: admin.create_topic(TOPIC, partitions=PARTITIONS))

    async def ask(self, actor: Actor) -> None:
        """Ask for this and that."""
        play, chance = self.play, actor.chance
        settings = {name.replace("_", "."): value for name, value in CLIENT_SETTINGS.items()}
        process = PROCESS.get()
        assert process is not None
        async with Cluster({**play.clients.settings, **settings}, environment=process.environment) as cluster:
            while not play.is_ending:
                # Each on a connection of its own: on one, an answer waits for those before it.
                begun = [
                    asyncio.ensure_future(self._send(cluster, actor, f"lane {number}"))
                    for number in range(chance.choice((1, 1, 1, 4)))
                ]
                await asyncio.wait(begun)
                await asyncio.sleep(chance.random() * 0.3)

    def _drawn(self, actor: Actor) -> requests.Send:
        chance = actor.chance
        identity = self.known[-1] if chance.random() < 0.6 else chance.choice(list(self.known))
        what = chance.choice(("init", "keep", "add", "add", "end", "end", "end", "again"))
        if what == "again" and self.last_end is not None:
            return self.last_end
        if what == "init":
            identity = identity if chance.random() < 0.3 else requests.NO_IDENTITY
            return requests.init_producer_id(TRANSACTIONAL_ID, identity, TIMEOUT_MS)
        if what == "keep":
            kept = requests.init_producer_id(TRANSACTIONAL_ID, requests.NO_IDENTITY, TIMEOUT_MS, keep_prepared=True)
            return requests.Send(
                kept.message, kept.coordinator, kept.key, version=INIT_PRODUCER_ID_TWO_PHASE_VERSION
            )
        if what == "add":
            place = TopicPartition(TOPIC, chance.randrange(PARTITIONS))
            return requests.add_partitions(TRANSACTIONAL_ID, identity, [place])
        self.last_end = requests.end(
            TRANSACTIONAL_ID, identity, committed=chance.random() < 0.65, transaction_version=chance.choice((1, 2))
        )
        return self.last_end

    async def _send(self, cluster: Cluster, actor: Actor, lane: str) -> None:
        send = self._drawn(actor)
        to = Coordinator(send.coordinator, send.key)
        try:
            answer: Any = await cluster.request(
                to, send.message, newest=send.newest, version=send.version, timeout_ms=PATIENCE_MS, lane=lane
            )
        except KafkaError:
            self.play.counts["requests in disorder without an answer"] += 1
            return
        code = ErrorCode(getattr(answer, "error_code", 0))
        if code in (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE):
            cluster.forget_coordinator(send.coordinator, send.key)
        is_told = isinstance(answer, (InitProducerIdResponse, EndTxnResponse)) and answer.producer_id >= 0
        if code is ErrorCode.NONE and is_told:
            self.known.append(ProducerIdentity(answer.producer_id, answer.producer_epoch))
