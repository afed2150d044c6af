"""What is read from Spark's offset log."""

from __future__ import annotations

import pytest

from semel.machines.values import TopicPartition
from semel.spark.checkpoint import CheckpointUnreadable, parse_offsets


def test_kafka_offsets_are_found_for_every_source() -> None:
    found = parse_offsets('v1\n{"batchWatermarkMs":0}\n{"a":{"0":5,"1":6}}\n{"b":{"0":9}}')
    assert found.ends == {TopicPartition("a", 0): 5, TopicPartition("a", 1): 6, TopicPartition("b", 0): 9}
    assert len(found.texts) == 2


def test_a_source_with_another_kind_of_offset_still_has_a_fingerprint() -> None:
    found = parse_offsets('v1\n{}\n{"logOffset":3}\n17\n-')
    assert found.ends == {}
    assert found.texts == ('{"logOffset":3}', "17")


def test_the_second_version_of_the_log_names_its_sources() -> None:
    found = parse_offsets('v2\n{}\npayments:{"a":{"0":5}}\nclock:17')
    assert found.ends == {TopicPartition("a", 0): 5}
    assert found.texts == ("clock:17", 'payments:{"a":{"0":5}}')


def test_the_offsets_of_some_sources_can_be_had_alone() -> None:
    """Two clusters may have a topic of the same name: what lies here is told by the source and not by the name."""
    found = parse_offsets('v1\n{}\n{"orders":{"0":5}}\n-\n{"orders":{"0":9}}')
    orders = TopicPartition("orders", 0)
    assert found.among([True, False, False]) == {orders: 5}
    assert found.among([False, True, True]) == {orders: 9}
    assert found.among([False, True, False]) == {}


def test_where_lines_and_sources_do_not_match_it_is_all_or_none() -> None:
    found = parse_offsets('v1\n{}\n{"orders":{"0":5}}\n{"orders":{"0":9}}')
    assert found.among([True]) == found.ends
    assert found.among([True, True, False]) == {}
    assert found.among([]) == {}
    named = parse_offsets('v2\n{}\na:{"orders":{"0":5}}\nb:{"refunds":{"0":9}}')
    assert named.among([True, False]) == {}
    assert named.among([True, True]) == named.ends


@pytest.mark.parametrize("content", ["hello", "", "v3\n{}\n17"])
def test_a_file_that_is_not_an_offset_log_is_refused(content: str) -> None:
    with pytest.raises(CheckpointUnreadable):
        parse_offsets(content)
