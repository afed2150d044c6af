"""ZooKeeper's tree of nodes: what a request would change (`prepare`), and the change itself (`apply`).

As in ZooKeeper, the leader turns a request into a transaction that no longer depends on anything: versions are checked,
sequence numbers are given, ACLs are resolved. Every server applies the same transactions in the same order and so comes
to the same tree. A request that fails is a transaction without changes: it takes a zxid too.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace

from semel.cluster import session as zk
from semel.cluster.session import EventType, Result, Stat, WatchEvent
from semel.machines.znodes import operations as op
from semel.machines.znodes.operations import ANY_VERSION, Acl, Check, Create, Delete, Operation, SetData

#: An identity of a client: scheme and id.
Identity = tuple[str, str]

#: What happened, and the ACL that says who may be told.
Event = tuple[WatchEvent, tuple[Acl, ...]]

#: What ZooKeeper keeps to itself.
_OWN_PATHS = ("/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config")


@dataclass(slots=True)
class Node:
    data: bytes
    acl: tuple[Acl, ...]
    zxid: int
    mzxid: int
    pzxid: int
    ctime: int
    mtime: int
    owner: int = 0
    version: int = 0
    aversion: int = 0
    #: How many children were ever created. ZooKeeper derives `cversion` from it when it is asked.
    creations: int = 0
    children: set[str] = field(default_factory=set)

    def stat(self) -> Stat:
        return Stat(
            czxid=self.zxid,
            mzxid=self.mzxid,
            ctime=self.ctime,
            mtime=self.mtime,
            version=self.version,
            cversion=2 * self.creations - len(self.children),
            aversion=self.aversion,
            ephemeral_owner=self.owner,
            data_length=len(self.data),
            num_children=len(self.children),
            pzxid=self.pzxid,
        )


@dataclass(frozen=True, slots=True)
class SetAcl:
    """Besides the operations of a multi: a request of its own."""

    path: str
    acl: tuple[Acl, ...]
    version: int = ANY_VERSION

    def size_bytes(self) -> int:
        return 4 + len(self.path.encode()) + 4 + sum(entry.size_bytes() for entry in self.acl) + 4


@dataclass(frozen=True, slots=True)
class Created:
    path: str
    data: bytes
    acl: tuple[Acl, ...]
    owner: int
    parent_creations: int


@dataclass(frozen=True, slots=True)
class Deleted:
    path: str


@dataclass(frozen=True, slots=True)
class DataSet:
    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class AclSet:
    path: str
    acl: tuple[Acl, ...]
    version: int


@dataclass(frozen=True, slots=True)
class Checked:
    path: str


Change = Created | Deleted | DataSet | AclSet | Checked


@dataclass(frozen=True, slots=True)
class Transaction:
    """What every server applies. `changes` is empty for a failed request and for a new session."""

    zxid: int
    time_ms: int
    changes: tuple[Change, ...] = ()


@dataclass(slots=True)
class _Record:
    """What a node will be when the operations before in the same multi are done."""

    version: int
    aversion: int
    creations: int
    child_count: int
    owner: int
    acl: tuple[Acl, ...]


class Tree:
    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {path: Node(b"", op.OPEN, 0, 0, 0, 0, 0) for path in _OWN_PATHS}
        self.nodes["/"].children.add("zookeeper")
        self.nodes["/zookeeper"].children.update(("quota", "config"))
        self.zxid = 0
        #: The ephemeral nodes of each session.
        self.ephemerals: dict[int, set[str]] = {}

    def copy(self) -> Tree:
        """The same tree for a server that begins with a snapshot."""
        other = Tree()
        other.nodes = {path: replace(node, children=set(node.children)) for path, node in self.nodes.items()}
        other.zxid = self.zxid
        other.ephemerals = {owner: set(paths) for owner, paths in self.ephemerals.items()}
        return other

    def node(self, path: str) -> Node:
        node = self.nodes.get(path)
        if node is None:
            raise zk.NoNode(path)
        return node

    # --- deciding

    def prepare(
        self, operations: Sequence[Operation | SetAcl], session_id: int, identities: Iterable[Identity]
    ) -> tuple[Change, ...]:
        """The changes of these operations together; `MultiRefused` names the first that fails."""
        who = frozenset(identities)
        ahead: dict[str, _Record | None] = {}
        changes = []
        for index, operation in enumerate(operations):
            try:
                changes.append(self._prepare(operation, session_id, who, ahead))
            except zk.ZooKeeperError as error:
                raise zk.MultiRefused(index, error) from None
        return tuple(changes)

    def _prepare(
        self,
        operation: Operation | SetAcl,
        session_id: int,
        who: frozenset[Identity],
        ahead: dict[str, _Record | None],
    ) -> Change:
        match operation:
            case Create(path, data, acl, ephemeral, sequential):
                resolved = resolve_acl(acl, who)
                parent_path = parent_of(path)
                parent = self._record(parent_path, ahead)
                need(parent.acl, op.CREATE, who)
                if sequential:
                    path = f"{path}{parent.creations:010d}"
                if self._find(path, ahead) is not None:
                    raise zk.NodeExists(path)
                if parent.owner:
                    raise zk.NoChildrenForEphemerals(parent_path)
                owner = session_id if ephemeral else 0
                parent.creations += 1
                parent.child_count += 1
                ahead[parent_path] = parent
                ahead[path] = _Record(0, 0, 0, 0, owner, resolved)
                return Created(path, data, resolved, owner, parent.creations)
            case Delete(path, version):
                if path in _OWN_PATHS:
                    raise zk.BadArguments(path)
                parent = self._record(parent_of(path), ahead)
                need(parent.acl, op.DELETE, who)
                record = self._record(path, ahead)
                _next_version(record.version, version, path)
                if record.child_count:
                    raise zk.NotEmpty(path)
                parent.child_count -= 1
                ahead[parent_of(path)] = parent
                ahead[path] = None
                return Deleted(path)
            case SetData(path, data, version):
                record = self._record(path, ahead)
                need(record.acl, op.WRITE, who)
                record.version = _next_version(record.version, version, path)
                ahead[path] = record
                return DataSet(path, data, record.version)
            case SetAcl(path, acl, version):
                resolved = resolve_acl(acl, who)
                record = self._record(path, ahead)
                need(record.acl, op.ADMIN, who)
                record.aversion = _next_version(record.aversion, version, path)
                record.acl = resolved
                ahead[path] = record
                return AclSet(path, resolved, record.aversion)
            case Check(path, version):
                record = self._record(path, ahead)
                need(record.acl, op.READ, who)
                _next_version(record.version, version, path)
                return Checked(path)

    def _find(self, path: str, ahead: dict[str, _Record | None]) -> _Record | None:
        if path in ahead:
            return ahead[path]
        node = self.nodes.get(path)
        if node is None:
            return None
        return _Record(node.version, node.aversion, node.creations, len(node.children), node.owner, node.acl)

    def _record(self, path: str, ahead: dict[str, _Record | None]) -> _Record:
        record = self._find(path, ahead)
        if record is None:
            raise zk.NoNode(path)
        return record

    # --- doing

    def apply(self, transaction: Transaction) -> tuple[list[Result], list[Event]]:
        """The results of its changes, and the events: CREATED, CHANGED, DELETED of a node, CHILDREN of its parent."""
        self.zxid = transaction.zxid
        results: list[Result] = []
        events: list[Event] = []
        for change in transaction.changes:
            results.append(self._apply(change, transaction.zxid, transaction.time_ms, events))
        return results, events

    def _apply(self, change: Change, zxid: int, time_ms: int, events: list[Event]) -> Result:
        match change:
            case Created(path, data, acl, owner, parent_creations):
                self.nodes[path] = Node(data, acl, zxid, zxid, zxid, time_ms, time_ms, owner)
                parent = self.nodes[parent_of(path)]
                parent.children.add(path[path.rindex("/") + 1 :])
                parent.creations = parent_creations
                parent.pzxid = zxid
                if owner:
                    self.ephemerals.setdefault(owner, set()).add(path)
                events.append((WatchEvent(EventType.CREATED, path), acl))
                events.append((WatchEvent(EventType.CHILDREN, parent_of(path)), parent.acl))
                return path
            case Deleted(path):
                node = self.nodes.pop(path)
                parent = self.nodes[parent_of(path)]
                parent.children.discard(path[path.rindex("/") + 1 :])
                parent.pzxid = zxid
                if node.owner:
                    self.ephemerals[node.owner].discard(path)
                events.append((WatchEvent(EventType.DELETED, path), node.acl))
                events.append((WatchEvent(EventType.CHILDREN, parent_of(path)), parent.acl))
                return None
            case DataSet(path, data, version):
                node = self.nodes[path]
                node.data, node.version, node.mzxid, node.mtime = data, version, zxid, time_ms
                events.append((WatchEvent(EventType.CHANGED, path), node.acl))
                return node.stat()
            case AclSet(path, acl, version):
                node = self.nodes[path]
                node.acl, node.aversion = acl, version
                return node.stat()
            case Checked():
                return None


def parent_of(path: str) -> str:
    return path[: path.rindex("/")] or "/"


def _next_version(current: int, expected: int, path: str) -> int:
    if expected not in (ANY_VERSION, current):
        raise zk.BadVersion(path)
    return current + 1


def digest_identity(credentials: str) -> Identity:
    """What ZooKeeper makes of "user:password": the user, and a hash of both."""
    user = credentials.split(":", 1)[0]
    return "digest", f"{user}:{base64.b64encode(hashlib.sha1(credentials.encode()).digest()).decode()}"


def allows(acl: tuple[Acl, ...], permissions: int, who: Container[Identity]) -> bool:
    """Whether some entry gives one of these permissions to everybody or to one of these identities."""
    for entry in acl:
        if entry.permissions & permissions:
            if (entry.scheme, entry.id) == ("world", "anyone") or (entry.scheme, entry.id) in who:
                return True
    return False


def without_hash(entry: Acl) -> Acl:
    """An entry as it is shown to who may not see passwords."""
    return Acl(entry.permissions, "digest", entry.id.split(":")[0] + ":x") if entry.scheme == "digest" else entry


def need(acl: tuple[Acl, ...], permissions: int, who: Container[Identity]) -> None:
    if not allows(acl, permissions, who):
        raise zk.NoAuth


def resolve_acl(acl: Sequence[Acl], who: frozenset[Identity]) -> tuple[Acl, ...]:
    """An ACL as it is stored: `auth` stands for the identities that the client has shown."""
    resolved: list[Acl] = []
    for entry in dict.fromkeys(acl):
        if entry.scheme == "auth":
            shown = [Acl(entry.permissions, scheme, name) for scheme, name in sorted(who)]
            if not shown:
                raise zk.InvalidAcl("auth, and the client has shown no identity")
            resolved += shown
        elif (entry.scheme, entry.id) == ("world", "anyone") or (
            entry.scheme == "digest" and entry.id.count(":") == 1 and all(entry.id.split(":"))
        ):
            resolved.append(entry)
        else:
            raise zk.InvalidAcl(f"{entry.scheme}:{entry.id}")
    if not resolved:
        raise zk.InvalidAcl("no entry")
    return tuple(resolved)
