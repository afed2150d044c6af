"""kill -9 amid changes of rules, users and tokens: what was confirmed is there, and nothing is there in part."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.client.blocking.cluster import BlockingCluster
from semel.errors import KafkaError
from semel.wire.messages.tokens import CreateDelegationTokenRequest, DescribeDelegationTokenRequest
from tests.support.processes import BrokerProcess, free_port
from tests.support.waiting import until

#: Rules of one request: all of them are stored, or none.
RULES_TOGETHER = 5
USERS = 3
ROUNDS_BEFORE_THE_KILL = 4


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    port = free_port()
    settings = {
        "listeners": f"SASL_PLAINTEXT://127.0.0.1:{port}",
        "sasl.enabled.mechanisms": "PLAIN",
        "sasl.jaas.config": 'org.apache.kafka.common.security.plain.PlainLoginModule required user_root="secret";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:root",
        "delegation.token.secret.key": "key",
    }
    with BrokerProcess(tmp_path / "data", port=port, settings=settings) as running:
        yield running


def login(broker: BrokerProcess) -> dict[str, object]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "root",
        "sasl.password": "secret",
        "default.api.timeout.ms": 3000,
        "request.timeout.ms": 3000,
    }


class Changes:
    """One client that changes everything in turn, until it is cut off. What was answered is confirmed."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self.round = 0
        self.rules: set[str] = set()
        self.iterations: dict[str, int] = {}
        self.asked_iterations: dict[str, int] = {}
        self.tokens: set[str] = set()

    def run(self) -> None:
        settings = login(self._broker)
        try:
            with semel.Admin(settings) as admin, BlockingCluster(settings) as cluster:
                while True:
                    self._change(admin, cluster)
        except KafkaError:
            pass  # the broker is gone

    def _change(self, admin: semel.Admin, cluster: BlockingCluster) -> None:
        names = [f"{self.round}-{number}" for number in range(RULES_TOGETHER)]
        admin.create_acls([semel.AclBinding("User:alice", "read", "topic", name) for name in names])
        self.rules.update(names)
        user, iterations = f"user-{self.round % USERS}", 4096 + self.round
        self.asked_iterations[user] = iterations
        admin.set_scram_credentials(user, "secret", "SCRAM-SHA-256", iterations=iterations)
        self.iterations[user] = iterations
        answer = cluster.request_retrying(CreateDelegationTokenRequest(max_lifetime_ms=-1))
        assert answer.error_code == 0, answer
        self.tokens.add(answer.token_id)
        self.round += 1


def stored(broker: BrokerProcess) -> tuple[set[str], dict[str, int], set[str]]:
    settings = login(broker) | {"default.api.timeout.ms": 30_000, "request.timeout.ms": 30_000}
    with semel.Admin(settings) as admin, BlockingCluster(settings) as cluster:
        rules = {one.resource_name for one in admin.describe_acls()}
        users = {name: rows[0].iterations for name, rows in admin.describe_scram_credentials().items()}
        tokens: Any = cluster.request_retrying(DescribeDelegationTokenRequest(owners=None))
        assert all(len(one.hmac) == 64 and one.principal_name == "root" for one in tokens.tokens)
        return rules, users, {one.token_id for one in tokens.tokens}


def test_what_was_confirmed_is_there_after_kill_9_and_nothing_in_part(broker: BrokerProcess) -> None:
    for _ in range(2):
        changes = Changes(broker)
        before, _, tokens_before = stored(broker)
        changes.round = len(before)  # names of its own
        first = changes.round
        thread = threading.Thread(target=changes.run)
        thread.start()
        try:
            until(lambda: changes.round - first >= ROUNDS_BEFORE_THE_KILL, what="some changes")  # noqa: B023
            broker.kill9()
        finally:
            thread.join(30)
        broker.start()
        rules, users, tokens = stored(broker)
        assert before | changes.rules <= rules
        assert tokens_before | changes.tokens <= tokens
        for name, iterations in changes.iterations.items():
            assert users[name] in (iterations, changes.asked_iterations[name])
        for number in {name.split("-")[0] for name in rules}:
            assert {f"{number}-{part}" for part in range(RULES_TOGETHER)} <= rules, "some rules of one request"
