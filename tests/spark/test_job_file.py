"""pipeline.toml: what it may say, and that every mistake in it is told at once, with its key and its line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

pytest.importorskip("pyspark")

from semel.cli.pipeline import pipeline
from semel.spark.job.building import session_settings
from semel.spark.job.file import read_pipeline
from semel.spark.job.tables import FileMistakes, Mistake

GOOD = """\
transactional_id = "ledger"
checkpoint = "checkpoint"

[kafka]
bootstrap.servers = "127.0.0.1:9092"

[source.payments]
subscribe = "payments"
startingOffsets = "earliest"

[transform]
sql = "select key, value from payments"

[output.ledger]
topic = "ledger"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "pipeline.toml"
    path.write_text(text)
    return path


def mistakes_in(folder: Path, text: str, **environment: str) -> list[Mistake]:
    with pytest.raises(FileMistakes) as caught:
        read_pipeline(written(folder, text), environment)
    return caught.value.mistakes


def test_a_file_says_what_is_read_how_it_is_changed_and_where_it_goes(tmp_path: Path) -> None:
    found = read_pipeline(written(tmp_path, GOOD), {})
    assert (found.transactional_id, found.bootstrap_servers) == ("ledger", "127.0.0.1:9092")
    assert found.checkpoint == str(tmp_path / "checkpoint"), "seen from the file"
    assert found.sources[0].options == {
        "kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "payments", "startingOffsets": "earliest",
    }  # fmt: skip
    assert [(output.name, output.topic) for output in found.outputs] == [("ledger", "ledger")]


def test_python_workers_are_reached_by_unix_sockets_unless_the_file_says_otherwise(tmp_path: Path) -> None:
    name = "spark.python.unix.domain.socket.enabled"
    assert session_settings(read_pipeline(written(tmp_path, GOOD), {}), None)[name] == "true"
    said = GOOD + "[spark]\npython.unix.domain.socket.enabled = false\n"
    assert session_settings(read_pipeline(written(tmp_path, said), {}), "local[1]")[name] == "false"


def test_what_init_writes_has_no_mistake_and_is_never_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "new"
    result = CliRunner().invoke(pipeline, ["init", str(folder)])
    assert result.exit_code == 0, result.output
    found = read_pipeline(folder / "pipeline.toml", {})
    assert (found.function, found.trigger) == ("transform:ledger", {"availableNow": True})
    (folder / "transform.py").write_text("mine")
    (folder / "pipeline.toml").unlink()
    result = CliRunner().invoke(pipeline, ["init", str(folder)])
    assert result.exit_code == 1 and "transform.py is there already: nothing was written" in result.output
    assert (folder / "transform.py").read_text() == "mine" and not (folder / "pipeline.toml").exists()


def test_every_commented_key_of_the_template_is_a_key(tmp_path: Path) -> None:
    CliRunner().invoke(pipeline, ["init", str(tmp_path)])
    text = (tmp_path / "pipeline.toml").read_text().replace("available_now = true", "")
    lines = [line[2:] if re.match(r"# (\[\w+\]$|.* = )", line) else line for line in text.splitlines()]
    lines = [line for line in lines if not line.startswith(("One of", "Where the rows"))]
    found = read_pipeline(written(tmp_path, "\n".join(lines)), {"KAFKA_PASSWORD": "pssst"})
    assert found.arguments["compression"] == "zstd"
    assert found.trigger == {"processingTime": "10 seconds"}
    assert found.kafka["sasl.password"] == "pssst"
    assert found.dead_letters is not None and found.dead_letters.topic == "payments.dead"


@pytest.mark.parametrize(
    ("change", "key", "line", "words"),
    [
        (('topic = "ledger"', 'topics = "ledger"'), "output.ledger.topics", 15, "did you mean topic?"),
        (("[transform]", "[transfrom]"), "transfrom", 11, "did you mean transform?"),
        (("startingOffsets", "startingOfsets"), "source.payments.startingOfsets", 9, "did you mean startingOffsets?"),
        (('"earliest"', '"erliest"'), "source.payments.startingOffsets", 9, "must be earliest, latest"),
        (("bootstrap.servers", "bootstrap.server"), "kafka.bootstrap.server", 5, "did you mean bootstrap.servers?"),
        (('"127.0.0.1:9092"', '"nowhere"'), "kafka.bootstrap.servers", 5, "nowhere"),
        (('checkpoint = "checkpoint"', ""), "checkpoint", None, "is missing"),
        (('transactional_id = "ledger"', 'transactional_id = " "'), "transactional_id", 1, "not empty"),
        (('transactional_id = "ledger"', "transactional_id = 7"), "transactional_id", 1, "must be text"),
        (('topic = "ledger"', 'topic = "led ger"'), "output.ledger.topic", 15, "no name of a topic"),
        (('sql = "select', 'function = "f"\nsql = "select'), "transform", 11, "sql and function: give one"),
        (("[output.ledger]\n", "[trigger]\nprocessing_time = 'soon'\n[output.ledger]\n"),
         "trigger.processing_time", 15, "'soon' is no time"),
        (("[source.payments]", "[source]"), "source.subscribe", 8, "the name of a source: [source.payments]"),
        (("[output.ledger]", "[output]"), "output.topic", 15, "a table with the name of an output: [output.ledger]"),
        (('"payments"', '"${PAY MENTS}"'), "source.payments.subscribe", 8, "'${PAY MENTS}' is no variable"),
        (('sql = "select key, value from payments"', 'function = "transform.py:ledger"'), "transform.function", 12,
         "must be module:function, such as transform:ledger"),
        (("[transform]", "[source.payments.kafka]\nlinger.ms = 5\n[transform]"), "source.payments.kafka.linger.ms", 12,
         "is a setting of the output's clients: give it in [kafka]"),
        (("[kafka]", "[kafka]\npartitioner.class = 'x'"), "kafka.partitioner.class", 5, "a column 'partition' instead"),
        (("[kafka]", "[kafka]\ntransactional.id = 'x'"), "kafka.transactional.id", 5, "transactional_id at the top"),
        (("[kafka]", "[kafka]\nfetch.min.bytes = 'few'"), "kafka.fetch.min.bytes", 5, "whole number"),
        (('checkpoint = "checkpoint"', 'checkpoint = "c"\nattempts = 0'), "attempts", 3, "from 1 to"),
        (('checkpoint = "checkpoint"', 'checkpoint = "c"\noutput_mode = "apend"'), "output_mode", 3, "append, update"),
        (('checkpoint = "checkpoint"', 'checkpoint = "${NOWHERE}/c"'), "checkpoint", 2, "no variable NOWHERE"),
        (("[output.ledger]\n", "[spark]\nspeculation = true\n[output.ledger]\n"), "spark.speculation", 15, "twice"),
        (('sql = "select key, value from payments"', 'sql_file = "no.sql"'),
         "transform.sql_file", 12, "cannot be read"),
        (('sql = "select key, value from payments"', 'function = "transform"'),
         "transform.function", 12, "must be module:function"),
        (("[transform]", "[dead_letters]\nwhen = 'true'\n[transform]"), "dead_letters.topic", 11, "is missing"),
        (("[transform]", "[dead_letters]\ntopic = 'dead'\n[transform]"), "dead_letters", 11, "give when"),
        (("[transform]", "[dead_letters]\ntopic = 'dead'\nwhen = 'a'\nfunction = 'a:b'\n[transform]"),
         "dead_letters", 11, "not both"),
        (("[transform]", "[dead_letters]\ntopic = 'ledger'\nwhen = 'true'\n[transform]"),
         "dead_letters.topic", 12, "is the topic of an output, too"),
        (("[transform]", "[dead_letters]\ntopic = 'dead'\nwhere = 'true'\n[transform]"),
         "dead_letters.where", 13, "did you mean when?"),
        (("[transform]", "[source.other]\nsubscribe = 'o'\n[dead_letters]\ntopic = 'dead'\nwhen = 'a'\n[transform]"),
         "dead_letters", 13, "rows of one source"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_key_its_line_and_what_to_do(
    tmp_path: Path, change: tuple[str, str], key: str, line: int | None, words: str
) -> None:
    found = {mistake.key: mistake for mistake in mistakes_in(tmp_path, GOOD.replace(*change))}
    assert key in found, found
    assert words in found[key].why
    assert found[key].line == line


def test_all_mistakes_are_told_in_one_list_in_the_order_of_the_file(tmp_path: Path) -> None:
    text = GOOD.replace("startingOffsets", "maxOffsetsPerTrigger = 0\nminPartitions = 'x'\nstartingOffset")
    text = text.replace('checkpoint = "checkpoint"', "chekpoint = 'c'").replace('topic = "ledger"', "topic = 3")
    found = mistakes_in(tmp_path, text)
    keys = [mistake.key for mistake in found]
    assert set(keys) == {
        "checkpoint", "chekpoint", "source.payments.startingOffset", "source.payments.maxOffsetsPerTrigger",
        "source.payments.minPartitions", "output.ledger.topic",
    }  # fmt: skip
    assert [mistake.line or 0 for mistake in found] == sorted(mistake.line or 0 for mistake in found)
    result = CliRunner().invoke(pipeline, ["check", str(tmp_path / "pipeline.toml")])
    assert result.exit_code == 2
    assert "pipeline.toml:2: chekpoint: is no key of the file; did you mean checkpoint?" in result.output
    assert "6 mistakes" in result.output


@pytest.mark.parametrize(
    "text", ["", "a = ", "[source", "source = 1\noutput = 2\nkafka = 3\ntrigger = 4\ntransform = 5"]
)
def test_a_file_that_is_not_one_is_told_in_words(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    result = CliRunner().invoke(pipeline, ["run", str(path)])
    assert result.exit_code == 2 and "Traceback" not in result.output and "mistake" in result.output


def test_a_file_that_cannot_be_read_is_a_mistake_too(tmp_path: Path) -> None:
    result = CliRunner().invoke(pipeline, ["run", str(tmp_path / "nothing.toml")])
    assert result.exit_code == 2 and "cannot be read: No such file" in result.output
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    assert "is not text in UTF-8" in CliRunner().invoke(pipeline, ["run", str(tmp_path / "binary.toml")]).output


def test_secrets_come_from_the_environment_and_are_never_shown(tmp_path: Path) -> None:
    text = GOOD.replace(
        "[kafka]", '[kafka]\nsecurity.protocol = "SASL_PLAINTEXT"\nsasl.mechanism = "PLAIN"\nsasl.username = "u"\n'
        'sasl.password = "${PASSWORD}"',
    )  # fmt: skip
    found = read_pipeline(written(tmp_path, text), {"PASSWORD": "hunter2"})
    assert found.kafka["sasl.password"] == "hunter2"
    assert found.sources[0].options["kafka.sasl.password"] == "hunter2"
    assert "hunter2" not in repr(found)
    assert found.hide("denied for hunter2") == "denied for [hidden]"
    assert "hunter2" not in found.mistake("kafka", "refused hunter2").why
    wrong = text.replace('"SASL_PLAINTEXT"', '"${PASSWORD}"')
    for mistake in mistakes_in(tmp_path, wrong, PASSWORD="hunter2"):
        assert "hunter2" not in mistake.why
    (missing,) = mistakes_in(tmp_path, text)
    assert missing.key == "kafka.sasl.password" and "PASSWORD" in missing.why


def test_the_mark_that_some_editors_write_at_the_beginning_is_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "pipeline.toml"
    path.write_text(GOOD, encoding="utf-8-sig")
    assert read_pipeline(path, {}).transactional_id == "ledger"


def test_a_variable_of_java_may_stand_in_the_settings_of_spark(tmp_path: Path) -> None:
    text = GOOD + '[spark]\nwarehouse = "${user.home}/tables"\n'
    assert read_pipeline(written(tmp_path, text), {}).spark["spark.warehouse"] == "${user.home}/tables"


def test_a_variable_may_have_a_default_and_a_dollar_may_be_meant(tmp_path: Path) -> None:
    found = read_pipeline(written(tmp_path, GOOD.replace('"checkpoint"', '"/c/${STAGE:-test}/$${x}"')), {})
    assert found.checkpoint == "/c/test/${x}"


def test_names_with_dots_may_be_quoted_and_a_source_may_be_elsewhere(tmp_path: Path) -> None:
    text = (
        GOOD.replace("bootstrap.servers", '"bootstrap.servers"')
        + '[spark]\nsql.shuffle.partitions = 4\n"spark.x" = true\n'
    )
    text = text.replace("[transform]", '[source.payments.kafka]\nbootstrap.servers = "other:9093"\n[transform]')
    found = read_pipeline(written(tmp_path, text), {})
    assert found.spark == {"spark.sql.shuffle.partitions": "4", "spark.x": "true"}
    assert found.sources[0].options["kafka.bootstrap.servers"] == "other:9093"
    assert found.bootstrap_servers == "127.0.0.1:9092"


def test_text_within_three_quotes_is_no_key(tmp_path: Path) -> None:
    text = GOOD.replace('sql = "select key, value from payments"', "sql = '''\ntopic = 7\n'''").replace(
        'topic = "', 'topc = "'
    )
    assert [mistake.line for mistake in mistakes_in(tmp_path, text)] == [17]
