"""TLS between a socket and a connection.

To the socket it is the protocol, to the connection it is the transport. OpenSSL sees neither: it works on memory.

Guarantees:

- Before the handshake is done, a client is read in small pieces and nothing reaches the connection. What does not begin
  like TLS is closed before OpenSSL sees it. A handshake that is not done in time is dropped.
- Handshakes share the turns of the loop: a private key's work of a millisecond each must not hold up other clients.
- Only as much of an answer is encrypted as the client is about to read. The rest stays as it is.
- A client that ends its half of the connection still gets the answers to what it sent.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

from semel.broker.net.memory import new_buffer

if TYPE_CHECKING:
    from semel.broker.net.connection import ServerConnection
    from semel.broker.net.turns import Turns

#: How much is read at once: before the handshake is done, and after it.
HANDSHAKE_READ_BYTES = 16 * 1024
READ_BYTES = 64 * 1024
#: How much of an answer is encrypted ahead of what the socket has taken.
AHEAD_BYTES = 256 * 1024
#: A TLS record holds no more. Small buffers are joined up to this size.
RECORD_BYTES = 16 * 1024
#: How many bytes are handed to OpenSSL and taken from it at once. Its memory stays as large as it was once.
ENCRYPTED_TOGETHER_BYTES = 64 * 1024
#: So much may wait in the socket of what OpenSSL says for itself. A client that asks for new keys reads the answers.
UNREAD_TLS_BYTES = 2 * AHEAD_BYTES
#: What a client without TLS is refused with.
NO_TLS = "no TLS handshake"
REQUEST_WITHOUT_TLS = "a request without TLS; a client of this listener needs security.protocol=SSL or SASL_SSL"
#: The first byte of a handshake.
_HANDSHAKE = 0x16
#: TLS's own word for "this is not what I expect": fatal, unexpected_message. Clients know from it that we speak TLS.
_ALERT = b"\x15\x03\x03\x00\x02\x02\x0a"


class TlsBuffer:
    """What all TLS connections of a loop read into: it is empty again before the next one reads."""

    __slots__ = ("view",)

    def __init__(self) -> None:
        self.view = new_buffer(READ_BYTES)


class TlsConnection(asyncio.BufferedProtocol, asyncio.Transport):
    """One TLS connection of the server's side."""

    def __init__(
        self,
        connection: ServerConnection,
        context: ssl.SSLContext,
        secured: Callable[[ssl.SSLObject], None],
        turned_away: Callable[[str], None] | None,
        turns: Turns,
        buffer: TlsBuffer,
        handshake_timeout_s: float,
    ) -> None:
        super().__init__()
        self._connection = connection
        self._context = context
        #: Called when the handshake is done. It raises ValueError to refuse the client.
        self._secured = secured
        #: Called with the reason when the handshake has failed.
        self._turned_away = turned_away
        self._turns = turns
        self._scratch = buffer.view
        self._timeout_s = handshake_timeout_s
        self._deadline: asyncio.TimerHandle | None = None
        self._raw: asyncio.Transport = cast(asyncio.Transport, None)
        self._tls: ssl.SSLObject | None = None
        self._incoming = self._outgoing = cast(ssl.MemoryBIO, None)
        self._is_secured = False
        #: What the connection wrote and is not encrypted yet.
        self._backlog: deque[memoryview] = deque()
        self._backlog_bytes = 0
        self._raw_is_full = False
        self._writing_paused = False
        self._reading_paused = False
        self._is_reading = False
        self._is_closing = False

    # The socket's protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        self._deadline = asyncio.get_running_loop().call_later(self._timeout_s, self._too_late)
        self._connection.connection_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        self._drop_deadline()
        self._backlog.clear()
        self._backlog_bytes = 0
        self._tls = None
        self._connection.connection_lost(exc)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._scratch if self._is_secured else self._scratch[:HANDSHAKE_READ_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_closing:
            return
        if self._tls is None:
            if self._scratch[0] != _HANDSHAKE:
                # A request begins with its length, of which the first byte is nearly always 0.
                if self._scratch[0]:
                    self._connection.refuse(NO_TLS)
                else:
                    self._close_with(_ALERT, REQUEST_WITHOUT_TLS)
                return
            self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._incoming.write(self._scratch[:nbytes])
        if self._is_secured:
            self._read(self._tls)
        elif self._turns.is_used_up:
            self._raw.pause_reading()
            self._turns.later(self._shake_hands_later)
        else:
            self._shake_hands(self._tls)

    def eof_received(self) -> bool:
        # Without TLS's own end: whoever cut the connection can only have cut a request, which is then not served.
        if not self._is_secured:
            return False
        if not self._is_closing and not self._connection.eof_received():
            self.close()
        # What is not encrypted yet is still sent. `close` or the connection ends it.
        return True

    def pause_writing(self) -> None:
        self._raw_is_full = True
        if not self._writing_paused:
            self._writing_paused = True
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._raw_is_full = False
        if self._turns.is_used_up and self._backlog:
            self._turns.later(self._encrypt_later)
        else:
            self._encrypt_on()

    # The handshake

    def _shake_hands_later(self) -> bool:
        if self._tls is not None and not self._is_closing:
            if not self._reading_paused:
                self._raw.resume_reading()
            self._shake_hands(self._tls)
        return False

    def _shake_hands(self, tls: ssl.SSLObject) -> None:
        since = self._turns.clock()
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return
        except (ssl.SSLError, ValueError) as error:
            self._turn_away(f"the TLS handshake failed: {_why(error)}")
            return
        finally:
            self._turns.worked(since)
        self._flush()
        try:
            self._secured(tls)
        except ValueError as error:
            self._turn_away(str(error))
            return
        self._drop_deadline()
        self._is_secured = True
        if not self._reading_paused:
            self._read(tls)

    def _turn_away(self, why: str) -> None:
        """Close, after the client was told by an alert of OpenSSL's."""
        if self._turned_away is not None:
            self._turned_away(why)
        self._close_with(self._outgoing.read(), why)

    def _close_with(self, last_words: bytes, why: str) -> None:
        """Close. The client has until the deadline to read the last words."""
        self._is_closing = True
        self._connection.closed = True
        self._connection.refused(why)
        if last_words:
            self._raw.write(last_words)
        self._raw.close()

    def _too_late(self) -> None:
        if self._connection.closed:
            self._raw.abort()
        else:
            self._connection.refuse(f"the TLS handshake was not done after {self._timeout_s:g} s")

    def _drop_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # Reading

    def _read(self, tls: ssl.SSLObject) -> None:
        """Hand over what can be decrypted, until the connection wants no more."""
        connection, incoming, pending = self._connection, self._incoming, tls.pending
        read: Callable[[int, memoryview], int] = cast(Any, tls.read)
        self._is_reading = True
        try:
            while (incoming.pending or pending()) and not self._reading_paused and not self._is_closing:
                buffer = connection.get_buffer(-1)
                size, filled = len(buffer), 0
                try:
                    # With nothing left it is not asked: it would raise, which takes as long as to decrypt a record.
                    while filled < size and (incoming.pending or pending()):
                        count = read(size - filled, buffer[filled:] if filled else buffer)
                        if not count:
                            raise ssl.SSLZeroReturnError
                        filled += count
                except ssl.SSLWantReadError:
                    pass
                except ssl.SSLZeroReturnError:
                    if filled:
                        connection.buffer_updated(filled)
                    if not self._is_closing and not connection.eof_received():
                        self.close()
                    return
                if filled:
                    connection.buffer_updated(filled)
        except (ssl.SSLError, ValueError) as error:
            if not self._is_closing:
                connection.refuse(f"TLS failed: {_why(error)}")
            return
        finally:
            self._is_reading = False
        if not self._is_closing and self._outgoing.pending:
            self._flush()
            if self._raw.get_write_buffer_size() > UNREAD_TLS_BYTES:
                connection.refuse("it asks for new TLS keys again and again, and does not read the answers")

    def _read_on(self) -> None:
        if self._reading_paused or self._is_closing or self._tls is None:
            return
        if self._is_secured:
            self._read(self._tls)
        if not self._reading_paused and not self._is_closing:
            self._raw.resume_reading()

    # The connection's transport

    def pause_reading(self) -> None:
        self._reading_paused = True
        self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._reading_paused = False
        if self._is_closing:
            return
        if self._is_reading or self._tls is None:
            self._raw.resume_reading()
        else:
            # As with a socket, nothing arrives before this returns.
            asyncio.get_running_loop().call_soon(self._read_on)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.writelines((data,))

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        tls, raw = self._tls, self._raw
        if self._is_closing or tls is None:
            return
        buffers = list_of_data if isinstance(list_of_data, (list, tuple)) else list(list_of_data)
        if not self._backlog and raw.get_write_buffer_size() < AHEAD_BYTES:
            size = sum(map(len, buffers))
            if size <= RECORD_BYTES:
                # Most answers are small: one record, without a way through the backlog.
                if size:
                    tls.write(buffers[0] if len(buffers) == 1 else b"".join(buffers))
                    raw.write(self._outgoing.read())
                return
        for data in buffers:
            if len(data):
                self._backlog.append(memoryview(data))
                self._backlog_bytes += len(data)
        self._encrypt()

    def get_write_buffer_size(self) -> int:
        return self._backlog_bytes + self._raw.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._tls if name == "ssl_object" else self._raw.get_extra_info(name, default)

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Close once everything that was written is sent."""
        if not self._is_closing:
            self._is_closing = True
            if self._backlog:
                self._raw.pause_reading()
            else:
                self._end()

    def abort(self) -> None:
        """Close at once."""
        self._is_closing = True
        self._raw.abort()

    # Writing

    def _encrypt_later(self) -> bool:
        self._encrypt_on()
        return False

    def _encrypt_on(self) -> None:
        since = self._turns.clock()
        self._encrypt()
        self._turns.worked(since)
        if self._raw_is_full or self._backlog:
            return
        if self._is_closing:
            self._end()
        elif self._writing_paused:
            self._writing_paused = False
            self._connection.resume_writing()

    def _encrypt(self) -> None:
        """Encrypt what is to be written, as far as the socket is about to take it."""
        tls, backlog, outgoing = self._tls, self._backlog, self._outgoing
        if tls is None:
            return
        while backlog and self._raw.get_write_buffer_size() < AHEAD_BYTES:
            while backlog and outgoing.pending < ENCRYPTED_TOGETHER_BYTES:
                piece = backlog[0]
                if len(piece) < RECORD_BYTES and len(backlog) > 1:
                    piece = self._join()
                # It encrypts all it is given, and only then the socket can say that it is full.
                written = tls.write(piece[:ENCRYPTED_TOGETHER_BYTES])
                self._backlog_bytes -= written
                if written == len(piece):
                    backlog.popleft()
                else:
                    backlog[0] = piece[written:]
            self._raw.write(outgoing.read())

    def _join(self) -> memoryview:
        """Make one buffer of the first ones, as large as a record if there is that much."""
        backlog, joined, size = self._backlog, [], 0
        while backlog and size + len(backlog[0]) <= RECORD_BYTES:
            size += len(backlog[0])
            joined.append(backlog.popleft())
        if backlog and size < RECORD_BYTES:
            cut = RECORD_BYTES - size
            joined.append(backlog[0][:cut])
            backlog[0] = backlog[0][cut:]
        backlog.appendleft(memoryview(b"".join(joined)))
        return backlog[0]

    def _flush(self) -> None:
        """Send what OpenSSL has to say for itself: parts of the handshake, alerts."""
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())

    def _end(self) -> None:
        """Say that nothing more comes, and close."""
        if self._tls is not None and self._is_secured:
            try:
                self._tls.unwrap()
            except (ssl.SSLError, ValueError):
                pass  # The client has not said the same. It need not.
            self._flush()
        self._raw.close()


def _why(error: Exception) -> str:
    """What OpenSSL says, in its own words but without its source lines."""
    reason = getattr(error, "verify_message", None) or getattr(error, "reason", None) or str(error)
    return str(reason).replace("_", " ").lower()
