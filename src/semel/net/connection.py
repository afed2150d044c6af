"""One connection to one broker. It sends and receives frames, and matches responses to requests by their order.

Guarantees: a response goes to the request that it belongs to, or the connection is closed; when it is closed, every
waiting request fails with `Disconnected` at once; a large frame is received straight into its own buffer, so that the
records of a fetch are views into it and are never copied.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import cast

from semel.errors import Disconnected, ErrorCode, KafkaError, TlsFailed
from semel.wire.primitives import Buffer

_STAGING_SIZE = 64 * 1024
_read_length = Struct(">i").unpack_from
#: A larger frame size means that the other side is not a Kafka broker.
_LARGEST_FRAME = 1 << 30
_NOT_ASKED = "sent an answer to nothing that was asked: is it a Kafka broker?"

#: The first byte of a TLS alert, which is what a TLS port answers to us; the second is the protocol's major version.
_TLS_ALERT = 0x15
#: An ApiVersions request, version 0, of a client without a name.
_API_VERSIONS = Struct(">ihhih")
#: How long a broker that hung up on TLS may take to answer without it, seconds.
_PROBE_S = 5


def tls_failure(address: str, host: str, failure: ssl.SSLError) -> KafkaError:
    """Why a TLS handshake failed, in words, and whether trying again may help."""
    if isinstance(failure, ssl.SSLCertVerificationError):
        why = {
            10: "its certificate has expired",
            9: "its certificate is not valid yet",
            18: "its certificate is self-signed, and not one of those we trust (ssl.truststore.location)",
            19: "its certificate is signed by an authority that is not one of those we trust (ssl.truststore.location)",
            20: "its certificate is signed by an authority that is not one of those we trust (ssl.truststore.location)",
            62: f"its certificate is for another name than {host!r}",
            64: f"its certificate is for another address than {host!r}",
        }.get(failure.verify_code, f"its certificate is not accepted: {failure.verify_message}")
        return TlsFailed(ErrorCode.NETWORK_EXCEPTION, f"{address}: {why}")
    reason = failure.reason or str(failure)
    if "WRONG_VERSION_NUMBER" in reason or "RECORD_LAYER_FAILURE" in reason:
        why = "it does not speak TLS: is security.protocol right for this port?"
    elif "CERTIFICATE_REQUIRED" in reason:
        why = "it asks for our certificate: set ssl.keystore.location (ssl.certificate.location)"
    elif "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason):
        why = f"it does not accept our certificate, or misses it (ssl.keystore.location): {reason}"
    elif "PROTOCOL" in reason or "HANDSHAKE_FAILURE" in reason or "CIPHER" in reason:
        why = f"we have no version of TLS or no cipher in common with it ({reason})"
    else:
        return Disconnected(ErrorCode.NETWORK_EXCEPTION, f"cannot connect to {address}: TLS failed: {reason}")
    return TlsFailed(ErrorCode.NETWORK_EXCEPTION, f"{address}: {why}")


class Connection(asyncio.BufferedProtocol):
    """A socket that carries frames. Open one with `Connection.open`."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.closed = False
        #: Whether anything but ApiVersions was answered on it.
        self.has_served = False
        self._loop = asyncio.get_running_loop()
        self._used_at = self._loop.time()
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[tuple[int, asyncio.Future[memoryview]]] = deque()
        self._next_correlation_id = 0
        self._staging = bytearray(_STAGING_SIZE)
        self._staged = 0
        self._frame: bytearray | None = None
        self._filled = 0

    @classmethod
    async def open(cls, host: str, port: int, *, tls: ssl.SSLContext | None = None) -> Connection:
        """Connect, or raise `Disconnected` with the reason; `TlsFailed` where trying again would not help."""
        address = f"{host}:{port}"
        loop = asyncio.get_running_loop()
        try:
            _, connection = await loop.create_connection(
                lambda: cls(address), host, port, ssl=tls, server_hostname=host if tls else None
            )
        except ssl.SSLError as failure:
            raise tls_failure(address, host, failure) from None
        except OSError as failure:
            why = f"{failure.strerror or failure or type(failure).__name__}"
            is_hung_up = isinstance(failure, ConnectionError) and not isinstance(failure, ConnectionRefusedError)
            if tls is not None and is_hung_up:
                why = "it closed the connection instead of speaking TLS: is security.protocol right for this port?"
                if await cls._serves_without_tls(host, port):
                    why = f"{address} does not speak TLS: set security.protocol to PLAINTEXT or SASL_PLAINTEXT"
                    raise TlsFailed(ErrorCode.NETWORK_EXCEPTION, why) from None
            raise Disconnected(ErrorCode.NETWORK_EXCEPTION, f"cannot connect to {address}: {why}") from failure
        return connection

    @classmethod
    async def _serves_without_tls(cls, host: str, port: int) -> bool:
        """Whether a broker that hangs up on TLS serves without it. It is asked what everybody may ask: its versions."""
        try:
            connection = await cls.open(host, port)
        except KafkaError:
            return False
        try:
            asked = connection.next_correlation_id()
            async with asyncio.timeout(_PROBE_S):
                await connection.send([_API_VERSIONS.pack(_API_VERSIONS.size - 4, 18, 0, asked, -1)], asked)
        except (KafkaError, TimeoutError):
            return False
        finally:
            connection.close()
        return True

    @property
    def in_flight(self) -> int:
        """How many requests wait for a response."""
        return len(self._waiting)

    @property
    def idle_s(self) -> float:
        """Seconds since the last request, or 0 while a response is awaited."""
        return 0.0 if self._waiting else self._loop.time() - self._used_at

    def now_s(self) -> float:
        """The time on the loop's clock."""
        return self._loop.time()

    def set_buffers(self, send_bytes: int | None, receive_bytes: int | None) -> None:
        """Set SO_SNDBUF and SO_RCVBUF; None leaves them to the system."""
        raw = None if self._transport is None else self._transport.get_extra_info("socket")
        for option, size in ((socket.SO_SNDBUF, send_bytes), (socket.SO_RCVBUF, receive_bytes)):
            if raw is not None and size is not None:
                raw.setsockopt(socket.SOL_SOCKET, option, size)

    def notice_cuts(self, within_s: int) -> None:
        """Let the system end the connection when the other machine has not been heard of for so long.

        TCP sends again what gets no answer, in ever longer pauses. After a cut of ten seconds it may say nothing for
        ten more. And who only waits for an answer notices nothing at all, unless it asks whether the other is there.
        """
        raw = None if self._transport is None else self._transport.get_extra_info("socket")
        if raw is None:
            return
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        pause_s = max(1, within_s // 4)
        for name, value in (
            ("TCP_USER_TIMEOUT", within_s * 1000),
            ("TCP_KEEPIDLE", pause_s),
            ("TCP_KEEPINTVL", pause_s),
            ("TCP_KEEPCNT", 3),
        ):
            if hasattr(socket, name):  # Linux
                raw.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    @property
    def has_ended(self) -> bool:
        """Whether the other side has ended it, also if the loop has not told us yet."""
        raw = None if self._transport is None else self._transport.get_extra_info("socket")
        if self.closed or raw is None or raw.fileno() < 0 or not hasattr(select, "POLLRDHUP"):
            return self.closed
        look = select.poll()
        look.register(raw.fileno(), select.POLLRDHUP)
        return bool(look.poll(0))

    def next_correlation_id(self) -> int:
        self._next_correlation_id = (self._next_correlation_id + 1) & 0x7FFFFFFF
        return self._next_correlation_id

    def send(
        self, parts: Sequence[Buffer], correlation_id: int | None, answer: asyncio.Future[memoryview] | None = None
    ) -> asyncio.Future[memoryview]:
        """Write one frame. The future gets the response frame. Without a correlation id no response is expected."""
        if answer is None:
            answer = self._loop.create_future()
        self._used_at = self._loop.time()
        if self.closed or self._transport is None:
            answer.set_exception(self._lost(None))
            return answer
        if correlation_id is None:
            answer.set_result(memoryview(b""))
        else:
            self._waiting.append((correlation_id, answer))
        self._transport.writelines(parts)
        return answer

    def close(self, why: str = "closed by the client") -> None:
        """Close now. Waiting requests fail with `Disconnected`."""
        if self._transport is not None and not self.closed:
            self._fail(Disconnected(ErrorCode.NETWORK_EXCEPTION, f"connection to {self.address} {why}"))
            self._transport.abort()

    # --- asyncio's side -------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not a subclass

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(self._lost(exc))

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._frame is not None:
            return memoryview(self._frame)[self._filled :]
        return memoryview(self._staging)[self._staged :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._frame is not None:
            self._filled += nbytes
            if self._filled == len(self._frame):
                frame, self._frame = self._frame, None
                self._answer(memoryview(frame))
            return
        self._staged += nbytes
        self._take_frames()

    def eof_received(self) -> bool:
        return False

    # --- frames ---------------------------------------------------------------------------------------------------

    def _take_frames(self) -> None:
        """Take whole frames out of the staging buffer. A frame that is not complete gets its own buffer."""
        position, end, staging = 0, self._staged, self._staging
        while end - position >= 4 and not self.closed:
            size = _read_length(staging, position)[0]
            if staging[position] == _TLS_ALERT and staging[position + 1] == 3:
                why = f"{self.address} speaks TLS: set security.protocol to SSL or SASL_SSL"
                self._fail(TlsFailed(ErrorCode.NETWORK_EXCEPTION, why))
                if self._transport is not None:
                    self._transport.abort()
                return
            if not 0 <= size <= _LARGEST_FRAME:
                self.close(f"sent a frame of {size} bytes: is it a Kafka broker?")
                return
            start = position + 4
            if end - start >= size:
                self._answer(memoryview(bytes(staging[start : start + size])))
                position = start + size
                continue
            if end - start < 4:
                break
            # What is no broker may claim a gigabyte: no memory for it before it is an answer.
            if not self._waiting or _read_length(staging, start)[0] != self._waiting[0][0]:
                self.close(_NOT_ASKED)
                return
            self._frame = bytearray(size)
            self._filled = end - start
            self._frame[: self._filled] = staging[start:end]
            position = end
        if position < end:
            staging[: end - position] = staging[position:end]
        self._staged = end - position

    def _answer(self, frame: memoryview) -> None:
        if not self._waiting:
            self.close(_NOT_ASKED)
            return
        if len(frame) < 4 or _read_length(frame)[0] != self._waiting[0][0]:
            self.close(_NOT_ASKED)
            return
        answer = self._waiting.popleft()[1]
        if not answer.done():
            answer.set_result(frame)

    def _lost(self, exc: Exception | None) -> KafkaError:
        if isinstance(exc, ssl.SSLError):
            # Under TLS 1.3 a broker refuses our certificate, or the lack of one, after the handshake.
            return tls_failure(self.address, self.address.rpartition(":")[0], exc)
        reason = f": {exc}" if exc else ""
        return Disconnected(ErrorCode.NETWORK_EXCEPTION, f"connection to {self.address} lost{reason}")

    def _fail(self, error: KafkaError) -> None:
        self.closed = True
        waiting, self._waiting = self._waiting, deque()
        for _, answer in waiting:
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # whoever waits gets it; if nobody does any more, asyncio need not complain
