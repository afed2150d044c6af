"""Keys of an issuer and tokens over https: whom we trust, and what an answer may cost."""

from __future__ import annotations

import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from semel.broker.security import key_source
from semel.security.bounded_http import ask
from semel.security.development import DevelopmentAuthority
from semel.security.token_endpoint import TokenEndpoint
from tests.security.test_bearer_broker import FIRST, INVALID, login, running
from tests.support.token_issuer import TokenIssuer, token


@pytest.fixture(scope="module")
def authority() -> DevelopmentAuthority:
    return DevelopmentAuthority()


@contextmanager
def issuing(authority: DevelopmentAuthority, folder: Path, host: str = "127.0.0.1") -> Iterator[TokenIssuer]:
    certificate, _ = authority.issue("issuer", hosts=[host]).write(folder, "issuer")
    with TokenIssuer([FIRST], certificate=certificate) as issuer:
        yield issuer


@pytest.fixture
def trusted(authority: DevelopmentAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "authority.pem"
    file.write_text(authority.certificate_pem)
    monkeypatch.setenv("SSL_CERT_FILE", str(file))


@pytest.fixture
def issuer(authority: DevelopmentAuthority, trusted: None, tmp_path: Path) -> Iterator[TokenIssuer]:
    with issuing(authority, tmp_path) as found:
        yield found


def test_keys_and_tokens_come_from_an_issuer_whose_authority_is_trusted(issuer: TokenIssuer) -> None:
    assert issuer.jwks_url.startswith("https://")
    given, _ = TokenEndpoint(issuer.token_url, "alice", "s3cret")()
    with running(issuer.jwks_url) as address:
        assert login(address, given) is True
    assert issuer.asked == ["/token", "/keys"]


def test_an_issuer_of_another_authority_is_not_believed_and_the_log_says_what_to_do(
    trusted: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with issuing(DevelopmentAuthority(), tmp_path) as stranger:
        with running(stranger.jwks_url) as address:
            assert login(address, token(FIRST)) == INVALID
        assert stranger.asked == []
        with pytest.raises(ConnectionError, match="gave no token: its certificate is not trusted"):
            TokenEndpoint(stranger.token_url, "alice", "s3cret")()
    assert f"no keys from {stranger.jwks_url}, no token can be checked: its certificate is not trusted" in caplog.text
    assert "SSL_CERT_FILE names the file" in caplog.text


def test_a_certificate_for_another_name_is_not_believed(
    authority: DevelopmentAuthority, trusted: None, tmp_path: Path
) -> None:
    with issuing(authority, tmp_path, host="other.example") as issuer:
        with pytest.raises(ConnectionError, match=r"is not trusted \(IP address mismatch"):
            key_source.fetch(issuer.jwks_url)
        assert issuer.asked == []


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_to_a_file_or_elsewhere(issuer: TokenIssuer, tmp_path: Path, status: int) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(issuer.jwks())
    issuer.answer = lambda: (status, b"")
    for elsewhere in (file.as_uri(), issuer.jwks_url + "/other"):
        issuer.headers = {"Location": elsewhere}
        with pytest.raises(ConnectionError, match=f"it answered {status}"):
            key_source.fetch(issuer.jwks_url)
    assert set(issuer.asked) == {"/keys"}


def test_nothing_but_http_and_https_is_opened(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("secret")
    for url in (file.as_uri(), "ftp://127.0.0.1/x", "data:,x"):
        with pytest.raises(ConnectionError, match="unknown url type"):
            ask(urllib.request.Request(url), most_bytes=100, timeout_s=5)


def test_an_answer_that_is_too_large_is_not_read_to_its_end(issuer: TokenIssuer) -> None:
    issuer.answer = lambda: (200, b" " * (64 << 20))
    with pytest.raises(ConnectionError, match="has more than 1048576 bytes"):
        key_source.fetch(issuer.jwks_url)


HEAD = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("begin", "drop"),
    [(b"", b"H"), (HEAD, b"x: y\r\n"), (HEAD, b"x"), (HEAD + b"\r\n", b" ")],
    ids=["status line", "many headers", "one header", "content"],
)
def test_an_answer_that_comes_in_drops_is_cut_off(begin: bytes, drop: bytes) -> None:
    """Each drop comes in time; all of them together never end."""
    ended = threading.Event()

    def drip() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(1000)
            try:
                connection.sendall(begin)
                while not ended.wait(0.05):
                    connection.sendall(drop)
            except OSError:
                pass

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=drip)
        thread.start()
        try:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
            began_s = time.monotonic()
            with pytest.raises(ConnectionError, match=r"took more than 0\.5 s"):
                ask(urllib.request.Request(url), most_bytes=1 << 20, timeout_s=0.5)
            assert time.monotonic() - began_s < 20
        finally:
            ended.set()
            thread.join(10)


def test_an_error_is_told_by_its_number(issuer: TokenIssuer) -> None:
    issuer.answer = lambda: (503, b"not now")
    with pytest.raises(urllib.error.HTTPError, match="503"):
        ask(urllib.request.Request(issuer.jwks_url), most_bytes=100, timeout_s=20)
