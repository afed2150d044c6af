"""What a client authenticates with: read from either spelling, refused before anything connects, never shown."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from typing import ClassVar
from urllib.parse import parse_qs

import pytest

import semel
from semel.config import ADMIN, CONSUMER, PRODUCER, ConfigError
from semel.security.credentials import Credentials, client_credentials, parse_jaas

SECRET = "hunter2-never-shown"


def credentials(**settings: object) -> Credentials | None:
    given = {name.replace("__", "-").replace("_", "."): value for name, value in settings.items()}
    return client_credentials(ADMIN.parse({"security.protocol": "SASL_SSL", **given}))


def test_without_sasl_there_are_none() -> None:
    assert client_credentials(ADMIN.parse({})) is None
    assert client_credentials(ADMIN.parse({"security.protocol": "SSL", "sasl.username": "x"})) is None


def test_credentials_that_nothing_uses_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    assert client_credentials(ADMIN.parse({"sasl.username": "alice", "sasl.password": SECRET})) is None
    assert "sasl.* is not used: security.protocol=PLAINTEXT" in caplog.text
    assert SECRET not in caplog.text
    caplog.clear()
    assert client_credentials(ADMIN.parse({})) is None
    assert caplog.text == ""


def test_a_password_that_is_no_text_is_refused_without_showing_it() -> None:
    for mechanism in ("PLAIN", "SCRAM-SHA-256"):
        with pytest.raises(ConfigError, match=r"^sasl\.password: cannot be written as UTF-8$") as refused:
            credentials(sasl_mechanism=mechanism, sasl_username="alice", sasl_password=f"{SECRET}\ud800")
        assert SECRET not in repr(refused.value)


def test_a_jaas_line_and_plain_settings_say_the_same() -> None:
    line = f'org.apache.kafka.common.security.plain.PlainLoginModule required username="alice" password="{SECRET}";'
    assert credentials(sasl_mechanism="PLAIN", sasl_jaas_config=line) == credentials(
        sasl_mechanisms="plain", sasl_username="alice", sasl_password=SECRET
    )


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("a.B required;", {}),
        ("a.B required x=1 y='2 3' ;", {"x": "1", "y": "2 3"}),
        ('a.B required user_anna-maria.b="1";', {"user_anna-maria.b": "1"}),
        ('a.B required\n x="a\\"b;c"\n;', {"x": 'a"b;c'}),
    ],
)
def test_jaas_lines_are_read(line: str, options: dict[str, str]) -> None:
    assert parse_jaas(line).options == options


@pytest.mark.parametrize(
    "line", ["", "required;", "a.B", "a.B required", f'a.B required x="{SECRET}', f"a.B required {SECRET};"]
)
def test_a_broken_jaas_line_is_refused_without_repeating_it(line: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse_jaas(line)
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "sasl.mechanism: is not given"),
        ({"sasl.mechanism": "GSSAPI"}, "GSSAPI .* not spoken here"),
        ({"sasl.mechanism": "CRAM-MD5"}, "must be one of PLAIN"),
        ({"sasl.mechanism": "PLAIN"}, "sasl.username: .* needs it"),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "alice"}, "sasl.password: .* needs it"),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "a\0b", "sasl.password": SECRET}, "zero byte"),
        ({"sasl.mechanism": "PLAIN", "sasl.jaas.config": f'x.ScramLoginModule required password="{SECRET}";'},
         "ScramLoginModule is not for sasl.mechanism=PLAIN"),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "bob", "sasl.password": SECRET,
          "sasl.jaas.config": f'x.PlainLoginModule required username="alice" password="{SECRET}";'},
         "sasl.username: sasl.jaas.config has another username"),
        ({"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "other",
          "sasl.jaas.config": f'x.PlainLoginModule required username="alice" password="{SECRET}";'},
         "sasl.password: sasl.jaas.config has another password"),
        ({"sasl.mechanism": "OAUTHBEARER"}, "needs a function that returns a token"),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.provider": "no_such_module:f"}, "cannot import"),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.provider": "json:no_such"}, "has no no_such"),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "https://x"}, "needs both"),
        ({"sasl.mechanism": "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url": "file:///etc/passwd",
          "sasl.oauthbearer.client.id": "i", "sasl.oauthbearer.client.secret": SECRET}, "must begin with https"),
    ],
)
def test_what_is_missing_is_told_by_the_constructor(settings: dict[str, object], words: str) -> None:
    whole = {"bootstrap.servers": "127.0.0.1:1", "security.protocol": "SASL_PLAINTEXT", **settings}
    for client in (semel.Producer, semel.Admin, semel.Consumer):
        with pytest.raises(ConfigError, match=words) as raised:
            client(whole)
        assert SECRET not in str(raised.value)


def test_a_client_cannot_be_told_to_load_a_java_class() -> None:
    """CVE-2025-27817: a setting names no class, and a function only where a function is asked for."""
    for table in (PRODUCER, CONSUMER, ADMIN):
        with pytest.raises(ConfigError, match="Java classes cannot be loaded"):
            table.parse({"sasl.login.callback.handler.class": "x.Y"})


def test_no_secret_is_shown() -> None:
    given = {
        "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": SECRET,
        "ssl.key.password": SECRET, "ssl.keystore.key": SECRET, "sasl.oauthbearer.client.secret": SECRET,
        "sasl.jaas.config": SECRET,
    }
    values = ADMIN.parse(given)
    assert SECRET not in repr(values)
    assert SECRET not in repr(credentials(sasl_mechanism="PLAIN", sasl_username="alice", sasl_password=SECRET))


class Endpoint(http.server.BaseHTTPRequestHandler):
    status = 200
    location = ""
    answer: object = {}
    asked: ClassVar[list[tuple[str, dict[str, list[str]]]]] = []

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        Endpoint.asked.append((self.headers["Authorization"], parse_qs(body)))
        self.send_response(Endpoint.status)
        if Endpoint.location:
            self.send_header("Location", Endpoint.location)
        self.end_headers()
        self.wfile.write(json.dumps(Endpoint.answer).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint() -> Iterator[str]:
    server = http.server.HTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    Endpoint.status, Endpoint.asked, Endpoint.location = 200, [], ""
    yield f"http://127.0.0.1:{server.server_port}/token"
    server.shutdown()
    server.server_close()
    thread.join()


def test_client_credentials_are_traded_for_a_token(endpoint: str) -> None:
    found = credentials(
        sasl_mechanism="OAUTHBEARER", sasl_oauthbearer_token_endpoint_url=endpoint,
        sasl_oauthbearer_client_id="me", sasl_oauthbearer_client_secret=SECRET, sasl_oauthbearer_scope="kafka",
    )
    assert found is not None
    assert found.token_provider is not None
    assert SECRET not in repr(found.token_provider)
    Endpoint.answer = {"access_token": "abc", "expires_in": 60}
    token, expires = found.token_provider()  # type: ignore[misc]
    assert token == "abc"
    assert expires > 60
    assert Endpoint.asked[0][1] == {"grant_type": ["client_credentials"], "scope": ["kafka"]}
    Endpoint.answer = {"error": "nothing"}
    with pytest.raises(PermissionError, match="without an access_token"):
        found.token_provider()
    Endpoint.status = 401
    with pytest.raises(PermissionError, match="answered 401") as raised:
        found.token_provider()
    assert SECRET not in str(raised.value)


BEARER = {
    "sasl_mechanism": "OAUTHBEARER", "sasl_oauthbearer_client_id": "me", "sasl_oauthbearer_client_secret": SECRET,
}


@pytest.mark.parametrize("url", ["file:///etc/passwd", "FILE:///etc/passwd", "ftp://x/", "jar:file:x", "/etc/passwd"])
def test_a_client_cannot_be_told_to_read_a_file_as_a_token(url: str) -> None:
    """CVE-2025-27817: the address of a token endpoint is not a file."""
    with pytest.raises(ConfigError, match="must begin with https://"):
        credentials(**BEARER, sasl_oauthbearer_token_endpoint_url=url)


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512", "OAUTHBEARER"])
@pytest.mark.parametrize("module", ["com.sun.security.auth.module.JndiLoginModule", "LdapLoginModule", "x.Anything"])
def test_a_jaas_line_cannot_name_a_login_module_of_its_own(mechanism: str, module: str) -> None:
    """CVE-2023-25194 and CVE-2025-27818: JndiLoginModule and LdapLoginModule ask addresses of an attacker."""
    line = f'{module} required user.provider.url="ldap://127.0.0.1:1/x";'
    with pytest.raises(ConfigError, match="is not for sasl"):
        credentials(sasl_mechanism=mechanism, sasl_jaas_config=line)


def test_only_the_allowed_addresses_are_asked_where_they_are_listed(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SEMEL_ALLOWED_TOKEN_URLS", f"https://issuer.example/token, {endpoint}")
    assert credentials(**BEARER, sasl_oauthbearer_token_endpoint_url=endpoint) is not None
    with pytest.raises(ConfigError, match="is not one of those in SEMEL_ALLOWED_TOKEN_URLS"):
        credentials(**BEARER, sasl_oauthbearer_token_endpoint_url=endpoint + "/other")
    monkeypatch.setenv("SEMEL_ALLOWED_TOKEN_URLS", "")
    with pytest.raises(ConfigError):
        credentials(**BEARER, sasl_oauthbearer_token_endpoint_url=endpoint)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_secret_is_not_carried_to_another_address(endpoint: str, status: int) -> None:
    asked: list[str] = []

    class Elsewhere(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.headers.get("Authorization", ""))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"access_token":"x"}')

        do_POST = do_GET

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        Endpoint.status, Endpoint.location = status, f"http://127.0.0.1:{server.server_port}/"
        found = credentials(**BEARER, sasl_oauthbearer_token_endpoint_url=endpoint)
        assert found is not None
        assert found.token_provider is not None
        with pytest.raises(PermissionError, match=f"answered {status}"):
            found.token_provider()
        server.shutdown()
        thread.join()
    assert asked == []
