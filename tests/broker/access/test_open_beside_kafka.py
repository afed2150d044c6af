"""`allow.everyone.if.no.acl.found`, and two-phase commit: beside an Apache Kafka with the same settings."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from semel.machines.security.access import Operation, ResourceType
from semel.wire.apis import INIT_PRODUCER_ID_TWO_PHASE_VERSION
from semel.wire.messages.transactions import InitProducerIdRequest
from tests.broker.access import decisions
from tests.broker.access.rules import rule
from tests.broker.access.sides import TIMEOUT_MS, Side, both_sides
from tests.broker.raw import Raw
from tests.support.requirements import require_kafka

pytestmark = pytest.mark.java
Sides = tuple[Side, Side]
USERS = 60
#: A transactional id, and what its user may do with it.
PRODUCERS = {
    "two-phases": (Operation.WRITE, Operation.TWO_PHASE_COMMIT),
    "one-phase": (Operation.WRITE,),
    "no-write": (Operation.TWO_PHASE_COMMIT,),
}


@pytest.fixture(scope="module")
def sides() -> Iterator[Sides]:
    require_kafka()
    users = {decisions.user(number): decisions.rules_of(number) for number in range(USERS)}
    users |= {
        name: [rule(ResourceType.TRANSACTIONAL_ID, name, one, who=f"User:{name}") for one in operations]
        for name, operations in PRODUCERS.items()
    }
    settings = {
        "allow_everyone_if_no_acl_found": "true",
        "transaction_two_phase_commit_enable": "true",
        "unstable_api_versions_enable": "true",
    }
    with both_sides([*users, "without-rules"], **settings) as both:
        for side in both:
            side.prepare()
            side.set_rules(one for rules in users.values() for one in rules)
        yield both


def test_where_no_rule_names_a_resource_everybody_may_do_everything(sides: Sides) -> None:
    """Also whoever has no rules at all, and whoever came without a password."""
    for number in range(USERS):
        found = []
        for side in sides:
            for raw in (side.connect(decisions.user(number)), side.connect("without-rules"), Raw(side.plaintext)):
                with raw:
                    found.append(decisions.decisions(side, raw, number))
        rules = "\n".join(str(one) for one in decisions.rules_of(number))
        assert found[3:] == found[:3], rules


@pytest.mark.parametrize("name", PRODUCERS)
@pytest.mark.parametrize("enable2_pc", [False, True])
def test_two_phase_commit_is_a_right_of_its_own(sides: Sides, name: str, enable2_pc: bool) -> None:
    codes = []
    for side in sides:
        with side.connect(name) as raw:
            asked = InitProducerIdRequest(
                transactional_id=name, transaction_timeout_ms=TIMEOUT_MS, enable2_pc=enable2_pc
            )
            codes.append(raw.ask(asked, INIT_PRODUCER_ID_TWO_PHASE_VERSION).error_code)
    kafka, ours = codes
    assert ours == kafka
    assert (ours == 53) == (Operation.WRITE not in PRODUCERS[name] or (enable2_pc and name != "two-phases"))
