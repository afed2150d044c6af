"""How commands connect to a broker: one option for all of them, and a quick error if no broker answers."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from semel.client.blocking.admin import Admin
from semel.client.blocking.cluster import BlockingCluster
from semel.client.cluster.broker_connections import read_address
from semel.config import ADMIN
from semel.wire.apis import ApiKey
from semel.wire.frames import request_frame
from semel.wire.messages.features import ApiVersionsRequest

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
#: How long to wait for a broker before reporting that there is none.
PATIENCE_S = 3.0
_CORRELATION_ID = 1

Command = TypeVar("Command", bound=Callable[..., Any])

#: Semel's name of the option, and the names that Kafka's tools use.
bootstrap_option = click.option(
    "--bootstrap",
    "--bootstrap-server",
    "--bootstrap-servers",
    "bootstrap",
    default=DEFAULT_BOOTSTRAP,
    show_default=True,
    metavar="HOST:PORT",
    help="A broker to ask.",
)


def common_options(command: Command) -> Command:
    """The options of every command that connects to a broker."""
    return bootstrap_option(click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")(command))


def cluster_at(bootstrap: str) -> BlockingCluster:
    """A client of a cluster. Raises within seconds if no broker answers."""
    _find(bootstrap)
    return BlockingCluster({"bootstrap.servers": bootstrap})


def admin_at(bootstrap: str) -> Admin:
    """An admin client of a cluster. Raises within seconds if no broker answers."""
    _find(bootstrap)
    return Admin({"bootstrap.servers": bootstrap})


def _find(bootstrap: str) -> None:
    """Return when one of the brokers has answered. A client would retry for much longer than a person waits."""
    deadline = time.monotonic() + PATIENCE_S
    why = "no address was given"
    for text in ADMIN["bootstrap.servers"].read(bootstrap):
        try:
            _ask(read_address(text), deadline)
            return
        except OSError as error:
            why = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
    raise click.ClickException(
        f"no answer from {bootstrap} ({why}): is a broker running there? `semel broker start`, "
        "or name another with --bootstrap"
    )


def _ask(address: tuple[str, int], deadline: float) -> None:
    with socket.create_connection(address, max(0.1, deadline - time.monotonic())) as connection:
        frame = request_frame(ApiKey.API_VERSIONS, 0, _CORRELATION_ID, "semel", ApiVersionsRequest())
        connection.sendall(b"".join(frame))
        head = b""
        while len(head) < 8:
            connection.settimeout(max(0.1, deadline - time.monotonic()))
            received = connection.recv(8 - len(head))
            if not received:
                raise ConnectionError("the connection was closed")
            head += received
        if struct.unpack(">i", head[4:])[0] != _CORRELATION_ID:
            raise ConnectionError("what listens there is not a Kafka broker")
