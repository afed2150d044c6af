"""What a setting takes, of every kind of setting there is: a value it can hold, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from semel.config import ADMIN, BROKER, CONSUMER, GROUP, PRODUCER, TOPIC, ConfigError, Setting
from semel.config.kept import KEPT

TABLES = {"broker": BROKER, "topic": TOPIC, "group": GROUP, "producer": PRODUCER, "consumer": CONSUMER, "admin": ADMIN}
ROWS = [pytest.param(row, id=f"{noun}-{row.name}") for noun, table in TABLES.items() for row in table]
ROWS += [pytest.param(row, id=f"kept-{row.name}") for row in KEPT]
WHOLE = {"short": 2**15, "int": 2**31, "long": 2**63}
NUMBERS = [param for param in ROWS if param.values[0].kind in WHOLE and not param.values[0].choices]
ARABIC_12 = "\u0661\u0662"


def wrong_for(row: Setting) -> list[Any]:
    words = ["", " ", "soon", "nan", "NaN", "inf", "-inf", "Infinity", "1_000", ARABIC_12, "0x10", "1,5", [], object()]
    if row.kind in WHOLE:
        beyond = WHOLE[row.kind]
        return [*words, "1.0", 1.0, True, "9" * 400, "-" + "9" * 400, "9" * 5000, beyond, -beyond - 1, str(beyond)]
    if row.kind == "double":
        return [*words, float("nan"), float("inf"), True, "9" * 400, "1e400", 10**400]
    if row.kind == "bool":
        return [*words, 1, "1", "yes", None.__class__]
    if row.kind == "list":
        return [5, 1.5, True, {"a": 1}, object()]
    if row.choices:
        return [word for word in (*words, "something else") if str(word).strip() not in row.choices]
    return [[], {}, object(), b"bytes", True]


@pytest.mark.parametrize("row", ROWS)
def test_a_value_that_a_setting_cannot_hold_is_refused_with_its_name(row: Setting) -> None:
    for value in wrong_for(row):
        with pytest.raises(ConfigError) as refused:
            row.read(value)
        assert row.name in str(refused.value)
        assert len(str(refused.value)) < 400, "a long value makes no long message"


@pytest.mark.parametrize("row", NUMBERS)
def test_the_bounds_of_a_setting_are_legal_and_what_lies_beyond_is_not(row: Setting) -> None:
    least, most = (int(bound) for bound in row.bounds if bound is not None)
    for bound in (least, most):
        assert row.read(str(bound)) == row.read(bound) == bound
        assert row.write(bound) == str(bound)
    for beyond in (least - 1, most + 1):
        with pytest.raises(ConfigError):
            row.read(str(beyond))


@pytest.mark.parametrize("row", ROWS)
def test_what_is_written_is_read_again_as_the_same(row: Setting) -> None:
    assert row.read(row.write(row.default)) == row.default


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_nothing_given_is_the_default(table: Any) -> None:
    parsed = table.parse({row.name: None for row in table})
    assert not parsed.explicit
    assert all(parsed[row.name] == row.default for row in table)


@pytest.mark.parametrize(
    ("table", "name"),
    [
        (BROKER, "semel.metrics.host"),
        (BROKER, "semel.cluster.id"),
        (PRODUCER, "transactional.id"),
        (CONSUMER, "group.instance.id"),
    ],
)
def test_where_nothing_at_all_would_mean_something_else_it_is_refused(table: Any, name: str) -> None:
    with pytest.raises(ConfigError, match="is empty"):
        table.parse({name: " "})


def test_a_number_is_text_where_text_is_wanted() -> None:
    assert PRODUCER.parse({"acks": 1})["acks"] == "1"
    assert CONSUMER.parse({"group.id": 7})["group.id"] == "7"


def test_an_empty_value_among_the_allowed_ones_is_named() -> None:
    with pytest.raises(ConfigError, match=r"must be one of nothing, org\.apache\.kafka"):
        row = next(row for row in BROKER if row.name == "authorizer.class.name")
        row.read("kafka.security.auth.SimpleAclAuthorizer")
