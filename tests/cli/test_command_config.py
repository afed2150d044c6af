"""`--command-config`: a client.properties as Kafka's tools take it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from semel import Broker, Security
from semel.cli import command_line


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(command_line(), list(arguments))
    assert result.exit_code == code, result.output
    return result.output


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


def test_the_file_names_the_brokers(broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"# ours\nbootstrap.servers={broker.bootstrap_servers}\nsecurity.protocol=PLAINTEXT\nlinger.ms=5\n")
    assert "PARTITIONS" in run("topic", "list", "--command-config", str(file))
    assert "warning" not in run("group", "list", "--command-config", str(file))


@pytest.mark.parametrize("command", [("topic", "list"), ("topic", "delete", "t", "--yes"), ("group", "list")])
def test_an_address_that_is_empty_is_not_taken_for_the_default(tmp_path: Path, command: tuple[str, ...]) -> None:
    """`--bootstrap "$BROKERS"` with a variable that is not set."""
    for empty in ("", "  "):
        assert "--bootstrap is empty: give it a value" in run(*command, "--bootstrap", empty, code=2)
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=\n")
    assert f"bootstrap.servers in {file} is empty" in run(*command, "--command-config", str(file), code=2)


def test_the_option_goes_before_the_file(broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=127.0.0.1:1\n")
    assert "no answer from 127.0.0.1:1" in run("topic", "list", "--command-config", str(file), code=1)
    for arguments in (
        ("--command-config", str(file), "--bootstrap", broker.bootstrap_servers),
        ("--bootstrap-server", broker.bootstrap_servers, "--command-config", str(file)),
    ):
        assert "PARTITIONS" in run("topic", "list", *arguments)


def test_a_misspelt_setting_is_told_and_left_out(broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("ssl.truststore.locaton=/nowhere\n")
    told = run("topic", "list", "--command-config", str(file), "--bootstrap", broker.bootstrap_servers)
    assert "ssl.truststore.locaton is no setting of a client" in told
    assert "did you mean ssl.truststore.location?" in told


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("security.protocol=SSL\nssl.truststore.location=/nowhere.pem\n", "ssl.truststore.location: cannot read"),
        ("security.protocol=TLS\n", "must be one of PLAINTEXT, SSL"),
        ("security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n", "sasl.username"),
    ],
)
def test_a_wrong_setting_is_refused_before_a_broker_is_asked(text: str, why: str, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(text)
    assert why in run("topic", "list", "--command-config", str(file), "--bootstrap", "127.0.0.1:1", code=1)


def test_a_file_that_cannot_be_read_is_an_error_in_one_line(tmp_path: Path) -> None:
    told = run("topic", "list", "--command-config", str(tmp_path / "none"), code=1)
    assert told.startswith("Error: --command-config: cannot read ")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    assert "is not text in UTF-8" in run("topic", "list", "--command-config", str(binary), code=1)


def test_a_port_that_speaks_tls_is_told_as_such() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer_with_an_alert() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"\x15\x03\x03\x00\x02\x02\x46")

        thread = threading.Thread(target=answer_with_an_alert)
        thread.start()
        told = run("topic", "list", "--bootstrap", f"127.0.0.1:{listening.getsockname()[1]}", code=1)
        thread.join(10)
    assert "it speaks TLS; give --command-config" in told


def test_a_broker_that_asks_for_a_password_is_told_as_such_within_seconds() -> None:
    with Broker(security=Security(["alice"], "SASL_PLAINTEXT")) as broker:
        began = time.monotonic()
        told = run("topic", "list", "--bootstrap", broker.bootstrap_servers, code=1)
        assert "this broker asks who you are; give --command-config FILE" in told
        assert told.count("\n") == 1
        assert time.monotonic() - began < 15
    with Broker(security=Security(protocol="SSL")) as broker:
        told = run("topic", "list", "--bootstrap", broker.bootstrap_servers, code=1)
        assert "give --command-config FILE with security.protocol=SSL or SASL_SSL" in told


def test_a_folder_is_no_file_of_settings(tmp_path: Path) -> None:
    told = run("topic", "list", "--command-config", str(tmp_path), code=1)
    assert told.startswith("Error: --command-config: cannot read ")
    assert told.count("\n") == 1


def leaves(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    if not isinstance(command, click.Group):
        yield name, command
        return
    context = click.Context(command)
    for each in command.list_commands(context):
        found = command.get_command(context, each)
        assert found is not None
        yield from leaves(found, f"{name} {each}".strip())


def test_every_command_that_asks_a_broker_takes_a_file() -> None:
    needs_none = {"broker start", "cert dev", "log dump", "simulate", "cluster up"}
    # Their pipeline.toml has the settings of each broker, under the same names.
    have_a_file = {"pipeline init", "pipeline check", "pipeline run", "pipeline adopt"}
    options = {
        name: {option for parameter in command.params for option in parameter.opts}
        for name, command in leaves(command_line(), "")
    }
    without = {name for name, given in options.items() if not {"--bootstrap", "--command-config"} <= given}
    assert without == needs_none | have_a_file
