"""One Apache Kafka and one Semel for all that is compared in this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.broker.access import cases, cases_of_records, decisions
from tests.broker.access.sides import Side, both_sides
from tests.broker.access.situations import SITUATIONS
from tests.support.requirements import require_kafka

CASES = [*cases_of_records.FIRST, *cases.CASES, *cases_of_records.CASES]


@pytest.fixture(scope="package")
def sides() -> Iterator[tuple[Side, Side]]:
    """Apache Kafka and Semel, with all users and all rules."""
    require_kafka()
    users = {case.user(tag): rules for case in CASES for tag, rules in case.rules().items()}
    users |= {decisions.user(number): decisions.rules_of(number) for number in range(decisions.USERS)}
    users |= {situation.user: situation.rules() for situation in SITUATIONS}
    with both_sides(users) as both:
        for side in both:
            side.prepare()
            side.set_rules(rule for rules in users.values() for rule in rules)
        yield both
