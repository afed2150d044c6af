"""Which room may know which: the layering of the project as one dictionary, held against every import statement."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src"

#: A room, and what it may import besides itself. An entry may name a whole room or one module of it.
#: A room within a room that has an entry of its own is held to that; the others to the entry of the room around them.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    # Clocks, chance, ids and threads: the rooms that do are given them.
    "environment": set(),
    "config": {"errors"},
    "properties": set(),
    "wire": {"errors", "config"},
    "records": {"errors", "config", "wire"},
    "machines": {"errors", "config", "wire", "records"},
    # Within the machines: a conversation knows those it is made of, and never the one that is built on it.
    "machines.contract": {"errors", "machines.values"},
    "machines.values": {"errors"},
    "machines.table": {"errors"},
    # The pages about the tables, for the documentation: no machine needs them.
    "machines.state_pages": {"machines"},
    "machines.internal_topics": {"errors"},
    "machines.name_pattern": {"errors"},
    "machines.quota_rates": {"errors", "config"},
    "machines.producing": {"errors", "config", "wire", "records", "machines.values", "machines.transactions"},
    "machines.transactions": {
        "errors", "config", "wire", "records", "machines.contract", "machines.values", "machines.internal_topics",
        "machines.name_pattern", "machines.table",
    },
    "machines.groups": {
        "errors", "config", "wire", "records", "machines.contract", "machines.values", "machines.internal_topics",
        "machines.name_pattern", "machines.table", "machines.transactions.producer",
    },
    "machines.security": {"errors", "machines.table"},
    "machines.reading": {"errors", "config", "wire", "records", "machines.values", "machines.table"},
    # What the driver of a pipeline decides. It asks in the messages of a transactional client.
    "machines.pipeline": {"errors", "wire", "records", "machines.values", "machines.transactions.requests"},
    # What the cluster keeps in ZooKeeper: paths, values and changes.
    "machines.znodes": {"errors", "machines.values", "machines.replication.values", "machines.security"},
    # One replica of a partition, as leader and as follower; and what is decided for the whole cluster.
    "machines.replication": {"errors", "machines.values", "machines.table"},
    "machines.controller": {"errors", "machines.values", "machines.replication.values", "machines.znodes"},
    "log": {"errors", "config", "environment", "wire", "records", "machines"},
    # A connection to a broker, and the login on it, for clients and for brokers.
    "net": {"errors", "environment", "wire", "machines.security", "security"},
    "broker": {
        "errors", "config", "environment", "properties", "wire", "records", "machines", "log", "security", "cluster",
        "net",
    },
    # Sockets, frames and turns of the loop: they know nothing of topics, coordinators or handlers.
    "broker.net": {"errors", "config", "environment", "wire", "records", "machines.security"},
    "broker.stored": {"errors", "config", "environment", "properties", "wire", "records", "machines", "log"},
    # What makes several brokers one cluster. It knows no broker.
    "cluster": {"errors", "config", "wire", "records", "machines", "net"},
    "simulation.zookeeper": {"machines.znodes", "cluster.session"},
    # Keys, certificates and credentials.
    "security": {"errors", "config"},
    "client": {"errors", "config", "environment", "wire", "records", "machines", "security", "net"},
    # The way to the brokers is used by producer, consumer and admin, and knows none of them.
    "client.cluster": {
        "errors", "config", "environment", "wire", "records", "machines", "security", "net", "client.forking",
    },
    # The asyncio clients know the cluster, but neither each other nor the blocking clients that are built on them.
    "client.group": {"errors", "config", "machines", "client.cluster"},
    "client.consumer": {
        "errors", "config", "environment", "wire", "records", "machines", "net", "client.cluster", "client.group",
        "client.arguments", "client.argument_lists", "client.offset_arguments", "client.offset_requests",
        "client.delegation", "client.finalizers", "client.forking",
    },
    "client.producer": {
        "errors", "config", "environment", "wire", "records", "machines", "net", "client.cluster", "client.arguments",
        "client.argument_lists", "client.offset_arguments", "client.delegation", "client.finalizers", "client.forking",
    },
    "client.admin": {
        "errors", "config", "environment", "wire", "machines", "net", "client.cluster", "client.arguments",
        "client.argument_lists", "client.offset_arguments", "client.offset_requests", "client.delegation",
        "client.finalizers", "client.forking",
    },
    # Checks of what a caller hands over, and requests that several clients send: they know no client.
    "client.arguments": {"errors", "machines"},
    "client.argument_lists": {"errors", "config", "machines", "client.arguments", "client.offset_arguments"},
    "client.offset_arguments": {"machines", "client.arguments"},
    "client.offset_requests": {"errors", "wire", "machines", "client.cluster"},
    "client.forking": {"errors"},
    "client.finalizers": {"client.blocking.loop_thread"},
    "client.delegation": set(),
    # The driver owns a transaction that no producer object owns, so it speaks in messages: all that the client may
    # know, the pipeline may know. What it may not know is the broker and its files.
    "spark": {"errors", "config", "wire", "records", "machines", "client"},
    "testing": {"errors", "config", "wire", "records", "broker"},
    # Brokers as processes, over the simulated ZooKeeper on a socket.
    "testing.cluster": {
        "errors", "config", "wire", "machines.values", "simulation.zookeeper", "testing.broker_process",
        "testing.network", "testing.watchdog",
    },
    "testing.broker_process": {"wire", "testing.network", "testing.watchdog"},
    "testing.network": {"wire"},
    "testing.watchdog": set(),
    "cli": {
        "", "errors", "config", "properties", "wire", "records", "machines", "log", "broker", "client", "spark",
        "security", "simulation", "testing.cluster", "testing.watchdog",
    },
    # The world that everything else can be put into: it knows all, and nobody knows it.
    "simulation": {
        "errors", "config", "environment", "wire", "records", "machines", "log", "broker", "client", "cluster",
        "testing",
    },
    "__main__": {"cli"},
    "aio": {"client"},
    "": {"aio", "testing", "errors", "config", "machines.values", "machines.security", "broker", "client", "spark"},
}

#: The rooms that decide. They are told the time, given their randomness, and speak to nobody.
PURE_ROOMS = ("wire", "records", "machines")
NOT_IN_PURE_ROOMS = {"asyncio", "time", "socket", "os", "threading", "random", "logging"}

MODULES = sorted(SOURCE.glob("semel/**/*.py"))


def dotted(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


NAMES = {dotted(path) for path in MODULES} | {"semel.records._speedups"}


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Every module that a file imports, at its top or inside a function, with relative names made whole."""
    package = dotted(path).split(".") if path.name == "__init__.py" else dotted(path).split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*base, *((node.module or "").split(".") if node.module else [])])
            for alias in node.names:
                whole = f"{origin}.{alias.name}"
                yield node.lineno, whole if whole in NAMES else origin


def room_of(module: str) -> str:
    """The innermost room of a module that the dictionary has an entry for; its top room if there is none."""
    parts = module.split(".")[1:]
    for length in range(len(parts), 1, -1):
        if ".".join(parts[:length]) in MAY_IMPORT:
            return ".".join(parts[:length])
    return parts[0] if parts else ""


def is_within(module: str, room: str) -> bool:
    return module == room or (bool(room) and module.startswith(room + "."))


def breaches(path: Path) -> list[str]:
    room = room_of(dotted(path))
    allowed = MAY_IMPORT[room]
    found = []
    for line, target in imports_of(path):
        top = target.split(".")[0]
        if room.split(".")[0] in PURE_ROOMS and top in NOT_IN_PURE_ROOMS:
            found.append(f"{path.relative_to(SOURCE)}:{line} imports {target}: {room} has no clock, files or sockets")
        inside = target.removeprefix("semel").lstrip(".")
        if top != "semel" or (is_within(inside, room) if room else not inside):
            continue
        if not any(inside == entry or (entry and is_within(inside, entry)) for entry in allowed):
            found.append(f"{path.relative_to(SOURCE)}:{line} imports {target}: {room or 'semel'} may not know it")
    return found


@pytest.mark.parametrize("path", MODULES, ids=dotted)
def test_imports_point_one_way(path: Path) -> None:
    assert room_of(dotted(path)) in MAY_IMPORT, f"{dotted(path)} is in a room that the dictionary does not have"
    assert breaches(path) == []


def test_a_breach_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = tmp_path / "semel" / "machines" / "clock.py"
    machine.parent.mkdir(parents=True)
    machine.write_text("import time\nfrom semel.log import files\n\ndef late():\n    from ..broker import server\n")
    monkeypatch.setitem(globals(), "SOURCE", tmp_path)
    assert [breach.split(" imports ")[1].split(":")[0] for breach in breaches(machine)] == [
        "time",
        "semel.log.files",
        "semel.broker.server",
    ]
