"""What a client authenticates with: read from its settings, checked before anything connects.

Guarantees: a mechanism that needs something that was not given is refused at once, with the setting's name. `repr` of
credentials shows no secret.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module

from semel.config import ConfigError
from semel.config.security import SASL_MECHANISMS
from semel.security.tls import SecuritySettings

_log = logging.getLogger(__name__)

#: What a token provider returns: the token, or the token and when it expires (seconds since 1970).
TokenProvider = Callable[[], object]

_JAAS = re.compile(
    r"\s*(?P<module>[\w$]+(?:\.[\w$]+)*)\s+(?:required|requisite|sufficient|optional)(?P<options>.*?);\s*", re.DOTALL
)
_OPTION = re.compile(
    r"""\s+(?P<name>[\w.$-]+)\s*=\s*"""
    r"""(?:"(?P<double>(?:\\.|[^"\\])*)"|'(?P<single>(?:\\.|[^'\\])*)'|(?P<bare>[^\s;"']+))"""
)
_MECHANISM_OF_MODULE = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "OAuthBearerLoginModule": ("OAUTHBEARER",),
}


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who we are, by one mechanism."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    #: The username is the id of a delegation token, the password its HMAC.
    is_token: bool = False
    token_provider: TokenProvider | None = field(default=None, repr=False)
    extensions: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class JaasLine:
    """One line of Kafka's JAAS form: a login module and its options."""

    module: str
    options: dict[str, str] = field(repr=False)


def parse_jaas(text: str, setting: str = "sasl.jaas.config") -> JaasLine:
    r"""Read a JAAS line.

    >>> parse_jaas('org.example.PlainLoginModule required username="a" password="b\\"c";').options
    {'username': 'a', 'password': 'b"c'}
    """
    found = _JAAS.fullmatch(text)
    if found is None:
        raise ConfigError(f'{setting}: expected MODULE required name="value" ... ; with a semicolon at the end')
    options: dict[str, str] = {}
    rest = found["options"]
    position = 0
    while position < len(rest.rstrip()):
        option = _OPTION.match(rest, position)
        if option is None:
            raise ConfigError(f'{setting}: an option is not of the form name="value"')
        quoted = option["double"] if option["double"] is not None else option["single"]
        options[option["name"]] = option["bare"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        position = option.end()
    return JaasLine(found["module"].rsplit(".", 1)[-1], options)


def client_credentials(settings: SecuritySettings) -> Credentials | None:
    """What a client authenticates with; None where it does not."""
    protocol = settings["security.protocol"]
    if protocol not in ("SASL_PLAINTEXT", "SASL_SSL"):
        if settings["sasl.mechanism"] or settings["sasl.jaas.config"] or settings["sasl.username"]:
            # Not an error: Kafka's own clients take it, and people switch SASL off by this one setting.
            _log.warning("sasl.* is not used: security.protocol=%s; set it to SASL_SSL or SASL_PLAINTEXT", protocol)
        return None
    mechanism = settings["sasl.mechanism"]
    if mechanism is None or mechanism == "GSSAPI":
        why = "is GSSAPI (Kerberos)" if mechanism else "is not given, and Kafka's default is GSSAPI (Kerberos)"
        known = ", ".join(SASL_MECHANISMS)
        raise ConfigError(f"sasl.mechanism: {why}, which is not spoken here; set it to one of {known}")
    if mechanism not in SASL_MECHANISMS:
        raise ConfigError(f"sasl.mechanism={mechanism}: must be one of {', '.join(SASL_MECHANISMS)}")
    jaas = parse_jaas(settings["sasl.jaas.config"]) if settings["sasl.jaas.config"] else None
    if jaas is not None and mechanism not in _MECHANISM_OF_MODULE.get(jaas.module, ()):
        raise ConfigError(f"sasl.jaas.config: {jaas.module} is not for sasl.mechanism={mechanism}")
    options = {} if jaas is None else jaas.options
    if mechanism == "OAUTHBEARER":
        return _bearer(settings, options)
    for name, option in (("sasl.username", "username"), ("sasl.password", "password")):
        if settings[name] and option in options and settings[name] != options[option]:
            raise ConfigError(f"{name}: sasl.jaas.config has another {option}; give one of them")
    username = settings["sasl.username"] or options.get("username")
    password = settings["sasl.password"] or options.get("password")
    for name, found in (("sasl.username", username), ("sasl.password", password)):
        if not found:
            raise ConfigError(f"{name}: sasl.mechanism={mechanism} needs it (or sasl.jaas.config with both)")
        if "\0" in found:
            raise ConfigError(f"{name}: may not hold a zero byte")
    is_token = options.get("tokenauth", "").lower() == "true"
    if is_token and mechanism == "PLAIN":
        raise ConfigError("sasl.jaas.config: a delegation token (tokenauth) needs a SCRAM mechanism")
    return Credentials(mechanism, username or "", password or "", is_token)


def _bearer(settings: SecuritySettings, options: dict[str, str]) -> Credentials:
    pairs = []
    for pair in filter(str.strip, (settings["sasl.oauthbearer.extensions"] or "").split(",")):
        name, sign, value = pair.partition("=")
        if not sign or not re.fullmatch(r"[A-Za-z]+", name.strip()) or name.strip() == "auth":
            raise ConfigError(f"sasl.oauthbearer.extensions: {pair.strip()!r} is not name=value with a name of letters")
        pairs.append((name.strip(), value.strip()))
    for option, value in options.items():
        if option.startswith("extension_"):
            pairs.append((option.removeprefix("extension_"), value))
    given = settings["sasl.oauthbearer.token.provider"]
    endpoint = settings["sasl.oauthbearer.token.endpoint.url"]
    if settings["sasl.oauthbearer.method"] == "oidc" and not endpoint:
        raise ConfigError("sasl.oauthbearer.token.endpoint.url: sasl.oauthbearer.method=oidc needs it")
    if given is not None and endpoint:
        raise ConfigError("sasl.oauthbearer.token.provider and sasl.oauthbearer.token.endpoint.url: give one of them")
    if given is not None:
        provider = given if callable(given) else _named_function(given)
    elif endpoint:
        from semel.security.token_endpoint import TokenEndpoint

        client_id = settings["sasl.oauthbearer.client.id"] or options.get("clientId")
        secret = settings["sasl.oauthbearer.client.secret"] or options.get("clientSecret")
        if not client_id or not secret:
            raise ConfigError("sasl.oauthbearer.client.id, sasl.oauthbearer.client.secret: a token endpoint needs both")
        scope = settings["sasl.oauthbearer.scope"] or options.get("scope")
        provider = TokenEndpoint(endpoint, client_id, secret, scope)
    else:
        raise ConfigError(
            "sasl.oauthbearer.token.provider: OAUTHBEARER needs a function that returns a token, or "
            "sasl.oauthbearer.token.endpoint.url with a client id and secret"
        )
    return Credentials("OAUTHBEARER", token_provider=provider, extensions=tuple(pairs))


def _named_function(name: str) -> TokenProvider:
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except ImportError as error:
        raise ConfigError(f"sasl.oauthbearer.token.provider: cannot import {module}: {error}") from None
    except AttributeError:
        raise ConfigError(f"sasl.oauthbearer.token.provider: {module} has no {function}") from None
    if not callable(found):
        raise ConfigError(f"sasl.oauthbearer.token.provider: {name} is not a function")
    provider: TokenProvider = found
    return provider
