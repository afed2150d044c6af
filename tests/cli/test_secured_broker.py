"""A secured broker from outside: every command with --command-config, Kafka's own tools, the audit log, metrics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

import semel
from semel.cli import command_line
from semel.errors import AuthenticationFailed
from tests.support import java_tools
from tests.support.processes import Process, free_port
from tests.support.waiting import until

MECHANISM = "SCRAM-SHA-512"
PASSWORDS = {"root": 'root "secret"', "alice": "wonderland"}


def semel_command(*words: str, where: Path, code: int = 0, environment: dict[str, str] | None = None) -> str:
    """Run a command as people do. Returns all that it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "semel", *words],
        cwd=where,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


class Secured:
    """A broker with TLS, SCRAM and access rules, set up by commands alone."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.port, self.metrics_port = free_port(), free_port()
        semel_command("cert", "dev", "--folder", "certificates", where=where)
        self.create_user("root", "--data", "data")
        (where / "server.properties").write_text(
            f"listeners=SASL_SSL://127.0.0.1:{self.port}\n"
            f"log.dirs={where / 'data'}\n"
            "ssl.keystore.location=certificates/broker.pem\n"
            f"sasl.enabled.mechanisms={MECHANISM}\n"
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer\n"
            "super.users=User:root\n"
            f"semel.metrics.port={self.metrics_port}\n"
        )
        command = [sys.executable, "-m", "semel", "broker", "start", "--config", "server.properties"]
        self.process = Process(command, name="secured", directory=where, separate_stderr=True)
        self.process.wait_for_line("ready on")
        for user in PASSWORDS:
            (where / f"{user}.properties").write_text(self.java_properties(user))
            (where / f"{user}-librdkafka.properties").write_text(self.librdkafka_properties(user))

    def create_user(self, name: str, *words: str) -> None:
        told = semel_command(
            "user", "create", name, "--password-env", "PASSWORD", *words,
            where=self.where, environment={"PASSWORD": PASSWORDS[name]},
        )  # fmt: skip
        assert PASSWORDS[name] not in told

    def java_properties(self, user: str) -> str:
        quoted = PASSWORDS[user].replace('"', '\\\\"')
        login = f'username="{user}" password="{quoted}"'
        return (
            f"bootstrap.servers=127.0.0.1:{self.port}\nsecurity.protocol=SASL_SSL\nssl.truststore.type=PEM\n"
            f"ssl.truststore.location={self.where / 'certificates/authority.pem'}\nsasl.mechanism={MECHANISM}\n"
            f"sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required {login};\n"
        )

    def librdkafka_properties(self, user: str) -> str:
        return (
            f"bootstrap.servers=127.0.0.1:{self.port}\nsecurity.protocol=sasl_ssl\n"
            f"ssl.ca.location={self.where / 'certificates/authority.pem'}\nsasl.mechanisms={MECHANISM}\n"
            f"sasl.username={user}\nsasl.password={PASSWORDS[user]}\n"
        )

    def settings(self, user: str) -> dict[str, object]:
        lines = self.librdkafka_properties(user).splitlines()
        return dict(line.split("=", 1) for line in lines)

    def types(self, *words: str, user: str = "root", code: int = 0) -> str:
        file = str(self.where / f"{user}.properties")
        done = CliRunner().invoke(command_line(), [*words, "--command-config", file])
        assert done.exit_code == code, done.output
        return done.output

    def audit(self) -> list[dict[str, object]]:
        lines = self.process.errors().splitlines()
        return [json.loads(line.partition("semel.audit: ")[2]) for line in lines if "semel.audit: " in line]

    def metric(self, name: str) -> int:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}/metrics", timeout=30) as page:
            lines = page.read().decode().splitlines()
        return sum(int(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    broker = Secured(tmp_path_factory.mktemp("secured"))
    try:
        broker.create_user("alice", "--command-config", "root.properties")
        yield broker
        assert broker.process.terminate() == 0
    finally:
        broker.process.close()


def test_the_start_says_what_is_open_to_whom(secured: Secured) -> None:
    told = secured.process.output()
    assert f"listeners: SASL_SSL://127.0.0.1:{secured.port} ({MECHANISM}); access rules: 0; " in told
    assert "super users: User:root" in told
    assert "warning" not in secured.process.errors()


EVERY_COMMAND = [
    ("topic", "list"),
    ("topic", "create", "payments", "--partitions", "1"),
    ("topic", "describe", "payments"),
    ("topic", "alter", "payments", "--set", "retention.ms=50000"),
    ("group", "list"),
    ("txn", "list"),
    ("txn", "doctor"),
    ("txn", "doctor", "payments"),
    ("user", "list"),
    ("acl", "list"),
    ("acl", "add", "bob", "--operation", "read", "--topic", "payments"),
    ("acl", "check", "bob", "read", "--topic", "payments"),
    ("acl", "remove", "bob", "--yes"),
    ("topic", "delete", "payments", "--yes"),
]


@pytest.mark.parametrize("user", ["root", "root-librdkafka"])
def test_every_command_connects_with_either_spelling_of_the_settings(secured: Secured, user: str) -> None:
    for words in EVERY_COMMAND:
        assert "warning" not in secured.types(*words, user=user), words
    assert "Check the name: semel group list" in secured.types("group", "describe", "nobody", user=user, code=1)
    assert "Check the name: semel txn list" in secured.types("txn", "describe", "nobody", user=user, code=1)
    assert "has committed no micro-batch" in secured.types("pipeline", "status", "nobody", user=user, code=1)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("topic", "describe", "hidden"), "TOPIC_AUTHORIZATION_FAILED"),
        (("topic", "create", "mine"), "TOPIC_AUTHORIZATION_FAILED"),
        (("pipeline", "status", "p"), "GROUP_AUTHORIZATION_FAILED"),
        (("acl", "list"), "CLUSTER_AUTHORIZATION_FAILED"),
        (("user", "list"), "CLUSTER_AUTHORIZATION_FAILED"),
        (("user", "create", "eve", "--generate"), "CLUSTER_AUTHORIZATION_FAILED"),
    ],
)
def test_who_may_not_is_told_so_in_a_line_and_the_audit_log_has_a_line(
    secured: Secured, words: tuple[str, ...], code: str
) -> None:
    before, counted = len(secured.audit()), secured.metric("semel_denied_requests_total")
    told = secured.types(*words, user="alice", code=1)
    assert f"Error: {code}: " in told
    assert "Traceback" not in told
    until(lambda: len(secured.audit()) > before, what="a line in the audit log")
    line = secured.audit()[before]
    assert (line["event"], line["principal"], line["host"]) == ("denied", "User:alice", "127.0.0.1")
    assert secured.metric("semel_denied_requests_total") > counted


def test_the_doctor_does_not_say_that_all_is_well_with_what_it_may_not_see(secured: Secured) -> None:
    told = secured.types("txn", "doctor", user="alice")
    assert "Checked 0 partitions that this user may see: " in told


def test_a_transaction_whose_id_is_hidden_is_not_taken_for_one_that_hangs(secured: Secured) -> None:
    secured.types("topic", "create", "ledger", "--partitions", "1")
    secured.types("acl", "add", "alice", "--operation", "read", "--topic", "ledger")
    secured.types("acl", "add", "alice", "--operation", "alter", "--cluster")  # she may write markers
    settings = {**secured.settings("root"), "transactional.id": "till", "transaction.timeout.ms": 600_000}
    with semel.Producer(settings) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send("ledger", b"12.50").result(30)
        told = secured.types("txn", "doctor", "--fix", "--yes", user="alice", code=1)
        assert "Access rules are on" in told
        assert "wrote the missing abort marker" not in told
        producer.commit_transaction()
    secured.types("acl", "remove", "alice", "--yes")


LEFT_OUT = "semel_audit_lines_left_out_total"


def test_guessing_is_counted_and_a_flood_of_guesses_does_not_fill_the_log(secured: Secured) -> None:
    name = "kafka_server_socket_server_metrics_failed_authentication_total"
    before, lines = secured.metric(name), len(secured.audit())
    left_out_before = secured.metric(LEFT_OUT)
    wrong = {**secured.settings("alice"), "sasl.password": "guess"}
    guesses = 40

    def guess() -> None:
        with pytest.raises(AuthenticationFailed), semel.Admin(wrong) as admin:
            admin.list_topics()

    with ThreadPoolExecutor(guesses) as pool:
        for done in [pool.submit(guess) for _ in range(guesses)]:
            done.result(60)
    assert secured.metric(name) == before + guesses
    told = [line for line in secured.audit()[lines:] if line["event"] == "authentication failed"]
    assert {(line["principal"], line["mechanism"]) for line in told} == {("alice", MECHANISM)}
    left_out = secured.metric(LEFT_OUT) - left_out_before
    assert len(told) + left_out == guesses
    seconds = {str(line["time"])[:19] for line in told}
    assert len(told) <= 20 * (len(seconds) + 1)
    assert "guess" not in secured.process.errors()


@pytest.mark.java
def test_kafkas_own_tools_manage_users_and_rules(secured: Secured, kafka_jars: None) -> None:
    at = ("--bootstrap-server", f"127.0.0.1:{secured.port}", "--command-config", secured.where / "root.properties")
    added = java_tools.run("acls", *at, "--add", "--allow-principal", "User:carol", "--producer", "--topic", "orders")
    assert "Adding ACLs" in added.stdout
    assert "create" in secured.types("acl", "list", "--principal", "carol")
    secured.types("acl", "add", "carol", "--consumer", "--topic", "orders", "--group", "billing")
    listed = java_tools.run("acls", *at, "--list", "--principal", "User:carol").stdout
    assert "(principal=User:carol, host=*, operation=READ, permissionType=ALLOW)" in listed
    # What the tool makes of --producer is what ours makes of it.
    java_tools.run("acls", *at, "--remove", "--force", "--allow-principal", "User:carol", "--producer",
                   "--topic", "orders")  # fmt: skip
    left = secured.types("acl", "list", "--principal", "carol", "--json")
    assert {(row["operation"], row["resource_type"]) for row in json.loads(left)} == {
        ("read", "topic"), ("read", "group")
    }  # fmt: skip
    java_tools.run("configs", *at, "--alter", "--entity-type", "users", "--entity-name", "carol",
                   "--add-config", "SCRAM-SHA-512=[iterations=4096,password=carols]")  # fmt: skip
    users = json.loads(secured.types("user", "list", "--json"))
    assert {"user": "carol", "mechanism": MECHANISM, "iterations": 4096} in users
    PASSWORDS["carol"] = "carols"
    with semel.Admin(secured.settings("carol")) as admin:
        assert admin.list_topics() == []
    denied = java_tools.run("acls", "--bootstrap-server", f"127.0.0.1:{secured.port}", "--command-config",
                            secured.where / "alice.properties", "--list", check=False)  # fmt: skip
    assert "ClusterAuthorizationException" in denied.stdout + denied.stderr
