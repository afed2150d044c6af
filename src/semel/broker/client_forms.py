"""The settings of a client in the forms that different clients take."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping

from semel.config import ConfigError

_LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}
_OF_PYTHON = {
    "bootstrap.servers": "bootstrap_servers",
    "security.protocol": "security_protocol",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
}


def _as_they_are(settings: Mapping[str, str]) -> dict[str, object]:
    return dict(settings)


def _java(settings: Mapping[str, str]) -> dict[str, object]:
    found: dict[str, object] = {
        name: settings[name] for name in ("bootstrap.servers", "security.protocol") if name in settings
    }
    if "ssl.ca.location" in settings:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": settings["ssl.ca.location"]}
    if "ssl.certificate.location" in settings:
        found |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": settings["ssl.certificate.location"]}
    if "sasl.mechanism" in settings:
        mechanism = settings["sasl.mechanism"]
        password = settings["sasl.password"].replace("\\", "\\\\").replace('"', '\\"')
        user = f'username="{settings["sasl.username"]}" password="{password}"'
        found |= {"sasl.mechanism": mechanism, "sasl.jaas.config": f"{_LOGIN_MODULES[mechanism]} required {user};"}
    return found


def _kafka_python(settings: Mapping[str, str]) -> dict[str, object]:
    return {_OF_PYTHON[name]: value for name, value in settings.items()}


def _aiokafka(settings: Mapping[str, str]) -> dict[str, object]:
    found = _kafka_python(settings)
    files = {name: found.pop(name) for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile") if name in found}
    if files:
        context = ssl.create_default_context(cafile=settings["ssl.ca.location"])
        if "ssl_certfile" in files:
            context.load_cert_chain(settings["ssl.certificate.location"])
        found["ssl_context"] = context
    return found


#: Whose form it is -> how it is made from librdkafka's names, which Semel's own clients take too.
FORMS: dict[str, Callable[[Mapping[str, str]], dict[str, object]]] = {
    "librdkafka": _as_they_are,
    "java": _java,
    "kafka-python": _kafka_python,
    "aiokafka": _aiokafka,
}


def in_form(settings: Mapping[str, str], form: str) -> dict[str, object]:
    """Settings by librdkafka's names in the form of another client."""
    if form not in FORMS:
        raise ConfigError(f"form={form!r}: must be one of {', '.join(FORMS)}")
    return FORMS[form](settings)
