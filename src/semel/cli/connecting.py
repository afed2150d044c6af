"""How commands connect to a broker: the same options for all of them, and a quick error if no broker answers.

`--command-config` takes a client.properties as Kafka's tools do, with everything about TLS and SASL. Settings of
producers and consumers in it are left out, and a name that nobody knows is told.
"""

from __future__ import annotations

import difflib
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click

from semel.cli.properties_file import read_properties_file
from semel.client.blocking.admin import Admin
from semel.client.blocking.cluster import BlockingCluster
from semel.client.cluster.broker_connections import read_address
from semel.config import ADMIN, CONSUMER, PRODUCER, Table
from semel.wire.apis import ApiKey
from semel.wire.frames import request_frame
from semel.wire.messages.features import ApiVersionsRequest
from semel.wire.messages.metadata import MetadataRequest

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
#: How long to wait for a broker before reporting that there is none.
PATIENCE_S = 3.0
_CORRELATION_ID = 1
METADATA_VERSION = 1
_LARGEST_ANSWER = 16 * 1024 * 1024
PLAINTEXT = "PLAINTEXT"
#: How a TLS server begins to answer bytes that are not TLS.
_TLS_ALERT = b"\x15\x03"

Command = TypeVar("Command", bound=Callable[..., Any])
Client = TypeVar("Client", BlockingCluster, Admin)

_FILE_KEY = "semel.command_config"


@dataclass(frozen=True, slots=True)
class Brokers:
    """The brokers that a command asks: their addresses, and the settings of the connection."""

    bootstrap: str
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def is_protected(self) -> bool:
        """Whether the connection is encrypted or authenticated."""
        return self.settings.get("security.protocol", PLAINTEXT).upper() != PLAINTEXT

    def client_settings(self) -> dict[str, object]:
        """What a client of these brokers is made with."""
        return {**self.settings, "bootstrap.servers": self.bootstrap}


def brokers_options(command: Command) -> Command:
    """--bootstrap and --command-config. The command gets a `Brokers` as its argument `brokers`."""
    # Semel's name of the option, and the names that Kafka's tools use.
    bootstrap = click.option(
        "--bootstrap",
        "--bootstrap-server",
        "--bootstrap-servers",
        "brokers",
        metavar="HOST:PORT",
        callback=_brokers,
        help=f"A broker to ask.  [default: bootstrap.servers of --command-config, else {DEFAULT_BOOTSTRAP}]",
    )
    file = click.option(
        "--command-config",
        type=click.Path(),
        metavar="FILE",
        expose_value=False,
        is_eager=True,
        callback=_remember_file,
        help="A client.properties with the settings of the connection: security.protocol, ssl.*, sasl.*",
    )
    return bootstrap(file(command))


def common_options(command: Command) -> Command:
    """The options of every command that connects to a broker."""
    return brokers_options(click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(command))


def _remember_file(context: click.Context, _: click.Parameter, path: str | None) -> None:
    context.meta[_FILE_KEY] = path


def names_brokers(context: click.Context) -> bool:
    """Whether the brokers of a command were named, by either option."""
    given = context.get_parameter_source("brokers")
    return context.meta.get(_FILE_KEY) is not None or given is click.core.ParameterSource.COMMANDLINE


def _brokers(context: click.Context, _: click.Parameter, bootstrap: str | None) -> Brokers:
    path = context.meta.get(_FILE_KEY)
    given = {} if path is None else _read_file(path)
    in_file = given.pop("bootstrap.servers", None)
    chosen = in_file if bootstrap is None else bootstrap
    if chosen is not None and not chosen.strip():
        # Mostly a variable of the shell that is not set. What is at the default address is not what was meant.
        name = "--bootstrap" if bootstrap is not None else f"bootstrap.servers in {path}"
        raise click.UsageError(f"{name} is empty: give it a value, or leave it out")
    return Brokers(DEFAULT_BOOTSTRAP if chosen is None else chosen, given)


def _read_file(path: str) -> dict[str, str]:
    """The settings of a file that an admin client knows."""
    try:
        found = read_properties_file(path, "--command-config")
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    known = {}
    for name, value in found.items():
        if _is_known(ADMIN, name):
            known[name] = value
        elif not _is_known(PRODUCER, name) and not _is_known(CONSUMER, name):
            near = difflib.get_close_matches(name, [*ADMIN.rows, *ADMIN.aliases], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            click.echo(f"warning: {path}: {name} is no setting of a client, and is left out{hint}", err=True)
    return known


def _is_known(table: Table, name: str) -> bool:
    return name in table or name in table.aliases or name in table.refused or table.passes_by(name)


def cluster_at(brokers: Brokers) -> BlockingCluster:
    """A client of a cluster. Raises within seconds if no broker answers."""
    client = BlockingCluster(brokers.client_settings())
    return _after_finding(client, brokers)


def admin_at(brokers: Brokers) -> Admin:
    """An admin client of a cluster. Raises within seconds if no broker answers."""
    client = Admin(brokers.client_settings())
    return _after_finding(client, brokers)


def _after_finding(client: Client, brokers: Brokers) -> Client:
    try:
        _find(brokers)
    except BaseException:
        client.close()
        raise
    return client


class _OtherProtocol(ConnectionError):
    """Something is there, and wants to be spoken to otherwise."""


def _find(brokers: Brokers) -> None:
    """Return when one of the brokers has answered. A client would retry for much longer than a person waits."""
    deadline = time.monotonic() + PATIENCE_S
    why = "no address was given"
    for text in ADMIN["bootstrap.servers"].read(brokers.bootstrap):
        try:
            _ask(read_address(text), deadline, is_protected=brokers.is_protected)
            return
        except _OtherProtocol as other:
            raise click.ClickException(f"{text}: {other}") from None
        except OSError as error:
            why = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
    raise click.ClickException(
        f"no answer from {brokers.bootstrap} ({why}): is a broker running there? `semel broker start`, "
        "or name another with --bootstrap"
    )


def _ask(address: tuple[str, int], deadline: float, *, is_protected: bool) -> None:
    with socket.create_connection(address, max(0.1, deadline - time.monotonic())) as connection:
        if is_protected:
            # The client tells at once what is wrong with a certificate or a password.
            return
        _exchange(connection, deadline, ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
        try:
            _exchange(connection, deadline, ApiKey.METADATA, METADATA_VERSION, MetadataRequest(topics=[]))
        except ConnectionError:
            # Who has not said who they are is answered which versions there are, and nothing else.
            raise _OtherProtocol(
                "this broker asks who you are; give --command-config FILE with security.protocol=SASL_PLAINTEXT and a "
                "user"
            ) from None


def _exchange(connection: socket.socket, deadline: float, key: ApiKey, version: int, request: object) -> None:
    """Send a request, and read the answer to it."""
    connection.sendall(b"".join(request_frame(key, version, _CORRELATION_ID, "semel", request)))
    head = _read(connection, 8, deadline)
    size, correlation_id = struct.unpack(">ii", head)
    if correlation_id != _CORRELATION_ID or not 4 <= size <= _LARGEST_ANSWER:
        raise ConnectionError("what listens there is not a Kafka broker")
    _read(connection, size - 4, deadline)


def _read(connection: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        connection.settimeout(max(0.1, deadline - time.monotonic()))
        received = connection.recv(size - len(data))
        if not received:
            raise _OtherProtocol(
                "it closed the connection, as a broker that wants TLS does; give --command-config FILE with "
                "security.protocol=SSL or SASL_SSL"
            )
        data += received
        if data.startswith(_TLS_ALERT):
            raise _OtherProtocol("it speaks TLS; give --command-config FILE with security.protocol=SSL or SASL_SSL")
    return data
