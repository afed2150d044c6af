"""Users, quotas, rules and tokens that brokers share by ZooKeeper: changed through any of them, known to all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from semel.broker.replication.bringing_access import bring_access
from semel.broker.replication.shared import NOTIFICATIONS_KEPT, Shared
from semel.broker.replication.shared_rules import SharedRules
from semel.broker.stored.access_rules import AccessRuleStore
from semel.broker.stored.delegation_tokens import DelegationTokenStore
from semel.broker.stored.metadata_store import LocalMetadataStore
from semel.broker.stored.quotas import QuotaStore
from semel.broker.stored.scram import ScramStore
from semel.cluster.session import ConnectionLoss, ZooKeeperSession
from semel.config import ConfigError
from semel.errors import ErrorCode, Refused
from semel.log.files import Files
from semel.machines.security.access import (
    AccessRule,
    AccessRules,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from semel.machines.security.delegation_tokens import DelegationTokens, TokenLimits
from semel.machines.security.principals import Principal
from semel.machines.security.scram import ScramKeys
from semel.machines.znodes import paths
from semel.machines.znodes.values import UnreadableZnode, decode_config, decode_config_change
from tests.simulation.zookeeper.worlds import SimulatedWorld

KEYS = ScramKeys(4096, b"salt", b"stored", b"server")
ALICE = Principal("User", "alice")


class Member:
    """As much of a broker as shares something."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self.session = session
        self.updates = 0
        limits = TokenLimits(1000, 100)
        self.stores = SimpleNamespace(no_tokens=lambda: DelegationTokens(b"key", limits))
        self.shared = Shared(cast(Any, self), cast(Any, self))
        self.rules = AccessRules()
        self.stored = SharedRules(self.shared, self.rules)

    def update_quotas(self) -> None:
        self.updates += 1

    async def load(self) -> Member:
        await self.shared.load()
        self.task = asyncio.ensure_future(self.shared.reader.run())
        return self


def rule(name: str = "payments", principal: str = "User:alice", operation: Operation = Operation.READ) -> AccessRule:
    return AccessRule(ResourceType.TOPIC, name, PatternType.LITERAL, principal, "*", operation, Permission.ALLOW)


def tell(story: Callable[[Member, Member], Awaitable[None]]) -> None:
    async def run() -> None:
        world = SimulatedWorld()
        sessions = [await world.open(), await world.open()]
        for path in (*paths.PERSISTENT,):
            await sessions[0].create(path)
        members = [await Member(session).load() for session in sessions]
        try:
            await story(*members)
        finally:
            for member in members:
                member.task.cancel()

    asyncio.run(run())


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110 - ZooKeeper tells at its own time
            await asyncio.sleep(0.01)


def test_a_rule_holds_at_once_where_it_was_made_and_soon_elsewhere() -> None:
    async def story(one: Member, other: Member) -> None:
        await one.stored.add([rule(), rule(name="ledger")])
        assert set(one.rules) == {rule(), rule(name="ledger")}
        await until(lambda: set(other.rules) == set(one.rules))
        await other.stored.remove([rule()])
        assert set(other.rules) == {rule(name="ledger")}
        await until(lambda: set(one.rules) == set(other.rules))

    tell(story)


def test_rules_about_one_topic_that_two_brokers_add_at_once_are_all_there() -> None:
    async def story(one: Member, other: Member) -> None:
        changes = [
            member.stored.add([rule(principal=f"User:{number}-{index}")])
            for number, member in enumerate((one, other))
            for index in range(4)
        ]
        await asyncio.gather(*changes)
        await until(lambda: len(one.rules) == len(other.rules) == 8)

    tell(story)


def test_a_rule_that_another_broker_has_removed_is_added_although_it_was_known_here() -> None:
    async def story(one: Member, other: Member) -> None:
        await one.stored.add([rule()])
        await other.stored.know()
        one.task.cancel()  # it is told nothing any more
        await other.stored.remove([rule()])
        await one.stored.add(one.stored.missing([rule()]))
        await other.stored.know()
        assert rule() in other.rules

    tell(story)


def test_a_users_credentials_and_quotas_share_a_node_and_leave_each_other_alone() -> None:
    async def story(one: Member, other: Member) -> None:
        await one.shared.scram.replace({("alice", 2): KEYS})
        await other.shared.quotas.replace({(("user", "alice"),): {"producer_byte_rate": 1024.0}})
        await one.shared.scram.replace({("alice", 1): KEYS, ("alice", 2): None})
        await until(lambda: dict(one.shared.quotas.items()) == {(("user", "alice"),): {"producer_byte_rate": 1024.0}})
        await until(lambda: set(other.shared.scram) == {("alice", 1)})
        config = decode_config((await one.session.get("/config/users/alice"))[0], "p")
        assert config.keys() == {"SCRAM-SHA-256", "producer_byte_rate"} and config["producer_byte_rate"] == "1024"
        names = (await one.session.get_children(paths.CONFIG_CHANGES))[0]
        told = {
            decode_config_change((await one.session.get(f"{paths.CONFIG_CHANGES}/{name}"))[0], "p") for name in names
        }
        assert told == {"users/alice"}

    tell(story)


@pytest.mark.parametrize(
    ("entity", "path"),
    [
        ((("user", None),), "/config/users/<default>"),
        ((("client-id", "app"),), "/config/clients/app"),
        ((("client-id", "app"), ("user", "alice")), "/config/users/alice/clients/app"),
        ((("client-id", None), ("user", None)), "/config/users/<default>/clients/<default>"),
    ],
)
def test_quotas_are_where_kafka_keeps_them(entity: Any, path: str) -> None:
    async def story(one: Member, other: Member) -> None:
        updates = other.updates
        await one.shared.quotas.replace({entity: {"request_percentage": 50.0}})
        assert decode_config((await one.session.get(path))[0], path) == {"request_percentage": "50.0"}
        await until(lambda: other.shared.quotas.get(entity, "request_percentage") == 50.0)
        await until(lambda: other.updates == updates + 1)
        await other.shared.quotas.replace({entity: {"request_percentage": None}})
        await until(lambda: not one.shared.quotas and not other.shared.quotas)

    tell(story)


def test_quotas_of_addresses_and_settings_of_groups_are_shared() -> None:
    async def story(one: Member, other: Member) -> None:
        await one.shared.quotas.replace({(("ip", "10.0.0.1"),): {"connection_creation_rate": 5.0}})
        await one.shared.group_settings.replace({"a/b": {"consumer.session.timeout.ms": "50000"}})
        await until(lambda: other.shared.quotas.get((("ip", "10.0.0.1"),), "connection_creation_rate") == 5.0)
        await until(lambda: dict(other.shared.group_settings.overrides_of("a/b")) != {})
        assert decode_config((await one.session.get("/config/ips/10.0.0.1"))[0], "p") == {
            "connection_creation_rate": "5"
        }

    tell(story)


def test_a_token_that_was_made_on_one_broker_is_renewed_and_ended_on_another() -> None:
    async def story(one: Member, other: Member) -> None:
        here, there = one.shared.tokens, other.shared.tokens
        assert here is not None and there is not None
        token = here.tokens.create("t1", ALICE, ALICE, [], -1, 0)
        await here.put(token)
        await there.know()
        secret = here.tokens.hmac_of("t1")
        renewed = there.tokens.renew(secret, ALICE, -1, 50)
        await there.put(renewed)
        await here.know()
        assert here.tokens.get("t1") == renewed and renewed.expires_ms == 150
        await asyncio.gather(here.remove(["t1"]), there.remove(["t1"]))
        assert here.tokens.get("t1") is None and there.tokens.get("t1") is None

    tell(story)


def test_what_a_broker_had_while_it_was_alone_is_brought_into_its_cluster(tmp_path: Path) -> None:
    async def story(one: Member, other: Member) -> None:
        store = LocalMetadataStore(tmp_path / ".metadata", Files())
        await ScramStore(store).replace({("alice", 2): KEYS})
        await QuotaStore(store).replace({(("user", None),): {"producer_byte_rate": 5.0}})
        rules = AccessRuleStore(store, AccessRules())
        await rules.add([rule(), rule(name="ledger")])
        local = DelegationTokenStore(store, one.stores.no_tokens())
        token = local.tokens.create("t1", ALICE, ALICE, [], -1, 0)
        await local.put(token)
        broker = SimpleNamespace(cluster=SimpleNamespace(shared=one.shared), stores=one.stores)
        for _ in range(2):  # a start that ends amid it is tried again
            await bring_access(cast(Any, broker), store)
        await other.shared.know()
        assert other.shared.scram.get("alice", 2) == KEYS and set(other.rules) == {rule(), rule(name="ledger")}
        assert other.shared.quotas.get((("user", None),), "producer_byte_rate") == 5.0
        assert other.shared.tokens is not None and other.shared.tokens.tokens.get("t1") == token
        await rules.add([rule(name="a/b")])
        with pytest.raises(ConfigError, match="'a/b'"):
            await bring_access(cast(Any, broker), store)
        store.close()

    tell(story)


def test_users_that_do_not_exist_look_alike_on_all_brokers() -> None:
    """Otherwise whoever asks two brokers could tell a user that exists from one that does not."""

    async def story(one: Member, other: Member) -> None:
        assert len(one.shared.scram.secret) == 32
        assert one.shared.scram.secret == other.shared.scram.secret

    tell(story)


def test_old_notifications_go() -> None:
    async def story(one: Member, other: Member) -> None:
        for number in range(NOTIFICATIONS_KEPT + 5):
            await one.shared.quotas.replace({(("user", "alice"),): {"request_percentage": number + 1.0}})
        assert len((await one.session.get_children(paths.CONFIG_CHANGES))[0]) == NOTIFICATIONS_KEPT

    tell(story)


def test_a_change_that_is_written_succeeds_although_nothing_can_be_tidied_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(one: Member, other: Member) -> None:
        async def lost(*_: Any) -> Any:
            raise ConnectionLoss("lost, after the change was written")

        monkeypatch.setattr(one.shared, "_forget_old_notifications", lost)
        await one.shared.quotas.replace({(("user", "alice"),): {"request_percentage": 7.0}})
        assert one.shared.quotas.get((("user", "alice"),), "request_percentage") == 7.0

    tell(story)


def test_many_users_at_once_are_written_in_pieces_that_zookeeper_takes() -> None:
    async def story(one: Member, other: Member) -> None:
        await one.shared.scram.replace({(f"user-{number:04}-{'x' * 2000}", 2): KEYS for number in range(250)})
        await other.shared.know()
        assert sum(1 for _ in other.shared.scram) == 250

    tell(story)


def test_what_cannot_be_stored_is_refused_in_words() -> None:
    async def story(one: Member, other: Member) -> None:
        with pytest.raises(Refused) as refused:
            await one.stored.add([rule(name="a/b")])
        assert refused.value.code is ErrorCode.INVALID_REQUEST and "'a/b'" in refused.value.why
        with pytest.raises(Refused) as refused:
            await one.shared.scram.replace({("..", 2): KEYS})
        assert refused.value.code is ErrorCode.UNACCEPTABLE_CREDENTIAL

    tell(story)


def test_rules_that_cannot_be_read_stay_as_they_were_and_stop_a_start() -> None:
    async def story(one: Member, other: Member) -> None:
        await one.stored.add([rule()])
        await other.session.set("/kafka-acl/Topic/payments", b"{broken")
        await other.stored.add([rule(name="ledger")])
        await until(lambda: rule(name="ledger") in one.rules)
        assert rule() in one.rules
        with pytest.raises(UnreadableZnode, match="/kafka-acl/Topic/payments"):
            await Member(one.session).load()

    tell(story)
