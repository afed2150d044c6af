"""`semel pipeline audit` against real logs: a yes where it is one, and each way in which it is not."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from click.testing import CliRunner
from confluent_kafka.admin import AdminClient, NewTopic

import semel
from semel.cli import pipeline_audit
from semel.cli.pipeline import pipeline
from semel.client.cluster.cluster import Cluster
from semel.machines.pipeline.batch_marker import BatchMarker
from semel.machines.pipeline.progress_record import to_record
from semel.machines.transactions.requests import OffsetAndMetadata
from semel.machines.values import TopicPartition
from tests.spark.driver import SOURCE, Driver
from tests.support.apache_kafka import ApacheKafka


def make_driver(bootstrap: str, name: str = "pipeline") -> Driver:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    existing = admin.list_topics(timeout=20).topics
    wanted = [NewTopic(topic, 1, 1) for topic in ("payments", "ledger") if topic not in existing]
    for created in admin.create_topics(wanted).values() if wanted else ():
        created.result(20)
    return Driver(bootstrap, name)


@pytest.fixture
def driver(semel_broker: semel.Broker) -> Iterator[Driver]:
    driver = make_driver(semel_broker.bootstrap_servers)
    yield driver
    driver.close()


def audit(driver: Driver, *more: str) -> tuple[int, str]:
    name, bootstrap = driver.transaction.transactional_id, dict(driver.settings)["bootstrap.servers"]
    result = CliRunner().invoke(pipeline, ["audit", name, "--bootstrap", bootstrap, *more])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def batch(driver: Driver, number: int, values: list[bytes], begin: int | None, end: int) -> None:
    driver.begin()
    driver.task(values)
    driver.commit(number, offset=end, begin=begin, rows=len(values))


def three_batches_and_an_abort(driver: Driver) -> None:
    batch(driver, 0, [b"1", b"2"], None, 2)
    driver.begin()
    driver.task([b"3", b"4"])
    driver.add_offsets(1, 4, begin=2, rows=2)
    driver.loop.run(driver.client.end(commit=False))
    driver.transaction.forget_identity()
    driver.begin()
    driver.task([b"lost"])
    driver.transaction.forget_identity()  # a driver that dies here: the next InitProducerId aborts
    batch(driver, 1, [b"3", b"4"], 2, 4)
    batch(driver, 2, [b"5"], 4, 5)


def holds_the_story(driver: Driver) -> None:
    code, said = audit(driver, "--json")
    assert code == 0, said
    found = json.loads(said)
    assert found["exactly_once"] is True and found["findings"] == [] and found["not_judged"] == []
    outcomes = [(row["batch"], row["outcome"], row["rows_in_log"]) for row in found["entries"]]
    assert sorted(outcomes, key=str) == sorted(
        [(0, "committed", 2), (1, "aborted", 2), (None, "aborted", 1), (1, "committed", 2), (2, "committed", 1)],
        key=str,
    )
    assert found["covered"] == [{"topic": "payments", "partition": 0, "from": None, "to": 5}]
    assert found["outputs"] == ["ledger"]
    code, said = audit(driver)
    assert "payments-0 2..4" in said
    assert "every source offset is covered by exactly one committed micro-batch: yes" in said


def test_the_ledger_shows_each_transaction_and_says_yes(driver: Driver) -> None:
    three_batches_and_an_abort(driver)
    holds_the_story(driver)


@pytest.mark.java
@pytest.mark.timeout(180)
def test_it_reads_the_logs_of_apache_kafka(apache_kafka: ApacheKafka) -> None:
    driver = make_driver(apache_kafka.bootstrap_servers, "audited")
    try:
        three_batches_and_an_abort(driver)
        holds_the_story(driver)
    finally:
        driver.close()


def test_the_ledger_can_be_drawn(driver: Driver, tmp_path: Path) -> None:
    three_batches_and_an_abort(driver)
    code, _ = audit(driver, "--plot", str(tmp_path / "ledger.png"))
    picture = (tmp_path / "ledger.png").read_bytes()
    assert code == 0 and picture.startswith(b"\x89PNG\r\n\x1a\n")
    pixels = zlib.decompress(picture[picture.index(b"IDAT") + 4 : picture.rindex(b"IEND") - 8])
    width, height = struct.unpack(">II", picture[16:24])
    assert len(pixels) == height * (1 + 3 * width)
    assert bytes((46, 139, 87)) in pixels and bytes((205, 70, 60)) in pixels, "committed and aborted bars"
    code, said = audit(driver, "--plot", str(tmp_path / "no folder" / "ledger.png"))
    assert code == 1 and "--plot: cannot write" in said


def test_under_the_old_protocol_the_answer_is_the_same(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cluster, "transaction_version", property(lambda _: 0))
    three_batches_and_an_abort(driver)
    code, said = audit(driver)
    assert code == 0 and "exactly one committed micro-batch: yes" in said


def test_a_batch_that_was_written_again_makes_it_a_no(driver: Driver) -> None:
    batch(driver, 0, [b"1", b"2"], None, 2)
    batch(driver, 1, [b"3"], 2, 3)
    batch(driver, 1, [b"3"], 2, 3)
    code, said = audit(driver)
    assert code == 1
    assert "wrong: batch 1 of query query was committed twice" in said
    assert "exactly one committed micro-batch: NO" in said


def test_a_hole_in_the_offsets_and_rows_that_are_not_there_make_it_a_no(driver: Driver) -> None:
    batch(driver, 0, [b"1", b"2"], None, 2)
    batch(driver, 1, [b"3"], 5, 6)
    driver.begin()
    driver.task([b"4"])
    driver.commit(2, offset=7, begin=6, rows=2)
    code, said = audit(driver)
    assert code == 1
    assert "wrong: payments-0: offsets 2 to 5 are covered by none (batches 0, 1)" in said
    assert "wrong: batch 2: its marker says 2 rows, and the log holds 1" in said


def test_what_retention_removed_is_said_and_not_guessed(driver: Driver) -> None:
    batch(driver, 0, [b"1", b"2"], None, 2)
    batch(driver, 1, [b"3"], 2, 3)
    servers: dict[str, Any] = {"bootstrap.servers": dict(driver.settings)["bootstrap.servers"]}
    with semel.Admin(servers) as admin:
        admin.delete_records({("ledger", 0): 3})
    code, said = audit(driver)
    assert code == 0
    assert "not judged: of 1 micro-batches the outputs hold fewer records" in said
    assert "deleted by retention" in said


def test_a_partition_of_which_nothing_is_left_is_not_taken_for_lost_rows(driver: Driver) -> None:
    batch(driver, 0, [b"1", b"2"], None, 2)
    servers: dict[str, Any] = {"bootstrap.servers": dict(driver.settings)["bootstrap.servers"]}
    with semel.Admin(servers) as admin:
        admin.delete_records({("ledger", 0): 3})
        assert admin.list_offsets({("ledger", 0): -1})[TopicPartition("ledger", 0)].offset == 3
    code, said = audit(driver)
    assert code == 0, said
    assert "not judged: of 1 micro-batches the outputs hold fewer records" in said and "deleted by retention" in said


def test_progress_that_was_forgotten_and_offsets_that_were_written_again_make_it_a_no(driver: Driver) -> None:
    batch(driver, 0, [b"1", b"2"], None, 2)
    bootstrap = dict(driver.settings)["bootstrap.servers"]
    forgotten = CliRunner().invoke(pipeline, ["forget", "pipeline", "--yes", "--bootstrap", bootstrap])
    assert forgotten.exit_code == 0, forgotten.output
    driver.begin()
    driver.task([b"1", b"2"])
    driver.commit(0, offset=2, rows=2, query="another")
    code, said = audit(driver)
    assert code == 1
    assert "wrong: payments-0: offsets up to 2 are covered by query query and again by batch 0 of query another" in said
    assert "exactly one committed micro-batch: NO" in said


def test_progress_in_a_compacted_topic_is_not_counted_as_a_row(driver: Driver) -> None:
    marker = BatchMarker("query", 0, "aa")
    kept = to_record({SOURCE: 2}, marker, of_sources=True)
    servers = {"bootstrap.servers": dict(driver.settings)["bootstrap.servers"], "transactional.id": "pipeline"}
    with semel.Producer(servers) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("ledger", kept, key="pipeline").result(20_000)
            producer.send("ledger", b"a row", key="pipeline")
            at = OffsetAndMetadata(2, metadata=marker.to_metadata(rows=1))
            producer.send_offsets_to_transaction({("payments", 0): at}, "pipeline")
    code, said = audit(driver, "--json")
    (entry,) = json.loads(said)["entries"]
    assert (code, entry["rows"], entry["rows_in_log"]) == (0, 1, 1), said


def test_output_topics_that_the_coordinator_does_not_know_are_asked_for_and_not_taken_for_lost_rows(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap = dict(driver.settings)["bootstrap.servers"]
    with semel.Producer({"bootstrap.servers": bootstrap, "transactional.id": "loads"}) as producer:
        producer.init_transactions()
        with producer.transaction():
            producer.send("ledger", b"a row")
            at = OffsetAndMetadata(0, metadata=BatchMarker("load monday", 0, "aa").to_metadata(
                beside_source_offset=False, rows=1))  # fmt: skip
            producer.send_offsets_to_transaction({("ledger", 0): at}, "loads/monday")
    asked = ["audit", "loads/monday", "--bootstrap", bootstrap]
    found = CliRunner().invoke(pipeline, asked)
    assert found.exit_code == 0 and "name them all with --output" in found.output, found.output
    found = CliRunner().invoke(pipeline, [*asked, "--output", "ledger", "--json"])
    assert json.loads(found.output)["not_judged"] == [], found.output
    assert json.loads(found.output)["entries"][0]["rows_in_log"] == 1
    # The same if compaction has removed the record of a transaction that wrote to a topic of its own.
    driver.begin()
    driver.task([b"1", b"2"])
    driver.commit(0, offset=2, rows=3)  # the third in a topic that is not known any more
    all_batches = pipeline_audit._batches

    def compacted(cluster: Any, place: TopicPartition) -> Iterator[Any]:
        return (one for one in all_batches(cluster, place)
                if place.topic != pipeline_audit.TRANSACTIONS or one.base_offset > 2)  # fmt: skip

    monkeypatch.setattr(pipeline_audit, "_batches", compacted)
    code, said = audit(driver)
    assert code == 0 and "name them all with --output" in said, said
    code, said = audit(driver, "--output", "ledger")
    assert code == 1 and "wrong: batch 0: its marker says 3 rows, and the log holds 2" in said, said


def test_an_id_that_nobody_knows_and_an_output_that_is_not_there(driver: Driver) -> None:
    batch(driver, 0, [b"1"], None, 1)
    bootstrap = dict(driver.settings)["bootstrap.servers"]
    result = CliRunner().invoke(pipeline, ["audit", "nobody", "--bootstrap", bootstrap])
    assert result.exit_code == 1 and "hold no transaction of 'nobody'" in result.output
    _, said = audit(driver, "--output", "nowhere")
    assert "not judged: topic nowhere is gone" in said


def test_brokers_that_are_away_are_told_in_a_sentence() -> None:
    result = CliRunner().invoke(pipeline, ["audit", "ledger", "--bootstrap", "127.0.0.1:1"])
    assert result.exit_code == 1 and "no answer from 127.0.0.1:1" in result.output


def commit_as_a_consumer(driver: Driver, *, transactional: bool) -> None:
    """Another program has the pipeline's name as its group.id."""
    bootstrap, place = dict(driver.settings)["bootstrap.servers"], confluent_kafka.TopicPartition("payments", 0, 1)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "pipeline"})
    if transactional:
        producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, "transactional.id": "stranger"})
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce("ledger", b"the stranger's")
        producer.send_offsets_to_transaction([place], consumer.consumer_group_metadata(), 20)
        producer.commit_transaction(20)
    else:
        consumer.commit(offsets=[place], asynchronous=False)
    consumer.close()


def test_offsets_that_another_program_commits_in_the_group_are_told_and_are_no_micro_batch(driver: Driver) -> None:
    three_batches_and_an_abort(driver)
    for transactional in (True, False):
        commit_as_a_consumer(driver, transactional=transactional)
    code, said = audit(driver)
    assert code == 0 and "'pipeline': 3 committed, 2 aborted" in said
    assert "another program has committed offsets in the group of this name, 2 times, last payments-0 at 1" in said
    found = json.loads(audit(driver, "--json")[1])
    assert [entry["rows_in_log"] for entry in found["entries"] if entry["outcome"] == "committed"] == [2, 2, 1]
    bootstrap = dict(driver.settings)["bootstrap.servers"]
    status = CliRunner().invoke(pipeline, ["status", "pipeline", "--bootstrap", bootstrap]).output
    assert "another program has committed offsets in the group of this name (payments-0)" in status
