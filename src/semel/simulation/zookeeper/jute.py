"""ZooKeeper's wire format, as far as its clients use it: jute, big-endian, one length before each frame.

The names and numbers are ZooKeeper's. A text or buffer of length -1 is none.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from semel.cluster import session as zk
from semel.cluster.session import EventType, Stat
from semel.machines.znodes.operations import Acl

CREATE, DELETE, EXISTS, GET_DATA, SET_DATA, GET_ACL, SET_ACL = 1, 2, 3, 4, 5, 6, 7
GET_CHILDREN, SYNC, PING, GET_CHILDREN_2, CHECK, MULTI, CREATE_2 = 8, 9, 11, 12, 13, 14, 15
AUTH, CLOSE = 100, -11

#: In place of the number of a request.
EVENT_XID, PING_XID, AUTH_XID = -1, -2, -4

EVENTS = {EventType.CREATED: 1, EventType.DELETED: 2, EventType.CHANGED: 3, EventType.CHILDREN: 4}
_CONNECTED = 3

CODES: dict[type[zk.ZooKeeperError], int] = {
    zk.NoNode: -101,
    zk.NoAuth: -102,
    zk.BadVersion: -103,
    zk.NoChildrenForEphemerals: -108,
    zk.NodeExists: -110,
    zk.NotEmpty: -111,
    zk.InvalidAcl: -114,
    zk.AuthFailed: -115,
    zk.BadArguments: -8,
}
UNIMPLEMENTED = -6
#: Of the operations of a multi that were not to blame: those before the one that failed, and those after it.
ROLLED_BACK, RUNTIME_INCONSISTENCY = 0, -2

_STAT = struct.Struct(">qqqqiiiqiiq")
_REPLY = struct.Struct(">iqi")
_MULTI_HEADER = struct.Struct(">i?i")


class Reader:
    """Takes one value after the other from a frame; `struct.error` or `ValueError` where it ends too soon."""

    def __init__(self, frame: bytes) -> None:
        self._frame = frame
        self._at = 0

    def _take(self, form: str) -> int:
        (value,) = struct.unpack_from(form, self._frame, self._at)
        self._at += struct.calcsize(form)
        return int(value)

    def int32(self) -> int:
        return self._take(">i")

    def int64(self) -> int:
        return self._take(">q")

    def flag(self) -> bool:
        return bool(self._take(">B"))

    def buffer(self) -> bytes:
        size = self.int32()
        if size < 0:
            return b""
        if self._at + size > len(self._frame):
            raise ValueError("a buffer is longer than its frame")
        self._at += size
        return self._frame[self._at - size : self._at]

    def text(self) -> str:
        return self.buffer().decode()

    def acl(self) -> tuple[Acl, ...]:
        return tuple(Acl(self.int32(), self.text(), self.text()) for _ in range(max(self.int32(), 0)))


def of_int(value: int) -> bytes:
    return struct.pack(">i", value)


def of_buffer(value: bytes) -> bytes:
    return of_int(len(value)) + value


def of_text(value: str) -> bytes:
    return of_buffer(value.encode())


def of_texts(values: Sequence[str]) -> bytes:
    return of_int(len(values)) + b"".join(map(of_text, values))


def of_acl(acl: Sequence[Acl]) -> bytes:
    entries = (of_int(each.permissions) + of_text(each.scheme) + of_text(each.id) for each in acl)
    return of_int(len(acl)) + b"".join(entries)


def of_stat(stat: Stat) -> bytes:
    return _STAT.pack(*stat)


def reply(xid: int, zxid: int, code: int = 0, body: bytes = b"") -> bytes:
    """A whole frame."""
    return of_buffer(_REPLY.pack(xid, zxid, code) + body)


def event(kind: EventType, path: str) -> bytes:
    """A whole frame: a watch has fired."""
    return reply(EVENT_XID, -1, 0, struct.pack(">ii", EVENTS[kind], _CONNECTED) + of_text(path))


def connected(session_id: int, password: bytes, timeout_ms: int) -> bytes:
    """A whole frame: the session is there; with a timeout of 0 it is over."""
    return of_buffer(struct.pack(">iiq", 0, timeout_ms, session_id) + of_buffer(password) + b"\0")


def multi_header(kind: int, code: int, *, is_last: bool = False) -> bytes:
    return _MULTI_HEADER.pack(kind, is_last, code)
