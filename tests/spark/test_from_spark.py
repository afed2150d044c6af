"""docs/from-spark.md: its tables have every option and column of Spark's connector, and its job changes over."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import semel
from semel.spark.source_options import REFUSED, OptionError, SourceOptions
from tests.spark.stage import Stage
from tests.support.pages import blocks_of
from tests.support.requirements import CHECKOUT, require_connector

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

PAGE = CHECKOUT / "docs" / "from-spark.md"
#: A hook of the connector's own tests, in both spellings of its source code.
NO_OPTIONS = {"_mocksystemtime"}
#: Of the connector's constants, those that are texts and no names of options.
TEXTS = re.compile(r".*(INSTRUCTION|MESSAGE|CLASSNAME|DEFAULT).*")
CONNECTOR = "org.apache.spark.sql.kafka010"


def constants(spark: Any, name: str) -> dict[str, Any]:
    """The constants of a Scala object of the connector, by reflection: also one that we have never heard of."""
    jvm = spark._jvm
    loader = jvm.org.apache.spark.util.Utils.getContextOrSparkClassLoader()
    kind = jvm.java.lang.Class.forName(f"{CONNECTOR}.{name}$", True, loader)
    module = kind.getField("MODULE$").get(None)
    found = {}
    for field in kind.getDeclaredFields():
        constant = str(field.getName()).rpartition("$")[2]
        if constant.isupper() and constant:
            field.setAccessible(True)
            found[constant] = field.get(module)
    return found


@pytest.fixture
def connector(spark: Any) -> Any:
    require_connector()
    return spark


def section(title: str) -> str:
    return PAGE.read_text().split(f"\n### {title}\n")[1].split("\n#")[0]


def rows(title: str) -> dict[str, str]:
    """What the table of a section says about each option."""
    found = {}
    for names, says in re.findall(r"^\| (`.*?`.*?) \| (.*) \|$", section(title), re.MULTILINE):
        if "format(" not in names:
            found.update(dict.fromkeys(re.findall(r"`([^`]+)`", names), says))
    return found


def test_the_page_has_every_option_of_sparks_connector(connector: Any) -> None:
    found = {
        value.lower()
        for name, value in constants(connector, "KafkaSourceProvider").items()
        if isinstance(value, str) and not TEXTS.fullmatch(name)
    } - NO_OPTIONS
    assert len(found) >= 21, "the connector keeps its options elsewhere: look for them"
    source, sink = rows("The source"), rows("The sink")
    own = {name.lower() for name in (*source, *sink) if not name.startswith("kafka.")}
    assert own - {"checkpointlocation"} == found, "an option of Spark's connector, or of the page, that the other lacks"


def test_the_page_has_every_setting_of_sparks_connector(connector: Any) -> None:
    found = {entry.key() for entry in constants(connector, "package").values()}
    assert len(found) >= 8
    assert set(rows("Settings of Spark")) - {"spark.kafka.clusters.*"} == found


SAMPLES = {
    "assign": '{"a":[0]}', "subscribePattern": "a.*", "subscribe": "a", "failOnDataLoss": "false",
    "startingOffsets": "earliest", "endingOffsets": "latest", "includeHeaders": "true", "maxTriggerDelay": "15m",
    "startingOffsetsByTimestamp": '{"a":{"0":7}}', "endingOffsetsByTimestamp": '{"a":{"0":7}}',
    "startingOffsetsByTimestampStrategy": "latest", "groupIdPrefix": "mine", "kafka.*": "",
}  # fmt: skip


@pytest.mark.parametrize("option", rows("The source"))
def test_what_the_page_says_of_an_option_is_so(option: str) -> None:
    says = rows("The source")[option]
    ways = ("subscribe", "subscribePattern", "assign")
    given = {"kafka.bootstrap.servers": "h:9092", **({} if option in ways else {"subscribe": "a"})}
    if option != "kafka.*":
        given[option] = SAMPLES.get(option, "7")
    if not says.startswith("refused"):
        SourceOptions.parse(given, streaming=None)
        return
    with pytest.raises(OptionError, match=f"^{re.escape(option)}"):
        SourceOptions.parse(given, streaming=None)
    if option in REFUSED:
        instead = re.findall(r"`([^`]+)`", says)[0]
        assert instead in REFUSED[option]
        SourceOptions.parse({"kafka.bootstrap.servers": "h:9092", "subscribe": "a", instead: "7"})


def test_the_columns_are_those_of_the_connector(connector: Any, semel_broker: semel.Broker, tmp_path: Path) -> None:
    stage = Stage(connector, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=1)
    converter = connector._jvm.org.apache.spark.sql.kafka010.KafkaRecordToRowConverter
    for with_headers in (True, False):
        theirs = json.loads(converter.kafkaSchema(with_headers).json())
        reader = connector.read.format("semel").option("kafka.bootstrap.servers", stage.bootstrap_servers)
        reader = reader.option("includeHeaders", str(with_headers).lower())
        ours = json.loads(reader.option("subscribe", "payments").load().schema.json())
        assert ours == theirs
        assert all(f"`{column['name']}`" in section("The source") for column in theirs["fields"])
    columns = {value for name, value in constants(connector, "KafkaWriter").items() if name.endswith("ATTRIBUTE_NAME")}
    sentence = section("The sink").split("The columns are ")[1].split(",\nwith")[0].split(", with")[0]
    assert columns == set(re.findall(r"`(\w+)`", sentence))


def test_the_job_of_the_page_changes_over_and_nothing_is_lost_or_twice(
    connector: Any, semel_broker: semel.Broker, tmp_path: Path
) -> None:
    stage = Stage(connector, semel_broker.bootstrap_servers, tmp_path)
    stage.create_topics(payments=2, ledger=2)
    before, after = (block.text for block in blocks_of(PAGE) if block.language == "python")

    def run(program: str) -> None:
        program = program.replace("localhost:9092", stage.bootstrap_servers)
        names: dict[str, Any] = {"spark": connector}
        exec(compile(program.replace("/data/checkpoints/ledger", stage.checkpoint), str(PAGE), "exec"), names)
        try:
            names["query"].processAllAvailable()
        finally:
            names["query"].stop()

    values = stage.put_numbers(20)
    run(before)
    assert sorted(stage.values()) == values
    stage.put("payments", [(b"k", b"news")])
    run(after)
    assert sorted(stage.values()) == [*values, b"NEWS"]
    stage.put("payments", [(b"k", b"more")])
    run(after)  # adopt=True may stay: it changes nothing
    assert sorted(stage.values()) == [*values, b"MORE", b"NEWS"]
