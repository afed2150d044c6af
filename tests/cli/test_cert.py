"""`semel cert dev`: certificates that work, and are not written over."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

from click.testing import CliRunner, Result

from semel.cli import command_line


def types(*words: str) -> Result:
    return CliRunner().invoke(command_line(), ["cert", "dev", *words])


def test_the_files_fit_together(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    made = types("--folder", str(folder), "--host", "broker.example", "--client", "alice")
    assert made.exit_code == 0, made.output
    assert f"ssl.keystore.location={folder / 'broker.pem'}" in made.output
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "broker.pem")
    server.load_verify_locations(folder / "authority.pem")
    server.verify_mode = ssl.CERT_REQUIRED
    client = ssl.create_default_context(cafile=str(folder / "authority.pem"))
    client.load_cert_chain(folder / "client.pem")
    subject = shake_hands(client, server, "broker.example")
    assert subject == ((("commonName", "alice"),),)
    assert shake_hands(client, server, "127.0.0.1")


def shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, host: str) -> object:
    """The subject of the client's certificate, as the server sees it."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(down, up, server_hostname=host)
    theirs = server.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    certificate = theirs.getpeercert()
    return certificate and certificate["subject"]


def test_only_their_owner_can_read_the_keys(tmp_path: Path) -> None:
    types("--folder", str(tmp_path))
    for name in ("broker.pem", "client.pem"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_files_that_are_there_are_not_written_over(tmp_path: Path) -> None:
    types("--folder", str(tmp_path))
    before = (tmp_path / "broker.pem").read_text()
    again = types("--folder", str(tmp_path))
    assert again.exit_code == 1
    assert "is there already" in again.output
    assert (tmp_path / "broker.pem").read_text() == before
    assert types("--folder", str(tmp_path), "--force").exit_code == 0
    assert (tmp_path / "broker.pem").read_text() != before


def test_a_folder_that_cannot_be_made_is_an_error_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    made = types("--folder", str(tmp_path / "file" / "in"))
    assert made.exit_code == 1
    assert made.output.startswith("Error: cannot write to ")
