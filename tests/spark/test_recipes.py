"""docs/recipes.md: each recipe is run as it stands, and does what the page says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import semel
from tests.spark.schema_registry import SchemaRegistry
from tests.spark.stage import Stage
from tests.support.pages import blocks_of
from tests.support.requirements import CHECKOUT

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PAGE = CHECKOUT / "docs" / "recipes.md"
TEXT = PAGE.read_text()


def programs() -> dict[str, str]:
    """What each recipe's heading is followed by."""
    lines = TEXT.splitlines()
    found = {}
    for block in blocks_of(PAGE):
        if block.language == "python":
            headings = [line[3:] for line in lines[: block.line] if line.startswith("## ")]
            found[headings[-1] if headings else "beginning"] = block.text
    return found


PROGRAMS = programs()


@pytest.fixture
def stage(spark: Any, semel_broker: semel.Broker, tmp_path: Path) -> Stage:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(**{"payments": 2, "orders": 1, "payments-avro": 1})
    return stage


class Recipe:
    """A recipe's query, running."""

    def __init__(self, stage: Stage, name: str, **more: str) -> None:
        program = PROGRAMS["beginning"] + PROGRAMS[name]
        places = {"localhost:9092": stage.bootstrap_servers, "/data/": f"{stage.folder}/", **more}
        for written, real in places.items():
            assert written in program
            program = program.replace(written, real)
        names: dict[str, Any] = {}
        exec(compile(program, str(PAGE), "exec"), names)
        self.query, self.stage = names["query"], stage

    def __enter__(self) -> Recipe:
        return self

    def __exit__(self, *_: object) -> None:
        self.query.stop()

    def given(self, *payments: Any, topic: str = "payments") -> Recipe:
        """Put records, and wait until they are processed."""
        rows = [payment if isinstance(payment, bytes) else json.dumps(payment).encode() for payment in payments]
        self.stage.put(topic, [(None, row) for row in rows])
        self.query.processAllAvailable()
        return self

    def output(self, topic: str) -> list[tuple[str, Any]]:
        """Keys and values of a topic, in the order of the keys; JSON is read."""
        found = [((row.key or b"").decode(), json.loads(row.value or b"null")) for row in self.stage.seen(topic)]
        return sorted(found, key=lambda pair: pair[0])


def payment(number: int, account: str, amount: int, at: str = "10:00") -> dict[str, Any]:
    return {"id": f"p{number}", "account": account, "amount": amount, "at": f"2026-11-17T{at}:00Z"}


def test_every_recipe_is_run_and_in_the_table() -> None:
    tests = set(re.findall(r'Recipe\(stage, "(.+?)"', Path(__file__).read_text()))
    assert tests == set(PROGRAMS) - {"beginning"} and len(tests) == 8
    table = set(re.findall(r"^\| \[.+?\]\(#(.+?)\)", TEXT, re.MULTILINE))
    assert table == {name.lower().replace(" ", "-") for name in tests}


def test_json(stage: Stage) -> None:
    with Recipe(stage, "JSON") as recipe:
        recipe.given(payment(1, "alice", 101), payment(2, "bob", 100), b"{", b"")
        assert recipe.output("large-payments") == [("alice", {"id": "p1", "amount": 101})]


def test_windowed_aggregation(stage: Stage) -> None:
    with Recipe(stage, "Windowed aggregation with a watermark") as recipe:
        recipe.given(payment(1, "alice", 1), payment(2, "alice", 2, "10:04"), payment(3, "bob", 4, "10:03"))
        recipe.given(payment(4, "alice", 8, "10:30"))
        found = recipe.output("totals")
        assert [(key, value["total"]) for key, value in found] == [("alice", 3), ("bob", 4)]
        assert {value["since"][:10] for _, value in found} == {"2026-11-17"}


def test_upsert(stage: Stage) -> None:
    stage.create_topics(balances=1)
    with Recipe(stage, "Upsert to a compacted topic") as recipe:
        recipe.given(payment(1, "alice", 1), payment(2, "bob", 2))
        recipe.given(payment(3, "alice", 10))
        assert [(row.key, row.value) for row in stage.seen("balances")][2:] == [(b"alice", b"11")]
        assert {row.key: row.value for row in stage.seen("balances")} == {b"alice": b"11", b"bob": b"2"}


def test_deduplication(stage: Stage) -> None:
    with Recipe(stage, "Deduplication") as recipe:
        recipe.given(payment(1, "alice", 1), payment(1, "alice", 1), payment(2, "bob", 2))
        recipe.given(payment(1, "alice", 1, "10:10"), payment(3, "carol", 3))
        assert [key for key, _ in recipe.output("unique-payments")] == ["alice", "bob", "carol"]


def test_stream_stream_join(stage: Stage) -> None:
    with Recipe(stage, "Stream-stream join") as recipe:
        recipe.given({"payment": "p1", "item": "book", "at": "2026-11-17T09:30:00Z"}, topic="orders")
        recipe.given(payment(1, "alice", 7), payment(2, "bob", 8))
        assert recipe.output("paid-orders") == [("alice", {"item": "book", "amount": 7})]


def test_enrich_from_a_table(stage: Stage) -> None:
    accounts = stage.folder / "accounts"
    accounts.mkdir()
    (accounts / "1.json").write_text('{"account": "alice", "name": "Alice Liddell"}\n')
    with Recipe(stage, "Enrich from a table") as recipe:
        recipe.given(payment(1, "alice", 7), payment(2, "bob", 8))
        assert recipe.output("named-payments") == [
            ("alice", {"id": "p1", "name": "Alice Liddell", "amount": 7}), ("bob", {"id": "p2", "amount": 8}),
        ]  # fmt: skip


def test_avro_with_a_schema_registry(stage: Stage) -> None:
    from confluent_kafka.schema_registry import SchemaRegistryClient
    from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
    from confluent_kafka.serialization import MessageField, SerializationContext

    fields = [{"name": "account", "type": "string"}, {"name": "amount", "type": "long"}]
    schema = json.dumps({"type": "record", "name": "Payment", "fields": fields})
    with SchemaRegistry() as registry:
        client = SchemaRegistryClient({"url": registry.url})
        where = SerializationContext("payments-avro", MessageField.VALUE)
        encoded = AvroSerializer(client, schema)({"account": "alice", "amount": 5}, where)
        with Recipe(stage, "Avro with a schema registry", **{"http://localhost:8081": registry.url}) as recipe:
            recipe.given(encoded, topic="payments-avro")
            (row,) = stage.seen("entries")
        assert row.key == b"alice"
        assert AvroDeserializer(client)(row.value, where) == {"account": "alice", "cents": 500}
        assert set(registry.subjects) == {"payments-avro-value", "entries-value"}


def test_dead_letters(stage: Stage) -> None:
    with Recipe(stage, "Dead letters") as recipe:
        recipe.given(payment(1, "alice", 7), b"soap", {"id": "p2", "account": "bob"})
        assert recipe.output("ledger") == [("alice", {"id": "p1", "amount": 7})]
        dead = {row.value: dict(row.headers)["error"] for row in stage.seen("payments.dead")}
        assert dead == {b"soap": b"no JSON", b'{"id": "p2", "account": "bob"}': b"no amount"}
