"""Who answers at an address where a ZooKeeper was expected, in words: for a broker that got no session there.

A ZooKeeper is asked with its command `srvr`. What does not know that is asked whether it is a Kafka broker or a web
server, which are the usual mistakes. Blocking; at most a few seconds for an address.
"""

from __future__ import annotations

import socket

PATIENCE_S = 1.0
_ANSWER_BYTES = 2048
#: ApiVersions, version 0, with correlation id 7 and an empty client id.
_API_VERSIONS = b"\0\0\0\x0a\0\x12\0\0\0\0\0\7\0\0"
_CORRELATION_ID = b"\0\0\0\7"
_TLS_ALERT = b"\x15\x03"
_OTHER = "is zookeeper.connect right?"


def who_listens(host: str, port: int, patience_s: float = PATIENCE_S) -> str:
    """What is wrong there; empty if nothing is known to be."""
    try:
        said = _asked(host, port, b"srvr", patience_s)
    except OSError:
        return ""  # it cannot be reached: that was told by those who tried
    if said:
        return _zookeeper_says(said)
    for question in (_API_VERSIONS, b"GET / HTTP/1.0\r\n\r\n"):
        try:
            said = _asked(host, port, question, patience_s) or said
        except OSError:
            return ""
        if said:
            break
    if said is None:
        return "something takes connections and says nothing: a ZooKeeper that hangs, or no ZooKeeper"
    if said[4:8] == _CORRELATION_ID:
        return f"a Kafka broker listens there, and no ZooKeeper; {_OTHER}"
    return _something_says(said) if said else ""


def _zookeeper_says(said: bytes) -> str:
    if b"not currently serving requests" in said:
        return "a ZooKeeper is there and does not serve: too few of its nodes run, or reach each other"
    if b"Mode: read-only" in said:
        return "a ZooKeeper is there and is read-only: too few of its nodes run, or reach each other"
    if b"Zookeeper version" in said or b"whitelist" in said:
        return (
            "a ZooKeeper is there and takes no session: it asks for a login that a broker does not have (SASL), or for "
            "TLS, or has too many connections (maxClientCnxns), or has lost data that this broker knows of, as if "
            "restored from an old copy. Its own log says which"
        )
    return _something_says(said)


def _something_says(said: bytes) -> str:
    if said.startswith(_TLS_ALERT):
        return "TLS is spoken there: see zookeeper.ssl.client.enable"
    if said.startswith((b"HTTP/", b"<")):
        return f"a web server listens there, and no ZooKeeper; {_OTHER}"
    return f"no ZooKeeper listens there, but something that says {said[:40]!r}; {_OTHER}"


def _asked(host: str, port: int, question: bytes, patience_s: float) -> bytes | None:
    """What it says until it ends the connection or is silent; None if it says nothing and waits."""
    said = b""
    with socket.create_connection((host, port), patience_s) as connection:
        try:
            connection.sendall(question)
            while len(said) < _ANSWER_BYTES and (more := connection.recv(_ANSWER_BYTES)):
                said += more
        except TimeoutError:
            return said or None
        except OSError:
            pass  # it has ended the connection
    return said
