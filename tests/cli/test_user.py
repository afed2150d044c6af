"""`semel user`: what a person types to make users, and the mistakes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import semel
from semel.broker.embedded import Broker
from semel.cli import command_line
from semel.errors import AuthenticationFailed, Misuse, Refused


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def types(broker: Broker, *words: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(command_line(), ["user", *words, "--bootstrap", broker.bootstrap_servers], input=answer)


def test_a_user_is_created_with_a_password_that_is_asked_for(broker: Broker) -> None:
    made = types(broker, "create", "alice", answer="wonderland\nwonderland\n")
    assert made.exit_code == 0, made.output
    assert "wonderland" not in made.output
    listed = json.loads(types(broker, "list", "--json").output)
    assert listed == [
        {"user": "alice", "mechanism": "SCRAM-SHA-256", "iterations": 8192},
        {"user": "alice", "mechanism": "SCRAM-SHA-512", "iterations": 8192},
    ]


@pytest.mark.parametrize("name", ["a\nb", " alice", "alice ", "\u200b", "a\0b"])
def test_a_name_that_clients_would_not_send_as_it_is_is_refused(broker: Broker, name: str) -> None:
    made = types(broker, "create", name, "--generate")
    assert made.exit_code == 2
    assert "choose another" in made.output


def test_without_a_terminal_it_is_told_how_to_give_the_password(broker: Broker) -> None:
    made = types(broker, "create", "alice", answer="")
    assert made.exit_code == 1
    assert "give --password-file - to read it from standard input" in made.output
    assert "GetPassWarning" not in made.output


def test_two_passwords_that_differ_are_asked_for_again(broker: Broker) -> None:
    made = types(broker, "create", "alice", answer="one\ntwo\n")
    assert made.exit_code == 1
    assert json.loads(types(broker, "list", "--json").output) == []


def test_the_password_may_be_in_a_file_or_made_up(broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("wonderland\n")
    assert types(broker, "create", "alice", "--password-file", str(file)).exit_code == 0
    assert types(broker, "create", "carol", "--password-file", "-", answer="x\n").exit_code == 0
    made = types(broker, "create", "bob", "--generate", "--mechanism", "scram-sha-256", "--json")
    (row,) = json.loads(made.output)
    assert row["mechanism"] == "SCRAM-SHA-256"
    assert len(row["password"]) == 32


@pytest.mark.parametrize(
    ("text", "why"), [("", "is empty"), ("\n", "is empty"), ("a\nb\n", "more than one line"), (None, "cannot read")]
)
def test_a_file_without_one_password_is_refused(broker: Broker, tmp_path: Path, text: str | None, why: str) -> None:
    file = tmp_path / "password"
    if text is not None:
        file.write_text(text)
    made = types(broker, "create", "alice", "--password-file", str(file))
    assert made.exit_code == 1
    assert why in made.output
    assert made.output.count("\n") == 1


def test_deleting_asks_first_and_names_what_is_not_there(broker: Broker) -> None:
    types(broker, "create", "alice", "--generate")
    assert types(broker, "delete", "alice", answer="n\n").exit_code == 1
    gone = types(broker, "delete", "alice", "--mechanism", "SCRAM-SHA-256", "--yes")
    assert gone.exit_code == 0, gone.output
    again = types(broker, "delete", "alice", "--mechanism", "SCRAM-SHA-256", "--yes")
    assert again.exit_code == 1
    assert "alice has no credential for SCRAM-SHA-256: semel user list" in again.output
    assert types(broker, "delete", "alice", "--yes").exit_code == 0
    nobody = types(broker, "delete", "alice", "--yes")
    assert nobody.exit_code == 1
    assert "there is no user alice: semel user list" in nobody.output


def test_a_password_may_be_in_the_environment(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALICE", "wonderland")
    assert types(broker, "create", "alice", "--password-env", "ALICE").exit_code == 0
    none = types(broker, "create", "bob", "--password-env", "NOT_SET_ANYWHERE")
    assert (none.exit_code, "NOT_SET_ANYWHERE is not set" in none.output) == (1, True)
    both = types(broker, "create", "bob", "--password-env", "ALICE", "--generate")
    assert (both.exit_code, "give one of" in both.output) == (2, True)


# In the data directory of a broker that does not run


def offline(*words: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(command_line(), ["user", *words], input=answer)


def secured(data: Path, **settings: object) -> Broker:
    listener = {"listeners": "SASL_PLAINTEXT://127.0.0.1:0", "sasl.enabled.mechanisms": "SCRAM-SHA-256"}
    return Broker(data, settings={**listener, **settings})


def login(broker: Broker, user: str, password: str) -> dict[str, object]:
    return {
        "bootstrap.servers": broker.bootstrap_servers,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": user,
        "sasl.password": password,
    }


def test_the_first_user_is_there_before_the_first_start(tmp_path: Path) -> None:
    data = tmp_path / "new" / "data"
    made = offline("create", "root", "--data", str(data), answer="secret\nsecret\n")
    assert made.exit_code == 0, made.output
    assert "secret" not in made.output
    for node in (7, 7):  # its first start gives the directory its identity, the second finds it
        with secured(data, **{"node.id": node}) as running, semel.Admin(login(running, "root", "secret")) as admin:
            assert list(admin.describe_scram_credentials()) == ["root"]


def test_a_lost_password_is_replaced_while_the_broker_stands_still(tmp_path: Path) -> None:
    offline("create", "root", "--data", str(tmp_path), answer="forgotten\nforgotten\n")
    with secured(tmp_path) as running, semel.Producer(login(running, "root", "forgotten")) as producer:
        producer.send("payments", b"12.50").result(30)
        busy = offline("create", "root", "--data", str(tmp_path), "--generate")
        assert (busy.exit_code, "in use by a running broker" in busy.output) == (1, True)
    offline("create", "root", "--data", str(tmp_path), answer="known\nknown\n")
    with secured(tmp_path) as running, semel.Admin(login(running, "root", "known")) as admin:
        assert admin.list_topics() == ["payments"]
        with pytest.raises(AuthenticationFailed), semel.Admin(login(running, "root", "forgotten")) as other:
            other.list_topics()


def test_users_of_a_directory_are_listed_and_deleted(tmp_path: Path) -> None:
    data = ("--data", str(tmp_path))
    offline("create", "root", "--generate", *data)
    assert [row["mechanism"] for row in json.loads(offline("list", "--json", *data).output)] == [
        "SCRAM-SHA-256", "SCRAM-SHA-512"
    ]  # fmt: skip
    assert offline("delete", "root", "--mechanism", "SCRAM-SHA-512", "--yes", *data).exit_code == 0
    assert [row["mechanism"] for row in json.loads(offline("list", "--json", *data).output)] == ["SCRAM-SHA-256"]
    assert "there is no user bob" in offline("delete", "bob", "--yes", *data).output


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("list", "--data", "nowhere"), 1, "there is no directory 'nowhere'"),
        (("create", "a", "--generate", "--data", ""), 1, "there is no directory ''"),
        (("create", "a", "--generate", "--data", "file"), 1, "file cannot be the data directory"),
        (("create", "a", "--generate", "--data", "damaged"), 1, "is damaged"),
        (("create", "", "--generate", "--data", "new"), 2, "name of the user is empty"),
        (("list", "--data", ".", "--bootstrap", "127.0.0.1:1"), 2, "leave out --bootstrap"),
        (("list", "--data", ".", "--command-config", "file"), 2, "leave out --bootstrap"),
    ],
)
def test_a_directory_that_cannot_be_used_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], code: int, why: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "damaged" / ".metadata").mkdir(parents=True)
    (tmp_path / "damaged" / ".metadata" / "scram-credentials").write_text("nonsense")
    told = offline(*words)
    assert told.exit_code == code, told.output
    assert why in told.output
    assert not (tmp_path / "new").exists()


def test_a_directory_that_lost_its_identity_is_still_refused(tmp_path: Path) -> None:
    offline("create", "root", "--data", str(tmp_path), answer="secret\nsecret\n")
    with secured(tmp_path) as running, semel.Producer(login(running, "root", "secret")) as producer:
        producer.send("payments", b"12.50").result(30)
    for partition in tmp_path.glob("payments-*"):
        shutil.rmtree(partition)
    (tmp_path / "meta.properties").unlink()
    with pytest.raises(Refused, match="holds data"), secured(tmp_path):
        pass


@pytest.mark.parametrize(
    "change",
    [
        lambda admin: admin.set_scram_credentials("alice", "x", "SCRAM-MD5"),
        lambda admin: admin.set_scram_credentials("alice", ""),
        lambda admin: admin.set_scram_credentials("", "x"),
        lambda admin: admin.set_scram_credentials("alice", "x", iterations=1),
        lambda admin: admin.delete_scram_credentials("alice", "PLAIN"),
    ],
)
def test_a_wrong_argument_is_refused_before_anything_is_sent(broker: Broker, change) -> None:
    with semel.Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        with pytest.raises((Misuse, TypeError)):
            change(admin)
        assert admin.describe_scram_credentials() == {}
        assert admin.describe_scram_credentials([]) == {}
