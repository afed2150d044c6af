"""An address is asked by HTTP or HTTPS, once, and its answer is bounded in size and in time.

Guarantees:

- All of it takes no longer than the time given, however slowly the other side sends: what is late is cut off.
- A redirect is not followed: it could lead to a file, or carry a secret to another address.
- An https address must show a certificate for its name, from an authority that the system trusts (`SSL_CERT_FILE` names
  others).
"""

from __future__ import annotations

import socket
import ssl
import threading
import urllib.error
import urllib.request
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


class _Asking(urllib.request.HTTPSHandler, urllib.request.HTTPHandler):
    """Opens one connection, and can cut it off."""

    def __init__(self) -> None:
        super().__init__()
        self.is_late = False
        self._socket: socket.socket | None = None

    def http_open(self, req: Any) -> Any:
        return self.do_open(self._http, req)

    def https_open(self, req: Any) -> Any:
        return self.do_open(self._https, req)

    def _http(self, host: str, **more: Any) -> HTTPConnection:
        return self._watched(HTTPConnection(host, **more))

    def _https(self, host: str, **more: Any) -> HTTPConnection:
        return self._watched(HTTPSConnection(host, context=ssl.create_default_context(), **more))

    def _watched(self, connection: HTTPConnection) -> HTTPConnection:
        connect = connection.connect

        def connect_in_time() -> None:
            connect()
            # Before the look at `is_late`: whoever sets that looks for the socket afterwards.
            self._socket = connection.sock
            if self.is_late:
                raise TimeoutError

        setattr(connection, "connect", connect_in_time)  # noqa: B010
        return connection

    def cut_off(self) -> None:
        """End the connection under whoever reads from it. To connect and to shake hands has a time limit of its own."""
        self.is_late = True
        if self._socket is not None:
            try:
                # Not the method of a TLS socket, which takes its state away from the thread that reads.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
            except OSError:
                pass  # it has ended


def _opener(asking: _Asking) -> urllib.request.OpenerDirector:
    """Opens http and https, by a proxy where the environment names one, and nothing else: no file, no FTP."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.UnknownHandler(),
        asking,
        _NoRedirects(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def ask(request: urllib.request.Request, *, most_bytes: int, timeout_s: float) -> bytes:
    """The answer to a request. It blocks.

    Raises `urllib.error.HTTPError` where the answer is an error or a redirect, and `ConnectionError` with the reason
    where there is none that can be used.
    """
    asking = _Asking()
    deadline = threading.Timer(timeout_s, asking.cut_off)
    deadline.daemon = True
    deadline.start()
    try:
        with _opener(asking).open(request, timeout=timeout_s) as response:
            data = bytearray()
            while part := response.read1(65536):
                data += part
                if len(data) > most_bytes:
                    raise ConnectionError(f"the answer has more than {most_bytes} bytes")
    except urllib.error.HTTPError:
        raise
    except (OSError, ValueError, HTTPException) as error:
        if not asking.is_late:
            raise ConnectionError(_why(error)) from None
    finally:
        deadline.cancel()
    if asking.is_late:
        raise ConnectionError(f"the answer took more than {timeout_s:g} s")
    return bytes(data)


def _why(error: BaseException) -> str:
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return (
            f"its certificate is not trusted ({cause.verify_message}); SSL_CERT_FILE names the file with the "
            "authorities to trust instead of the system's"
        )
    return str(cause) or type(cause).__name__
