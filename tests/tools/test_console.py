"""Kafka's console producer and consumer, with every codec."""

from __future__ import annotations

import pytest

from tests.support import java_tools

pytestmark = pytest.mark.java

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.mark.parametrize("codec", CODECS)
def test_the_console_consumer_reads_what_the_console_producer_wrote(broker, codec: str) -> None:
    lines = [f"{codec}-{number}" for number in range(50)]
    topic = f"console-{codec}"
    where = ("--bootstrap-server", broker.bootstrap_servers, "--topic", topic)
    java_tools.run("console-producer", *where, "--compression-codec", codec, stdin="\n".join(lines) + "\n")
    read = java_tools.run("console-consumer", *where, "--partition", 0, "--offset", "earliest", "--max-messages", 50)
    assert read.stdout.splitlines() == lines


def test_keys_headers_and_offsets_arrive_as_they_were_sent(broker) -> None:
    where = ("--bootstrap-server", broker.bootstrap_servers, "--topic", "keyed")
    parse = ("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true")
    java_tools.run("console-producer", *where, *parse, stdin="h1:v1,h2:v2\tk\tvalue\n")
    show = [
        option
        for name in ("print.key", "print.headers", "print.offset", "print.partition")
        for option in ("--formatter-property", f"{name}=true")
    ]
    place = ("--partition", 0, "--offset", 0, "--max-messages", 1)
    read = java_tools.run("console-consumer", *where, *place, *show)
    assert read.stdout.strip().split("\t") == ["Partition:0", "Offset:0", "h1:v1,h2:v2", "k", "value"]


def test_a_group_reads_from_the_beginning(broker) -> None:
    where = ("--bootstrap-server", broker.bootstrap_servers, "--topic", "grouped")
    java_tools.run("console-producer", *where, stdin="a\nb\nc\n")
    read = java_tools.run("console-consumer", *where, "--from-beginning", "--group", "readers", "--max-messages", 3)
    assert sorted(read.stdout.split()) == ["a", "b", "c"]
