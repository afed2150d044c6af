"""Byte for byte what Apache Kafka's own classes write: every API, every record schema, every version."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from semel.errors import ErrorCode
from semel.wire import encode
from semel.wire.apis import APIS
from semel.wire.schema import fields_of
from tests.support import java_tools
from tests.support.requirements import require_kafka
from tests.wire.generated import API_MESSAGES, RECORD_MESSAGES, messages, versions

pytestmark = pytest.mark.java

EXAMPLES_EACH = 5


def kafka_says(topic: str, questions: str | None = None) -> list[str]:
    require_kafka()
    program = Path(__file__).with_name("KafkaSays.java")
    return java_tools.run(str(program), topic, stdin=questions).stdout.splitlines()


def java_class(cls: type[Any]) -> str:
    name = cls.__name__
    if name.startswith("TransactionLog"):
        return f"org.apache.kafka.coordinator.transaction.generated.{name}"
    if cls in RECORD_MESSAGES and not name.startswith(("ConsumerProtocol", "EndTxnMarker")):
        return f"org.apache.kafka.coordinator.group.generated.{name}"
    return f"org.apache.kafka.common.message.{name}" + ("Data" if name.endswith(("Request", "Response")) else "")


def as_json(value: Any, version: int) -> Any:
    """A message in the JSON of Kafka's tools."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list():
            return [as_json(item, version) for item in value]
        case bytes():
            return base64.b64encode(value).decode()
        case UUID():
            return base64.urlsafe_b64encode(value.bytes).decode().rstrip("=")
    present = [field.name for field in fields_of(type(value)) if field.present_in(version)]
    return {camel_case(name): as_json(getattr(value, name), version) for name in present}


def camel_case(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


def examples(cls: type[Any], version: int) -> list[Any]:
    drawn: list[Any] = []

    @settings(
        max_examples=EXAMPLES_EACH,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(messages(cls, version))
    def draw(message: Any) -> None:
        drawn.append(message)

    draw()
    return drawn


def test_every_message_has_the_bytes_that_kafkas_own_classes_give_it() -> None:
    asked = [
        (cls, version, message)
        for cls, version in versions(API_MESSAGES + RECORD_MESSAGES)
        for message in examples(cls, version)
    ]
    lines = []
    for cls, version, message in asked:
        # What we call the version of a coordinator's key is the type of its record; its schema has one version only.
        schema_version = 0 if cls in RECORD_MESSAGES and cls.__name__.endswith("Key") else version
        lines.append(f"{java_class(cls)}\t{schema_version}\t{json.dumps(as_json(message, version))}\n")
    answers = kafka_says("encode", "".join(lines))
    assert len(answers) == len(asked)
    for (_, version, message), answer in zip(asked, answers, strict=True):
        assert encode(message, version).hex() == answer, f"{message} in version {version}"


def test_the_versions_served_are_those_of_kafka() -> None:
    kafka = {}
    for line in kafka_says("apis"):
        key, name, oldest, latest = line.split()
        kafka[int(key)] = (name, int(oldest), int(latest))
    ours = {key: (api.name, api.min_version, api.max_version) for key, api in APIS.items()}
    assert ours == {key: row for key, row in kafka.items() if key in ours}


def test_the_error_codes_are_those_of_kafka() -> None:
    kafka = {}
    for line in kafka_says("errors"):
        number, name, retriable = line.split()
        kafka[name] = (int(number), retriable == "true")
    assert {row.name: (int(row), row.retriable) for row in ErrorCode} == kafka
