"""The matrix: every API in every version, without a rule, denied, and allowed, at Apache Kafka and at Semel.

The same request goes to both. The error codes of both answers are the same, for each topic, partition and group; so is
what the answers tell of. Where a request is denied, nothing has changed at Semel.
"""

from __future__ import annotations

from typing import Any

import pytest

from semel.broker.handlers import SERVED
from semel.wire.apis import APIS, ApiKey
from tests.broker.access.cases import Case
from tests.broker.access.conftest import CASES
from tests.broker.access.sides import Side

#: Both are compared in tests/security, message by message.
AUTHENTICATION = {ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE}

Sides = tuple[Side, Side]


def test_every_version_of_every_api_is_in_the_matrix() -> None:
    asked = {(case.key, version) for case in CASES for version in case.versions}
    served = {
        (key, version) for key in SERVED for version in range(APIS[key].min_version, APIS[key].max_version + 1)
    }
    assert {cell for cell in served if cell[0] not in AUTHENTICATION} == asked
    assert len({case.user("no") for case in CASES}) == len(CASES)


@pytest.mark.java
@pytest.mark.parametrize("case", CASES, ids=str)
def test_apache_kafka_answers_the_same(case: Case, sides: Sides) -> None:
    tags = list(case.rules())
    ours = sides[1]
    connections = {(side, tag): side.connect(case.user(tag)) for side in sides for tag in tags}
    try:
        if case.prepare is not None:
            for side in sides:
                for version in case.versions:
                    for tag in tags:
                        case.prepare(side, version, case.at(version, tag))
        differences = []
        before = ours.state()
        differences += _compare(case, [tag for tag in tags if case.is_denied(tag)], connections, sides)
        after = ours.state()
        differences += _compare(case, [tag for tag in tags if not case.is_denied(tag)], connections, sides)
    finally:
        for raw in connections.values():
            raw.socket.close()
    for what, was in before.items():
        if after[what] != was:
            differences.append(f"{case} changed {what}:\n  from {was}\n  to   {after[what]}")
    assert not differences, "\n".join(differences)


def _compare(case: Case, tags: list[str], connections: dict[Any, Any], sides: Sides) -> list[str]:
    differences = []
    for version in case.versions:
        for tag in tags:
            answers = []
            for side in sides:
                request = case.make(side, version, case.at(version, tag))
                answers.append(side.tell(connections[side, tag], request, version))
            if answers[0] != answers[1] and not (case.not_alike_when_allowed and not case.is_denied(tag)):
                differences.append(f"{case} v{version} {tag}:\n  Kafka {answers[0]}\n  Semel {answers[1]}")
    return differences
