"""The decisions of Kafka's StandardAuthorizer: the same rules on both sides, and the same answers to every question."""

from __future__ import annotations

import pytest

from tests.broker.access import decisions
from tests.broker.access.sides import Side
from tests.broker.access.situations import SITUATIONS, Situation, attempts

pytestmark = pytest.mark.java
Sides = tuple[Side, Side]


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda situation: situation.about)
def test_what_follows_from_rules_that_people_write(situation: Situation, sides: Sides) -> None:
    found = []
    for side in sides:
        with side.connect(situation.user) as raw:
            found.append(attempts(raw))
    kafka, ours = found
    assert ours == kafka
    # Nobody is a member of the group: who may be one is told that it is not.
    denied = {"read": 29, "write": 29, "see": 29, "member": 30}
    assert {name for name, code in ours.items() if code != denied[name]} == situation.possible


def test_rules_by_chance_lead_to_the_same_decisions(sides: Sides) -> None:
    """Literal names and prefixes, wildcards, everybody and one user, hosts, every operation, allowed and denied."""
    differences = []
    answers = set()
    for number in range(decisions.USERS):
        found = []
        for side in sides:
            with side.connect(decisions.user(number)) as raw:
                found.append(decisions.decisions(side, raw, number))
        answers.add(str(found[1]["topics"]) + str(found[1]["may write anywhere"]))
        for what, kafka in found[0].items():
            if found[1][what] != kafka:
                rules = "\n  ".join(str(rule) for rule in decisions.rules_of(number))
                differences.append(f"user {number}: {what}\n  Kafka {kafka}\n  Semel {found[1][what]}\n  {rules}")
    assert not differences, "\n".join(differences)
    assert len(answers) > decisions.USERS / 2
