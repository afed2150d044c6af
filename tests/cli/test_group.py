"""`semel group` against a broker that is really there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from semel.broker.embedded import Broker
from semel.cli import group_lag
from semel.cli.group import group
from semel.client.blocking.admin import Admin
from semel.client.blocking.consumer import Consumer
from semel.client.blocking.producer import Producer
from semel.machines.values import TopicPartition
from tests.broker.raw import Raw, batch
from tests.support.waiting import until

LEDGER = TopicPartition("ledger", 0)


class Person:
    """Types commands, and writes and reads behind the scenes."""

    def __init__(self, broker: Broker, admin: Admin) -> None:
        self.at = {"bootstrap.servers": broker.bootstrap_servers}
        self.admin = admin

    def types(self, *words: str, answer: str = "") -> Result:
        return CliRunner().invoke(group, [*words, "--bootstrap", self.at["bootstrap.servers"]], input=answer)

    def reads(self, *words: str) -> Any:
        result = self.types(*words, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def writes(self, count: int, *, timestamp_ms: int | None = None) -> None:
        with Producer(self.at) as producer:
            for number in range(count):
                producer.send("ledger", str(number).encode(), partition=0, timestamp_ms=timestamp_ms)
            producer.flush()

    def transacts(self, count: int, *, commit: bool) -> None:
        with Producer({**self.at, "transactional.id": "payments"}) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            for number in range(count):
                producer.send("ledger", str(number).encode(), partition=0)
            producer.flush()
            if commit:
                producer.commit_transaction()
            else:
                producer.abort_transaction()

    def commits(self, offset: int, group_id: str = "readers") -> None:
        self.admin.alter_group_offsets(group_id, {LEDGER: offset})

    def committed(self, group_id: str = "readers") -> int:
        return self.admin.list_group_offsets(group_id)[LEDGER].offset

    def moves(self, *words: str) -> int:
        (row,) = self.reads("reset-offsets", "readers", *words, "--execute")
        assert row["new_offset"] == self.committed()
        return int(row["new_offset"])


@pytest.fixture
def person(semel_broker: Broker) -> Iterator[Person]:
    with Admin({"bootstrap.servers": semel_broker.bootstrap_servers}) as admin:
        admin.create_topic("ledger", partitions=1)
        yield Person(semel_broker, admin)


def test_groups_are_listed_by_state_and_type(person: Person) -> None:
    person.commits(0)
    assert person.reads("list") == [{"group": "readers", "state": "Empty", "type": "classic", "protocol_type": ""}]
    assert person.reads("list", "--state", "Stable") == []
    assert person.reads("list", "--type", "consumer") == []
    assert person.types("list").output.splitlines()[1].split() == ["readers", "Empty", "classic"]


def test_lag_counts_the_records_a_reader_would_see(person: Person) -> None:
    person.writes(3)
    person.transacts(4, commit=True)
    person.transacts(5, commit=False)
    person.writes(2)
    person.commits(1)
    (row,) = person.reads("describe", "readers")
    assert row["visible_end"] == 3 + 5 + 6 + 2
    assert (row["lag"], row["lag_counted"]) == (2 + 4 + 2, True)
    in_words = person.types("describe", "readers").output
    assert "readers: Empty, classic, 0 members" in in_words
    assert "markers" in in_words and "~" not in in_words


def test_lag_behind_a_marker_at_the_end_is_none(person: Person) -> None:
    person.transacts(2, commit=True)
    person.commits(2)
    (row,) = person.reads("describe", "readers")
    assert (row["committed"], row["visible_end"], row["lag"]) == (2, 3, 0)


def test_lag_is_counted_over_several_fetches(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_lag, "_FETCH_BYTES", 1)
    for commit in (True, False, True):
        person.transacts(3, commit=commit)
    person.commits(1)
    assert person.reads("describe", "readers")[0]["lag"] == 5


def test_a_lag_too_far_to_count_is_said_to_be_a_distance(person: Person) -> None:
    person.writes(10)
    person.commits(0)
    (row,) = person.reads("describe", "readers", "--count-up-to", "5")
    assert (row["lag"], row["lag_counted"]) == (10, False)
    result = person.types("describe", "readers", "--count-up-to", "5")
    assert "~10" in result.output and "number of offsets" in result.output


def test_what_retention_took_is_not_to_come(person: Person) -> None:
    person.writes(5)
    person.commits(0)
    person.admin.delete_records({LEDGER: 3})
    assert person.reads("describe", "readers")[0]["lag"] == 2


def test_a_topic_that_is_gone_leaves_no_offset_behind(person: Person) -> None:
    person.commits(0)
    person.admin.delete_topics(["ledger"])
    assert person.reads("describe", "readers") == []


def test_members_are_shown_with_what_they_read(person: Person) -> None:
    person.writes(1)
    settings = {**person.at, "group.id": "readers", "auto.offset.reset": "earliest", "client.id": "till"}
    with Consumer(settings) as consumer:
        consumer.subscribe(["ledger"])
        until(lambda: consumer.poll(200), within_s=20, what="a record")
        consumer.commit()
        (member,) = person.reads("describe", "readers", "--members")
        assert (member["client"], member["partitions"]) == ("till", ["ledger-0"])
        (row,) = person.reads("describe", "readers")
        assert (row["member"], row["lag"]) == (member["member"], 0)
        busy = person.types("reset-offsets", "readers", "--to-earliest", "--execute")
        assert busy.exit_code == 1 and "members" in busy.stderr
        assert person.types("delete", "readers", "--yes").exit_code == 1


def test_offsets_are_moved_every_way(person: Person) -> None:
    person.writes(5, timestamp_ms=1_000_000)
    person.writes(5, timestamp_ms=2_000_000)
    person.commits(4)
    assert person.moves("--to-earliest") == 0
    assert person.moves("--to-latest") == 10
    assert person.moves("--shift-by", "-3") == 7
    assert person.moves("--to-offset", "2") == 2
    assert person.moves("--to-offset", "99") == 10
    assert person.moves("--shift-by", "-99") == 0
    between = datetime.fromtimestamp(1500, UTC)
    assert person.moves("--to-datetime", between.isoformat()) == 5
    assert person.moves("--to-datetime", between.replace(tzinfo=None).isoformat()) == 5
    assert person.moves("--to-datetime", "2100-01-01") == 10


def test_without_execute_nothing_moves(person: Person) -> None:
    person.writes(5)
    person.commits(4)
    result = person.types("reset-offsets", "readers", "--to-earliest")
    assert result.exit_code == 0 and "Nothing was changed" in result.output
    assert person.committed() == 4


def test_a_new_group_is_placed_by_topic(person: Person) -> None:
    person.writes(5)
    refused = person.types("reset-offsets", "readers", "--to-latest", "--execute")
    assert refused.exit_code == 1 and "--topic" in refused.stderr
    person.types("reset-offsets", "readers", "--topic", "ledger", "--to-latest", "--execute")
    assert person.committed() == 5


@pytest.mark.parametrize(
    "words", [(), ("--to-earliest", "--to-latest"), ("--to-datetime", "yesterday")], ids=["none", "two", "no date"]
)
def test_where_to_is_said_in_one_way(person: Person, words: tuple[str, ...]) -> None:
    assert person.types("reset-offsets", "readers", *words).exit_code == 2


def test_a_group_is_deleted_after_a_confirmation(person: Person) -> None:
    person.commits(1)
    assert person.types("delete", "readers", answer="n\n").exit_code == 1
    assert person.committed() == 1
    assert person.types("delete", "readers", answer="y\n").exit_code == 0
    assert person.reads("list") == []
    gone = person.types("describe", "readers")
    assert gone.exit_code == 1 and gone.stderr.count("\n") == 1


def test_a_partition_that_cannot_be_read_does_not_keep_the_others_from_being_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semel.cli.group.PATIENCE_MS", 500)
    with Broker(tmp_path) as broker, Raw(broker) as raw:
        raw.create("ledger", 2)
        for partition in range(2):
            for _ in range(2):
                raw.produce("ledger", batch(), partition=partition)
    (tmp_path / ".kafka_cleanshutdown").unlink()
    path = tmp_path / "ledger-1" / "00000000000000000000.log"
    whole = path.read_bytes()
    path.write_bytes(whole[:70] + b"\xff" + whole[71:])
    with Broker(tmp_path) as broker, Admin({"bootstrap.servers": broker.bootstrap_servers}) as admin:
        admin.alter_group_offsets("readers", {LEDGER: 1, TopicPartition("ledger", 1): 1})
        person = Person(broker, admin)
        result = person.types("describe", "readers", "--json")
    assert [(row["partition"], row["lag"]) for row in json.loads(result.stdout)] == [(0, 1), (1, None)]
    assert result.stderr.startswith("ledger-1 cannot be read: ")
