"""A session with ZooKeeper, as the cluster uses it: one interface for the real ZooKeeper and for the simulated one.

What both promise:
- Answers and watch events arrive in the order in which the server sent them, so a watch fires before an answer that
  shows the change.
- A request ends with its answer, or with `ConnectionLoss`: then nobody knows whether it was carried out (rule Z3 of the
  cluster). A request that is made while the session is not connected ends so at once, and nothing is sent.
- A request that was lost does not come back later: what a `sync` and a read on the same session show is final.
- A watch fires once. It dies with the connection, and is then told `EventType.NONE`. Who watches reads again when the
  session is connected again.
- SUSPENDED says that no server answers; it may last as long as it likes, and the session is perhaps still there. LOST
  says that ZooKeeper has ended the session and removed its ephemeral nodes. A new session follows by itself.

The errors, all below `ZooKeeperError`:

    ConnectionLoss            unknown outcome
    SessionExpired            the session is over, its ephemeral nodes are gone
    MultiRefused              nothing was changed; which operation failed, and why
    NoNode NodeExists BadVersion NotEmpty NoChildrenForEphemerals
    NoAuth InvalidAcl AuthFailed BadArguments
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from semel.machines.znodes.operations import ANY_VERSION, OPEN, Acl, Operation


class SessionState(enum.Enum):
    CONNECTED = "requests are answered"
    SUSPENDED = "no server answers; the session may still be there"
    LOST = "ZooKeeper has ended the session"
    CLOSED = "closed by its owner"


class EventType(enum.Enum):
    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILDREN = "children changed"
    NONE = "the connection is gone, and the watch with it"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    type: EventType
    path: str


Watcher = Callable[[WatchEvent], None]
StateListener = Callable[[SessionState], None]


class Stat(NamedTuple):
    """ZooKeeper's facts about a node, under its own names."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int


#: What an operation of a multi gives: a created node's path, a changed node's facts, otherwise nothing.
Result = str | Stat | None


class ZooKeeperError(Exception):
    """Anything that ZooKeeper, or the way to it, answers instead of a result."""

    def __str__(self) -> str:
        return super().__str__() or type(self).__name__


class ConnectionLoss(ZooKeeperError):
    """No answer came. Whether the request was carried out is unknown: sync, read again, and go by what is there."""


class SessionExpired(ZooKeeperError):
    """The session is over, and its ephemeral nodes are gone."""


class NoNode(ZooKeeperError):
    """The node, or the parent of a node to be created, is not there."""


class NodeExists(ZooKeeperError):
    """The node is there already."""


class BadVersion(ZooKeeperError):
    """The node has another version: somebody else changed it."""


class NotEmpty(ZooKeeperError):
    """A node with children cannot be deleted."""


class NoChildrenForEphemerals(ZooKeeperError):
    """An ephemeral node cannot have children."""


class NoAuth(ZooKeeperError):
    """The node's ACL does not allow it."""


class InvalidAcl(ZooKeeperError):
    """An ACL that ZooKeeper does not accept: an unknown scheme, or `auth` in a session that shows no identity."""


class AuthFailed(ZooKeeperError):
    """ZooKeeper did not accept the credentials of the session."""


class BadArguments(ZooKeeperError):
    """A path that ZooKeeper keeps to itself, or another argument that it never accepts."""


class MultiRefused(ZooKeeperError):
    """A multi that changed nothing, because operation number `index` failed with `error`."""

    def __init__(self, index: int, error: ZooKeeperError) -> None:
        super().__init__(f"operation {index} of the multi: {type(error).__name__}")
        self.index = index
        self.error = error

    def raise_unless_outrun(self) -> None:
        """Trying again helps where somebody else was faster, and nowhere else."""
        if not isinstance(self.error, (NoNode, NodeExists, BadVersion, NotEmpty)):
            raise self


def check_path(path: str) -> None:
    """A whole path, as ZooKeeper takes it; both sessions refuse others before they send anything."""
    parts = path.split("/")
    whole = path.startswith("/") and (path == "/" or all(part not in ("", ".", "..") for part in parts[1:]))
    if not whole or "\0" in path:
        raise ValueError(f"{path!r} is no path in ZooKeeper: it must look like /a/b")


class ZooKeeperSession(Protocol):
    """One session. All methods belong to one event loop, and so do the listeners and watchers that it calls."""

    @property
    def state(self) -> SessionState: ...

    @property
    def session_id(self) -> int:
        """Of the session that is there, or was there last: the owner of its ephemeral nodes."""

    def add_listener(self, listener: StateListener) -> None:
        """Call it at every change of `state`."""

    async def create(
        self,
        path: str,
        data: bytes = b"",
        *,
        acl: Sequence[Acl] = OPEN,
        ephemeral: bool = False,
        sequential: bool = False,
    ) -> str:
        """The path, with its number if it is sequential."""

    async def delete(self, path: str, version: int = ANY_VERSION) -> None: ...

    async def exists(self, path: str, watch: Watcher | None = None) -> Stat | None:
        """Watches the node also if it is not there: for its creation."""

    async def get(self, path: str, watch: Watcher | None = None) -> tuple[bytes, Stat]: ...

    async def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> Stat: ...

    async def get_children(self, path: str, watch: Watcher | None = None) -> tuple[list[str], Stat]:
        """The names, sorted."""

    async def get_acl(self, path: str) -> tuple[tuple[Acl, ...], Stat]: ...

    async def set_acl(self, path: str, acl: Sequence[Acl], version: int = ANY_VERSION) -> Stat:
        """`version` is that of the ACL (`aversion`)."""

    async def sync(self, path: str) -> None:
        """The server of this session catches up with everything that was answered to anybody before."""

    async def multi(self, operations: Sequence[Operation]) -> list[Result]: ...

    async def close(self) -> None:
        """Ends the session; its ephemeral nodes go at once if a server can be reached."""
