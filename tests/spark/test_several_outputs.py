"""Several outputs and dead letters in one transaction: by start(outputs=...), and in foreachBatch of one's own."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.functions import udf

import semel
from semel.spark import DeadLetters, PipelineMistake, Step, transaction
from semel.spark.user_transaction import _open
from semel.testing.fault_proxy import Cut, FaultProxy, Passing, Way, every
from semel.wire.apis import ApiKey
from tests.spark.stage import Stage, python_workers
from tests.support.pages import blocks_of
from tests.support.requirements import CHECKOUT

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.fixture
def stage(spark: Any, semel_broker: semel.Broker, tmp_path: Path) -> Stage:
    stage = Stage(spark, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=2, ledger=2, audit=1, dead=1)
    return stage


def whole(stage: Stage, **options: Any) -> Any:
    """The source with all its columns."""
    given = {"subscribe": "payments", "startingOffsets": "earliest", **options}
    reader = stage.spark.readStream.format("semel").option("kafka.bootstrap.servers", stage.bootstrap_servers)
    return reader.options(**{name: str(value) for name, value in given.items()}).load()


def to_ledger(rows: Any) -> Any:
    return rows.select("key", "value")


def to_audit(rows: Any) -> Any:
    return rows.where("value like '%7'").selectExpr("key", "concat('audit ', string(value)) as value")


OUTPUTS = {"ledger": to_ledger, "audit": to_audit}


def audited(values: list[bytes]) -> list[bytes]:
    return [b"audit " + value for value in values if value.endswith(b"7")]


def check(stage: Stage, values: list[bytes]) -> None:
    assert sorted(value for value in stage.values() if value) == values
    assert sorted(value for value in stage.values("audit") if value) == audited(values)


def test_several_outputs_are_one_transaction_and_read_the_source_once(stage: Stage) -> None:
    values = stage.put_numbers(60)
    fetched: list[int] = []

    def count(passing: Passing) -> None:
        if passing.api_key == ApiKey.FETCH:
            fetched.append(1)

    failed: list[int] = []

    def fail_once(step: Step, batch_id: int) -> None:
        if step is Step.PRODUCED and batch_id == 1 and not failed:
            failed.append(1)
            assert len(stage.values(committed=False)) > len(stage.values())
            raise RuntimeError("the driver lost its head")

    with FaultProxy(stage.bootstrap_servers, count) as proxy:
        frame = whole(stage, maxOffsetsPerTrigger=30, **{"kafka.bootstrap.servers": proxy.bootstrap_servers})
        steps = stage.run(frame, topic=None, outputs=OUTPUTS, observer=fail_once)
    assert (Step.RETRYING, 1) in steps and steps[-1] == (Step.COMMITTED, 1)
    check(stage, values)
    # Two partitions, three attempts, one fetch each (a response and a request pass by): twice that if read for each.
    assert 0 < len(fetched) <= 2 * 2 * 3 * 1.5
    assert stage.spark.sparkContext._jsc.getPersistentRDDs().size() == 0
    assert "semel[ledger, audit at " in str(stage.query.lastProgress)


def test_of_a_task_killed_in_the_second_output_nothing_of_the_first_is_seen(stage: Stage) -> None:
    values = [b"%06d" % number for number in range(40)]
    stage.put("payments", ((b"account-%d" % (number % 7), value) for number, value in enumerate(values)), partition=0)
    killed: list[int] = []

    def kill(passing: Passing) -> None:
        # There is one task. Its first two are for the two partitions of the ledger.
        is_third = passing.api_key == ApiKey.PRODUCE and passing.way is Way.REQUEST and passing.count == 3
        if is_third and not killed:
            killed.extend(python_workers(stage.spark.sparkContext._gateway.proc.pid))
            assert stage.values() == []
            assert stage.values(committed=False) != []
            for worker in killed:
                os.kill(worker, signal.SIGKILL)

    with FaultProxy(stage.bootstrap_servers, kill) as proxy:
        steps = stage.run(whole(stage), topic=None, outputs=OUTPUTS, bootstrap_servers=proxy.bootstrap_servers)
    assert killed and (Step.RETRYING, 0) in steps
    check(stage, values)


def test_a_function_of_an_output_is_checked_before_anything_runs(stage: Stage) -> None:
    frame = whole(stage)
    for given, says in (
        ({"outputs": {"ledger": to_ledger}, "topic": "ledger"}, "topic and outputs: give one of them"),
        ({"outputs": {}}, "must be a mapping from topics to functions, at least one"),
        ({"outputs": {"a b": to_ledger}}, "outputs='a b': must be the name of a topic"),
        ({"outputs": {"ledger": 7}}, "outputs['ledger']=7: must be a function"),
        ({"outputs": {"ledger": lambda rows: 7}}, "outputs['ledger'] returned int, and must return a DataFrame"),
        ({"outputs": {"ledger": lambda rows: frame}}, "outputs['ledger'] returned a streaming DataFrame: it must make"),
        ({"outputs": {"ledger": lambda rows: rows.select("key")}}, "output 'ledger': the sink needs a column 'value'"),
        ({"outputs": {"ledger": lambda rows: 1 // 0}}, "called with a DataFrame without rows, raised ZeroDivisionE"),
        ({"outputs": {"ledger": lambda rows: rows.select("no")}}, "raised [UNRESOLVED_COLUMN.WITH_SUGGESTION] A"),
        ({"outputs": OUTPUTS, "dead_letters": DeadLetters("dead", "no = 1")}, "dead_letters: when raised [UNRESO"),
        ({"outputs": OUTPUTS, "dead_letters": DeadLetters("dead", "= 1")}, "dead_letters: when raised [PARSE_SYNTAX"),
        ({"outputs": {"__consumer_offsets": to_ledger}}, "is one of the brokers' own"),
        ({"dead_letters": DeadLetters("dead", "true")}, "dead_letters needs outputs"),
        ({"outputs": OUTPUTS, "dead_letters": "dead"}, "must be semel.spark.DeadLetters"),
        ({"outputs": OUTPUTS, "dead_letters": DeadLetters("audit", "true")}, "'audit' is an output too"),
        ({"outputs": OUTPUTS, "dead_letters": DeadLetters("dead", "offset")}, "gives bigint, and must give the error"),
    ):
        with pytest.raises(PipelineMistake) as refused:
            stage.start(frame, **{"topic": None, **given})  # type: ignore[dict-item]
        assert says in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(PipelineMistake, match=r"topic, partition, offset missing: select them too"):
        stage.start(stage.source(), topic=None, outputs=OUTPUTS, dead_letters=DeadLetters("dead", "true"))
    with pytest.raises(PipelineMistake, match="when=int"):
        DeadLetters("dead", 7)
    assert not Path(stage.checkpoint).exists()


@pytest.mark.parametrize("way", ["text", "condition", "function"])
def test_dead_letters_say_where_they_came_from_and_what_is_wrong(stage: Stage, way: str) -> None:
    stage.put("payments", [(b"a", b"1"), (b"a", b"two"), (b"a", b"3"), (None, b"\xff\xfe")], partition=1)
    bad = "try_cast(string(value) as bigint) is null"
    when: Any = {
        "text": f"case when {bad} then concat('not a number: ', hex(value)) end",
        "condition": bad,
        "function": lambda rows: rows.value.cast("string").rlike("[^0-9]"),
    }[way]
    outputs = {"ledger": lambda rows: rows.selectExpr("key", "string(bigint(string(value)) * 2) as value")}
    stage.run(whole(stage, includeHeaders=True), topic=None, outputs=outputs, dead_letters=DeadLetters("dead", when))
    assert stage.values() == [b"2", b"6"]
    error = {
        "text": b"not a number: 74776F",
        "condition": bad.encode(),
        "function": b"the condition for dead letters holds",
    }
    letters = stage.seen("dead")
    assert [(letter.key, letter.value) for letter in letters] == [(b"a", b"two"), (None, b"\xff\xfe")]
    assert dict(letters[0].headers) == {
        "source.topic": b"payments", "source.partition": b"1", "source.offset": b"1", "error": error[way],
    }  # fmt: skip
    assert dict(letters[1].headers)["source.offset"] == b"3"


def test_a_condition_for_dead_letters_that_throws_dice_loses_no_row_and_writes_none_twice(stage: Stage) -> None:
    values = stage.put_numbers(200)
    outputs = {"ledger": lambda rows: rows.select("key", "value")}
    dice = udf(lambda value: random.random() < 0.5, "boolean")
    stage.run(whole(stage), topic=None, outputs=outputs, dead_letters=DeadLetters("dead", dice("value")))
    good, dead = stage.values(), stage.values("dead")
    assert good and dead
    assert sorted(good + dead) == values  # type: ignore[type-var]


# --- a foreachBatch of one's own ----------------------------------------------------------------------------------


class Own:
    """A query with a foreachBatch that writes to two topics, one of them twice."""

    def __init__(self, stage: Stage, **settings: Any) -> None:
        self.stage = stage
        self.source = whole(stage, maxOffsetsPerTrigger=20)
        self.settings = {
            "bootstrap_servers": stage.bootstrap_servers, "transactional_id": "own", "checkpoint": stage.checkpoint,
            "source": self.source, **settings,
        }  # fmt: skip
        self.done: list[tuple[int, bool, int]] = []
        self.fail_in: int | None = None

    def each(self, rows: Any, batch_id: int) -> None:
        with transaction(batch_id=batch_id, **self.settings) as t:
            even = t.write(to_ledger(rows.where("int(string(value)) % 2 = 0")), topic="ledger")
            t.write(to_audit(rows), topic="audit")
            if batch_id == self.fail_in:
                self.fail_in = None
                assert len(self.stage.values(committed=False)) > len(self.stage.values())
                raise RuntimeError("a mistake in my own code")
            odd = t.write(to_ledger(rows.where("int(string(value)) % 2 = 1")), topic="ledger")
            self.done.append((t.batch_id, t.is_done, even + odd))

    def run(self) -> None:
        writer = self.source.writeStream.foreachBatch(self.each).option("checkpointLocation", self.stage.checkpoint)
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(150)
        finally:
            query.stop()
            self.close()

    def close(self) -> None:
        for opened in _open.values():
            opened.side.close()
        _open.clear()


def test_a_block_of_ones_own_is_all_or_nothing_and_a_committed_batch_is_not_written_again(stage: Stage) -> None:
    values = stage.put_numbers(40)
    own = Own(stage)
    own.fail_in = 1
    with pytest.raises(Exception, match="a mistake in my own code"):
        own.run()
    assert own.done == [(0, False, 20)]
    assert len(stage.values()) == 20
    own.run()
    assert own.done == [(0, False, 20), (1, False, 20)]
    check(stage, values)
    stage.forget_commits_from(1)
    own.run()
    assert own.done[2:] == [(1, True, 0)]
    check(stage, values)
    with semel.Admin({"bootstrap.servers": stage.bootstrap_servers}) as admin:
        assert sum(at.offset for at in admin.list_group_offsets("own").values()) == 40


def test_lost_answers_to_the_commit_of_a_block_are_settled_by_the_marker(stage: Stage) -> None:
    values = stage.put_numbers(40)
    with FaultProxy(stage.bootstrap_servers, every(1, ApiKey.END_TXN, Cut())) as proxy:
        own = Own(stage, bootstrap_servers=proxy.bootstrap_servers, source=None, kafka={"max.block.ms": 3000})
        own.run()
    assert [done[:2] for done in own.done] == [(0, False), (1, False)]
    check(stage, values)


def test_mistakes_in_a_block_are_told_in_one_sentence(stage: Stage) -> None:
    stage.put_numbers(1)
    rows = stage.spark.read.format("semel").option("kafka.bootstrap.servers", stage.bootstrap_servers)
    rows = rows.option("subscribe", "payments").load()
    with pytest.raises(PipelineMistake, match="batch_id='0': must be the number"), transaction(
        batch_id="0", bootstrap_servers="h:1", transactional_id="x", checkpoint="/x"  # type: ignore[arg-type]
    ):
        pass
    own = Own(stage)
    said: list[str] = []
    kept: list[Any] = []

    def each(given: Any, batch_id: int) -> None:
        with transaction(batch_id=batch_id, **own.settings) as t:
            kept.append(t)
            for wrong in (lambda: t.write(7), lambda: t.write(given.select("key"), topic="ledger"),
                          lambda: t.write(to_ledger(given), topic="__consumer_offsets"),
                          lambda: t.write(own.source, topic="ledger")):  # fmt: skip
                with pytest.raises(PipelineMistake) as refused:
                    wrong()
                said.append(str(refused.value))
            t.write(to_ledger(given), topic="ledger")
        with pytest.raises(PipelineMistake, match="the transaction has ended"):
            t.write(given, topic="ledger")

    own.each = each  # type: ignore[method-assign]
    own.run()
    assert [text.split(":")[0] for text in said] == [
        "write() takes a DataFrame, not int",
        "the sink needs a column 'value' of strings or bytes; there are",
        "topic '__consumer_offsets' is one of the brokers' own",
        "write() takes the DataFrame that foreachBatch gives, not a streaming one",
    ]
    assert len(stage.values()) == 1


# --- the pages ----------------------------------------------------------------------------------------------------


def programs_of_the_page(stage: Stage, word: str) -> str:
    program = next(block.text for block in blocks_of(CHECKOUT / "docs" / "spark.md") if word in block.text)
    return program.replace("localhost:9092", stage.bootstrap_servers).replace(
        "/data/checkpoints/ledger", stage.checkpoint
    )


def test_the_programs_of_the_page_do_what_it_says(stage: Stage) -> None:
    stage.create_topics(fraud=1, **{"payments.dead": 1})
    stage.put("payments", [(b"a", b"7"), (b"a", b"20000"), (b"a", b"seven")], partition=0)
    names: dict[str, Any] = {"spark": stage.spark, "payments": whole(stage)}
    exec(compile(programs_of_the_page(stage, "outputs={"), "docs/spark.md", "exec"), names)
    try:
        names["query"].processAllAvailable()
    finally:
        names["query"].stop()
    assert stage.values() == [b"7", b"20000"]
    assert stage.values("fraud") == [b"20000"]
    assert stage.values("payments.dead") == [b"seven"]
    stage.checkpoint, names["payments"] = str(stage.folder / "own"), whole(stage)
    program = programs_of_the_page(stage, "def each(rows, batch_id)").replace('"ledger-pipeline"', '"own"')
    exec(compile(program, "docs/spark.md", "exec"), names)
    try:
        names["query"].processAllAvailable()
    finally:
        names["query"].stop()
        Own(stage).close()
    assert stage.values("audit") == []
    assert len(stage.values()) == 5
    for _ in range(2):
        exec(compile(programs_of_the_page(stage, "name=\"load-2026-11-16\""), "docs/spark.md", "exec"), names)
    assert len(stage.values()) == 1005
