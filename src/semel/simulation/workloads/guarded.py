"""Access rules that come and go while clients work: a transactional producer, and members of groups.

Whoever is refused gets an error of the protocol, and may go on once the rule is gone. Nothing is written or read that a
rule forbids which was acknowledged before somebody asked.
"""

from __future__ import annotations

import asyncio
from functools import partial

from semel.config.broker import STANDARD_AUTHORIZER
from semel.errors import KafkaError
from semel.machines.security.acl_bindings import AclBinding
from semel.simulation.play import CLIENT_SETTINGS, CONSUMER_SETTINGS, Actor, Play
from semel.simulation.workloads import Workload, workload
from semel.simulation.workloads.copying import GROUPS, create
from semel.simulation.workloads.transfers import BRIEF, TRANSACTIONAL

TOPIC = "guarded"
TRANSACTIONAL_ID = "guarded"
PARTITIONS = 2
#: After so long nothing is on its way any more that was asked for before a rule came.
LONGEST_FETCH_S = 2.5


def _rule(resource_type: str, resource_name: str, operation: str) -> AclBinding:
    return AclBinding("User:*", operation, resource_type, resource_name, permission="deny")


WRITE = _rule("topic", TOPIC, "write")
READ = _rule("topic", TOPIC, "read")
RULES = (
    WRITE,
    READ,
    _rule("transactional_id", TRANSACTIONAL_ID, "write"),
    *(_rule("group", f"guarded-{group}", "read") for group in sorted(GROUPS)),
)


@workload("guarded")
class Guarded(Workload):
    """Everybody may do everything that the guard does not forbid."""

    in_a_cluster = False

    def __init__(self, play: Play) -> None:
        super().__init__(play)
        play.set_for_brokers(
            {"authorizer.class.name": STANDARD_AUTHORIZER, "allow.everyone.if.no.acl.found": True}
        )
        #: Since when a rule is known to be in force.
        self.forbidden: dict[AclBinding, float] = {}
        play.actor("guard-0", self.make_rules)
        play.actor("guarded-writer", self.write)
        for group in self.chance.sample(sorted(GROUPS), 2):
            for number in range(2):
                play.actor(f"guarded-{group}-{number}", partial(self.read, group))

    async def prepare(self) -> None:
        await self.play.admin(partial(create, TOPIC, PARTITIONS))
        # Where there is any rule, only what is allowed is.
        allowed = [AclBinding("User:*", "all", rule.resource_type, rule.resource_name) for rule in RULES]
        await self.play.admin(lambda admin: admin.create_acls(dict.fromkeys(allowed)))

    async def make_rules(self, actor: Actor) -> None:
        """Forbid one thing after the other, each for a while."""
        play, chance, loop = self.play, actor.chance, self.play.world.loop
        async with play.clients.admin(**CLIENT_SETTINGS) as admin:
            try:
                await admin.delete_acls(RULES)  # of an earlier life
                while not play.is_ending:
                    await asyncio.sleep(chance.random() * 2)
                    rule = chance.choice(RULES)
                    await admin.create_acls([rule])
                    self.forbidden[rule] = loop.time()
                    play.counts["things forbidden"] += 1
                    await asyncio.sleep(chance.choice((0.1, 0.5, 2.0, 5.0)) * (0.5 + chance.random()))
                    self.forbidden.pop(rule)
                    await admin.delete_acls([rule])
            finally:
                self.forbidden.clear()

    def _is_forbidden(self, rule: AclBinding, since_s: float) -> bool:
        """Whether this was forbidden before that time, and is still."""
        return self.forbidden.get(rule, since_s) < since_s

    async def write(self, actor: Actor) -> None:
        """Transactions, as far as they are allowed."""
        play, chance, loop = self.play, actor.chance, self.play.world.loop
        while not play.is_ending:
            try:
                async with play.clients.producer(**TRANSACTIONAL, transactional_id=TRANSACTIONAL_ID) as producer:
                    await producer.init_transactions()
                    while not play.is_ending:
                        await producer.begin_transaction()
                        try:
                            for _ in range(chance.randint(1, 3)):
                                asked_s = loop.time()
                                value = play.next_value(actor.who)
                                await (await producer.send(TOPIC, value, partition=chance.randrange(PARTITIONS)))
                                if self._is_forbidden(WRITE, asked_s):
                                    play.world.violated(f"guarded: {value!r} was written although a rule forbids it")
                                await asyncio.sleep(chance.random() * 0.2)
                            await producer.commit_transaction()
                        except KafkaError:
                            play.counts["guarded transactions that failed"] += 1
                            await producer.abort_transaction()
                        await asyncio.sleep(chance.random() * 0.2)
            except KafkaError as error:
                play.counts[f"guarded producers ended by {type(error).__name__}"] += 1
            await asyncio.sleep(chance.random() * 0.5)

    async def read(self, group: str, actor: Actor) -> None:
        """One consumer after the other."""
        play, chance, loop = self.play, actor.chance, self.play.world.loop
        settings = {**CONSUMER_SETTINGS, **GROUPS[group], "enable_auto_commit": chance.random() < 0.5}
        if group == "consumer":
            for name in ("session_timeout_ms", "heartbeat_interval_ms"):
                settings.pop(name)
        while not play.is_ending:
            try:
                async with play.clients.consumer(**settings, group_id=f"guarded-{group}") as consumer:
                    await consumer.subscribe([TOPIC])
                    for _ in range(chance.randint(5, 60)):
                        if play.is_ending:
                            break
                        try:
                            found = await consumer.poll(timeout_ms=200)
                            # What was on its way before, or had arrived, may be read.
                            is_prompt = play.struck.keys() <= BRIEF
                            if found and is_prompt and self._is_forbidden(READ, loop.time() - LONGEST_FETCH_S):
                                play.world.violated("guarded: records were read although a rule forbids it")
                        except KafkaError as error:
                            play.counts[f"guarded readers: {type(error).__name__}"] += 1
                            await asyncio.sleep(0.1)
            except KafkaError:
                play.counts["guarded readers ended by an error"] += 1
            await asyncio.sleep(chance.random() * 0.5)
