"""What somebody at a terminal is told: quickly, in a sentence, with what to do next."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from semel.broker.embedded import Broker
from semel.cli import NOUNS, command_line
from semel.client.blocking.consumer import Consumer
from semel.errors import ErrorCode, KafkaError
from tests.broker.raw import Raw, batch
from tests.support.waiting import until


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def types(*words: str, answer: str | None = None) -> Result:
    return CliRunner().invoke(command_line(), words, input=answer)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Somebody listens, and never says a word."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.mark.parametrize(
    "words",
    [
        ("topic", "list"),
        ("topic", "create", "t"),
        ("group", "list"),
        ("txn", "list"),
        ("txn", "doctor"),
        ("pipeline", "status", "p"),
    ],
    ids=" ".join,
)
def test_where_no_broker_is_one_is_told_so_at_once(words: tuple[str, ...], closed_port: int) -> None:
    began = time.monotonic()
    result = types(*words, "--bootstrap", f"127.0.0.1:{closed_port}")
    assert time.monotonic() - began < 25
    assert result.exit_code == 1
    assert "is a broker running there? `semel broker start`, or name another with --bootstrap" in result.output


def test_whoever_listens_without_being_a_broker_is_not_waited_for(silent_port: int) -> None:
    began = time.monotonic()
    result = types("topic", "list", "--bootstrap", f"127.0.0.1:{silent_port}")
    assert time.monotonic() - began < 25
    assert "is a broker running there?" in result.output


@pytest.mark.parametrize("option", ["--bootstrap", "--bootstrap-server", "--bootstrap-servers"])
def test_the_option_has_the_names_of_kafkas_tools(broker: Broker, option: str) -> None:
    assert types("topic", "list", option, broker.bootstrap_servers).exit_code == 0


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("topic", "describe", "nowhere"), "Check the name: semel topic list"),
        (("topic", "delete", "nowhere", "--yes"), "Check the name: semel topic list"),
        (("group", "reset-offsets", "g", "--topic", "nowhere", "--to-latest"), "Check the name: semel topic list"),
        (("txn", "doctor", "nowhere"), "Check the name: semel topic list"),
        (("txn", "describe", "nobody"), "Check the name: semel txn list"),
        (("txn", "abort", "nobody", "--yes"), "Check the name: semel txn list"),
    ],
    ids=str,
)
def test_a_name_nobody_knows_is_answered_with_where_to_look_it_up(
    broker: Broker, words: tuple[str, ...], advice: str
) -> None:
    began = time.monotonic()
    result = types(*words, "--bootstrap", broker.bootstrap_servers)
    assert time.monotonic() - began < 25
    assert result.exit_code == 1
    assert advice in result.output
    assert "Try again" not in result.output


@pytest.mark.parametrize("why", ["it broke", "it broke.", "did it break?", "it broke!"])
def test_no_sentence_ends_twice(why: str) -> None:
    said = str(KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, why))
    assert not any(twice in said for twice in ("..", "?.", "!."))


def test_an_illegal_name_is_one_error_and_no_table(broker: Broker) -> None:
    created = types("topic", "create", "not/a/name", "--bootstrap", broker.bootstrap_servers)
    assert created.exit_code == 1
    assert created.stdout == ""
    assert created.stderr.startswith("Error: INVALID_TOPIC_EXCEPTION")
    assert created.stderr.count("\n") == 1


def test_what_was_done_is_shown_and_one_topic_that_failed_is_the_exit_code(broker: Broker) -> None:
    at = ("--bootstrap", broker.bootstrap_servers)
    assert types("topic", "create", "there", *at).exit_code == 0
    created = types("topic", "create", "one", "there", "two", "--json", *at)
    assert created.exit_code == 1
    rows = {row["topic"]: row["created"] for row in json.loads(created.stdout)}
    assert rows == {"one": True, "there": False, "two": True}
    assert "TOPIC_ALREADY_EXISTS" in created.stderr
    deleted = types("topic", "delete", "one", "nowhere", "two", "--yes", *at)
    assert deleted.exit_code == 1
    shown = dict(line.split() for line in deleted.stdout.splitlines()[1:])
    assert shown == {"one": "yes", "two": "yes"}
    assert "nowhere" in deleted.stderr


def test_deleting_a_topic_asks_first_and_a_no_leaves_it(broker: Broker) -> None:
    at = ("--bootstrap", broker.bootstrap_servers)
    assert types("topic", "create", "kept", *at).exit_code == 0
    refused = types("topic", "delete", "kept", *at, answer="n\n")
    assert refused.exit_code == 1
    assert "Delete 'kept' and every record in it?" in refused.stderr
    assert types("topic", "delete", "kept", *at).exit_code == 1, "nobody is there to answer"
    assert "kept" in types("topic", "list", *at).stdout.split()
    assert types("topic", "delete", "kept", *at, answer="y\n").exit_code == 0
    assert "kept" not in types("topic", "list", *at).stdout.split()


def test_a_partition_that_is_offline_is_described_as_such_and_not_waited_for(tmp_path: Path) -> None:
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("t", partitions=2)
        for _ in range(3):
            raw.produce("t", batch(), partition=0)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    path = tmp_path / "t-0" / "00000000000000000000.log"
    whole = path.read_bytes()
    path.write_bytes(whole[:70] + b"\xff" + whole[71:])
    with Broker(tmp_path) as broker:
        began = time.monotonic()
        result = types("topic", "describe", "t", "--bootstrap", broker.bootstrap_servers)
        assert time.monotonic() - began < 25
    assert result.exit_code == 0
    states = [line.split(maxsplit=5)[5] for line in result.output.splitlines()[2:]]
    assert states == ["offline, KAFKA_STORAGE_ERROR; see the broker's log", "online"]


def test_a_dry_run_says_that_a_group_with_members_will_not_be_moved(broker: Broker) -> None:
    at = {"bootstrap.servers": broker.bootstrap_servers}
    assert types("topic", "create", "read", "--bootstrap", broker.bootstrap_servers).exit_code == 0
    command = ("group", "reset-offsets", "readers", "--topic", "read", "--to-latest")
    with Consumer({**at, "group.id": "readers"}) as consumer:
        consumer.subscribe(["read"])
        until(lambda: consumer.poll(100) is not None and bool(consumer.assignment()), what="an assignment")
        shown = types(*command, "--bootstrap", broker.bootstrap_servers)
    assert shown.exit_code == 0
    assert "has 1 member; --execute will be refused" in shown.stderr
    assert "Warning" not in types(*command, "--bootstrap", broker.bootstrap_servers).output


def test_the_help_says_of_each_noun_what_the_noun_says_of_itself() -> None:
    for noun, about in NOUNS.items():
        command: click.Command = getattr(import_module(f"semel.cli.{noun}"), noun)
        assert command.help is not None
        assert command.help.splitlines()[0] == about
    shown = types("-h").output
    assert all(noun in shown for noun in NOUNS)
