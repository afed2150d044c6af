"""Changes of znodes, as values: what a machine decides and a ZooKeeper session carries out.

A `Multi` is carried out whole or not at all. `size_bytes` is what a change takes in a request to ZooKeeper, to the
byte, because ZooKeeper drops the connection of a client that sends more than jute's bound (1 MB) in one request.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

#: In place of a version: whatever it is.
ANY_VERSION = -1

#: What a request holds at most before ZooKeeper drops the connection (`jute.maxbuffer`).
JUTE_MAX_BYTES = 0xFFFFF

READ, WRITE, CREATE, DELETE, ADMIN = 1, 2, 4, 8, 16
ALL = READ | WRITE | CREATE | DELETE | ADMIN


@dataclass(frozen=True, slots=True)
class Acl:
    """Who may do what with a znode; the permissions are bits."""

    permissions: int
    scheme: str
    id: str

    def size_bytes(self) -> int:
        return 4 + _string(self.scheme) + _string(self.id)


OPEN = (Acl(ALL, "world", "anyone"),)
#: Nodes that hold keys or passwords, and all below them: nobody but who has created them may read them.
SENSITIVE = ("/config/users", "/config/brokers", "/delegation_token", "/semel/scram_secret")


def owned(path: str) -> tuple[Acl, ...]:
    """What Kafka's `zookeeper.set.acl` gives a node: everything to who creates it, and to read for all but secrets."""
    creator = Acl(ALL, "auth", "")
    is_sensitive = any(path == one or path.startswith(f"{one}/") for one in SENSITIVE)
    return (creator,) if is_sensitive else (creator, Acl(READ, "world", "anyone"))


def _string(text: str) -> int:
    return 4 + len(text.encode())


@dataclass(frozen=True, slots=True)
class Check:
    """Nothing is changed, but the node must have this version."""

    path: str
    version: int

    def size_bytes(self) -> int:
        return _string(self.path) + 4


@dataclass(frozen=True, slots=True)
class Create:
    """A new node, whose parent must exist. A sequential one gets a number of ten digits after its name."""

    path: str
    data: bytes = b""
    acl: tuple[Acl, ...] = OPEN
    ephemeral: bool = False
    sequential: bool = False

    def size_bytes(self) -> int:
        acl = 4 + sum(entry.size_bytes() for entry in self.acl)
        return _string(self.path) + 4 + len(self.data) + acl + 4


@dataclass(frozen=True, slots=True)
class Delete:
    """The node goes, if it has this version and no children."""

    path: str
    version: int = ANY_VERSION

    def size_bytes(self) -> int:
        return _string(self.path) + 4


@dataclass(frozen=True, slots=True)
class SetData:
    """The node's data is replaced, if it has this version."""

    path: str
    data: bytes
    version: int = ANY_VERSION

    def size_bytes(self) -> int:
        return _string(self.path) + 4 + len(self.data) + 4


Operation = Check | Create | Delete | SetData

#: Before each operation of a multi: its kind, whether it is the last, an error code. One more ends the multi.
_MULTI_HEADER_BYTES = 9
#: Before every request: its length, its number, its kind. The length itself does not count.
REQUEST_HEADER_BYTES = 8


@dataclass(frozen=True, slots=True)
class Multi:
    """Changes that happen together or not at all."""

    operations: tuple[Operation, ...]

    def __init__(self, operations: Iterable[Operation]) -> None:
        object.__setattr__(self, "operations", tuple(operations))

    def size_bytes(self) -> int:
        return multi_size_bytes(self.operations)


def multi_size_bytes(operations: Sequence[Operation]) -> int:
    """The size of the request that carries these operations as one multi."""
    inside = sum(_MULTI_HEADER_BYTES + operation.size_bytes() for operation in operations)
    return REQUEST_HEADER_BYTES + inside + _MULTI_HEADER_BYTES
