"""The options of format("semel"): Spark's names, and every mistake named."""

from __future__ import annotations

import pytest

from semel.machines.contract import TopicPartition
from semel.spark.source_options import OptionError, SourceOptions

BASE = {"kafka.bootstrap.servers": "localhost:9092"}


def test_offsets_may_be_words_or_json_with_the_special_values() -> None:
    parsed = SourceOptions.parse({**BASE, "subscribe": "a", "startingOffsets": '{"a":{"0":42,"1":-2}}'})
    assert parsed.starting_offsets == {TopicPartition("a", 0): 42, TopicPartition("a", 1): -2}
    assert SourceOptions.parse({**BASE, "subscribe": "a"}).starting_offsets == "latest"
    assert SourceOptions.parse({**BASE, "subscribe": "a"}, streaming=False).starting_offsets == "earliest"


def test_option_names_are_found_whatever_their_case() -> None:
    assert SourceOptions.parse({**BASE, "SUBSCRIBE": "a", "maxoffsetspertrigger": "5"}).max_offsets_per_trigger == 5


def test_read_committed_is_the_default_and_can_be_given_up() -> None:
    assert SourceOptions.parse({**BASE, "subscribe": "a"}).isolation_level == 1
    loose = SourceOptions.parse({**BASE, "subscribe": "a", "kafka.isolation.level": "read_uncommitted"})
    assert loose.isolation_level == 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"subscribe": "a"}, "kafka.bootstrap.servers is missing"),
        (BASE, "exactly one of"),
        ({**BASE, "subscribe": "a", "assign": "{}"}, "exactly one of"),
        ({**BASE, "subscribe": "a", "startingOfsets": "earliest"}, "unknown option 'startingofsets'"),
        ({**BASE, "subscribe": "a", "startingOffsets": "soon"}, "must be earliest, latest, or JSON"),
        ({**BASE, "subscribe": "a", "maxOffsetsPerTrigger": "-1"}, "whole number above 0"),
        ({**BASE, "subscribePattern": "("}, "subscribePattern"),
        ({**BASE, "assign": "a"}, "must be JSON such as"),
        ({**BASE, "subscribe": "a", "failOnDataLoss": "maybe"}, "must be true or false"),
        ({**BASE, "subscribe": "a", "kafka.isolation.level": "dirty"}, "read_committed or read_uncommitted"),
    ],
)
def test_a_mistake_is_refused_in_words(options: dict[str, str], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        SourceOptions.parse(options)
