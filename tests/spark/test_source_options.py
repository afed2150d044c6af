"""The options of format("semel"): Spark's names, Spark's rules, and every mistake named."""

from __future__ import annotations

import pytest

from semel.machines.values import TopicPartition
from semel.spark.source_options import EARLIEST, LATEST, OptionError, SourceOptions

BASE = {"kafka.bootstrap.servers": "localhost:9092"}
ONE = {**BASE, "subscribe": "a"}
FIRST, SECOND = TopicPartition("a", 0), TopicPartition("a", 1)


def test_offsets_may_be_words_or_json_with_the_special_values() -> None:
    parsed = SourceOptions.parse({**ONE, "startingOffsets": '{"a":{"0":42,"1":-2}}'})
    assert (parsed.start.for_partition(FIRST), parsed.start.for_partition(SECOND)) == (42, EARLIEST)
    assert SourceOptions.parse(ONE).start.at == LATEST
    assert SourceOptions.parse(ONE, streaming=False).start.at == EARLIEST
    assert SourceOptions.parse(ONE, streaming=False).end.at == LATEST


def test_explicit_offsets_must_name_every_partition() -> None:
    parsed = SourceOptions.parse({**ONE, "startingOffsets": '{"a":{"0":42}}'})
    with pytest.raises(OptionError, match="says nothing of a-1"):
        parsed.start.for_partition(SECOND)


def test_a_timestamp_for_all_wins_over_timestamps_and_these_over_offsets() -> None:
    options = {**ONE, "startingOffsets": "earliest", "startingOffsetsByTimestamp": '{"a":{"0":7}}'}
    by_partition = SourceOptions.parse(options).start
    assert by_partition.by_timestamp and by_partition.for_partition(FIRST) == 7
    assert SourceOptions.parse({**options, "startingTimestamp": "9"}).start.for_partition(SECOND) == 9


def test_an_unmatched_starting_timestamp_is_an_error_unless_asked_for_otherwise() -> None:
    options = {**ONE, "startingTimestamp": "9"}
    assert not SourceOptions.parse(options).start.latest_if_unmatched
    loose = SourceOptions.parse({**options, "startingOffsetsByTimestampStrategy": "latest"})
    assert loose.start.latest_if_unmatched
    assert SourceOptions.parse({**ONE, "endingTimestamp": "9"}, streaming=False).end.latest_if_unmatched


def test_option_names_are_found_whatever_their_case() -> None:
    assert SourceOptions.parse({**BASE, "SUBSCRIBE": "a", "maxoffsetspertrigger": "5"}).max_offsets_per_trigger == 5


def test_read_committed_is_the_default_and_can_be_given_up() -> None:
    assert SourceOptions.parse(ONE).isolation_level == 1
    assert SourceOptions.parse({**ONE, "kafka.isolation.level": "read_uncommitted"}).isolation_level == 0


def test_kafka_settings_pass_through_and_a_group_id_prefix_names_the_client() -> None:
    parsed = SourceOptions.parse({**ONE, "kafka.fetch.max.wait.ms": "7", "groupIdPrefix": "till"})
    assert dict(parsed.client_settings)["fetch.max.wait.ms"] == "7"
    assert dict(parsed.client_settings)["client.id"] == "till"


@pytest.mark.parametrize(("text", "delay_ms"), [("15m", 900_000), ("30 s", 30_000), ("250ms", 250), ("7", 7)])
def test_a_trigger_delay_is_a_time_with_a_unit(text: str, delay_ms: int) -> None:
    assert SourceOptions.parse({**ONE, "maxTriggerDelay": text}).max_trigger_delay_ms == delay_ms


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribe": "a"}, "kafka.bootstrap.servers is missing"),
        (BASE, "exactly one of"),
        ({**ONE, "assign": "{}"}, "exactly one of"),
        ({**ONE, "startingOfsets": "earliest"}, "unknown option 'startingofsets'"),
        ({**ONE, "startingOffsets": "soon"}, "must be earliest, latest, or JSON"),
        ({**ONE, "startingOffsets": '{"a":{"0":-5}}'}, "must be earliest, latest, or JSON"),
        ({**ONE, "startingOffsets": '{"a":{"0":1.7}}'}, "must be earliest, latest, or JSON"),
        ({**ONE, "startingOffsets": '{"a":{"0":true}}'}, "must be earliest, latest, or JSON"),
        ({**ONE, "startingOffsets": "{}"}, "must be earliest, latest, or JSON"),
        ({**ONE, "startingTimestamp": "9" * 30}, "must be milliseconds since 1970"),
        ({**BASE, "subscribePattern": ""}, "subscribePattern is empty"),
        ({**BASE, "assign": '{"a":[]}'}, "names no partition"),
        ({**ONE, "startingTimestamp": "noon"}, "must be milliseconds since 1970"),
        ({**ONE, "startingOffsetsByTimestamp": "7"}, "must be milliseconds since 1970, or JSON"),
        ({**ONE, "startingOffsetsByTimestampStrategy": "guess"}, "must be error or latest"),
        ({**ONE, "endingOffsets": "latest"}, "no meaning in a streaming query"),
        ({**ONE, "endingTimestamp": "7"}, "no meaning in a streaming query"),
        ({**ONE, "maxOffsetsPerTrigger": "-1"}, "whole number above 0"),
        ({**ONE, "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "is more than maxOffsetsPerTrigger"),
        ({**ONE, "maxTriggerDelay": "soon"}, "must be a time such as"),
        ({**BASE, "subscribePattern": "("}, "subscribePattern"),
        ({**BASE, "subscribe": " , "}, "names no topic"),
        ({**BASE, "assign": "a"}, "must be JSON such as"),
        ({**ONE, "failOnDataLoss": "maybe"}, "must be true or false"),
        ({**ONE, "kafka.isolation.level": "dirty"}, "isolation.level"),
        ({**ONE, "kafka.auto.offset.reset": "earliest"}, "checkpoint keeps the offsets"),
        ({**ONE, "kafka.fetch.max.bites": "5"}, "fetch.max.bites"),
        ({**ONE, "startingOffset": "earliest"}, "unknown option 'startingoffset' .*did you mean 'startingOffsets'"),
        ({**ONE, "bootstrap.servers": "h:1"}, "did you mean 'kafka.bootstrap.servers'"),
        ({**ONE, "colour": "red"}, "known are subscribe, "),
        ({**ONE, "maxOffsetsPerTrigger": "\u00b2"}, "whole number above 0"),
        ({**BASE, "assign": '{"a":"01"}'}, "must be JSON such as"),
        ({**BASE, "assign": '{"a":{"0":1}}'}, "must be JSON such as"),
        ({**BASE, "assign": '{"a":[0.7]}'}, "must be JSON such as"),
        ({**BASE, "assign": '{"a":[true]}'}, "must be JSON such as"),
    ],
)
def test_a_mistake_is_refused_in_words(options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        SourceOptions.parse(options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"startingOffsets": "latest"}, "cannot start at the end"),
        ({"startingOffsets": '{"a":{"0":-1}}'}, "cannot start at the end"),
        ({"endingOffsets": "earliest"}, "cannot end at the beginning"),
        ({"endingOffsets": '{"a":{"0":-2}}'}, "cannot end at the beginning"),
    ],
)
def test_a_batch_query_has_a_beginning_before_its_end(options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        SourceOptions.parse({**ONE, **options}, streaming=False)
