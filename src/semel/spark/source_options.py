"""The options of `format("semel")`, under the names Spark's own Kafka source gives them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from semel.machines.contract import TopicPartition

#: What is understood. Spark lowers the case of option names, so they are compared without it.
KNOWN = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "failOnDataLoss",
    "minPartitions",
    "maxOffsetsPerTrigger",
    "includeHeaders",
    "groupIdPrefix",
)


class OptionError(ValueError):
    """An option that is missing, unknown, or cannot mean what it says."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What to read, from where, and how much at once."""

    client_settings: tuple[tuple[str, str], ...]
    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    assigned: tuple[TopicPartition, ...] | None = None
    starting_offsets: str | dict[TopicPartition, int] = "latest"
    ending_offsets: str | dict[TopicPartition, int] = "latest"
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_offsets_per_trigger: int | None = None
    include_headers: bool = False
    isolation_level: int = 1

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool = True) -> SourceOptions:
        """Read the options a user gave; everything that cannot be honoured is refused by name.

        >>> SourceOptions.parse({"kafka.bootstrap.servers": "localhost:9092", "subscribe": "a, b"}).topics
        ('a', 'b')
        """
        given = {name.lower(): value for name, value in options.items()}
        known = {name.lower(): name for name in KNOWN}
        kafka = {name[6:]: value for name, value in given.items() if name.startswith("kafka.")}
        for name in given:
            if name not in known and not name.startswith("kafka.") and name != "path":
                raise OptionError(f"unknown option '{name}' of format('semel'); known are {', '.join(KNOWN)}, kafka.*")
        if "bootstrap.servers" not in kafka:
            raise OptionError("option kafka.bootstrap.servers is missing: name at least one broker as host:port")
        ways = [name for name in ("subscribe", "subscribepattern", "assign") if name in given]
        if len(ways) != 1:
            raise OptionError("give exactly one of subscribe, subscribePattern and assign")
        isolation = kafka.pop("isolation.level", "read_committed")
        if isolation not in ("read_committed", "read_uncommitted"):
            raise OptionError(f"kafka.isolation.level={isolation}: must be read_committed or read_uncommitted")
        default_start = "latest" if streaming else "earliest"
        return cls(
            client_settings=tuple(sorted({"client.id": "semel-source", **kafka}.items())),
            topics=_names(given["subscribe"]) if "subscribe" in given else (),
            pattern=_pattern(given["subscribepattern"]) if "subscribepattern" in given else None,
            assigned=_assigned(given["assign"]) if "assign" in given else None,
            starting_offsets=_offsets(given.get("startingoffsets", default_start), "startingOffsets"),
            ending_offsets=_offsets(given.get("endingoffsets", "latest"), "endingOffsets"),
            fail_on_data_loss=_truth(given.get("failondataloss", "true"), "failOnDataLoss"),
            min_partitions=_count(given, "minPartitions"),
            max_offsets_per_trigger=_count(given, "maxOffsetsPerTrigger"),
            include_headers=_truth(given.get("includeheaders", "false"), "includeHeaders"),
            isolation_level=int(isolation == "read_committed"),
        )


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise OptionError("subscribe names no topic")
    return names


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise OptionError(f"subscribePattern={text}: {error}") from None


def _assigned(text: str) -> tuple[TopicPartition, ...]:
    try:
        return tuple(
            TopicPartition(topic, int(number)) for topic, numbers in json.loads(text).items() for number in numbers
        )
    except (ValueError, AttributeError, TypeError):
        raise OptionError(f'assign={text}: must be JSON such as {{"payments":[0,1]}}') from None


def _offsets(text: str, option: str) -> str | dict[TopicPartition, int]:
    if text.lower() in ("earliest", "latest"):
        return text.lower()
    try:
        return {
            TopicPartition(topic, int(partition)): int(offset)
            for topic, partitions in json.loads(text).items()
            for partition, offset in partitions.items()
        }
    except (ValueError, AttributeError, TypeError):
        raise OptionError(
            f'{option}={text}: must be earliest, latest, or JSON such as {{"payments":{{"0":42,"1":-2}}}}'
        ) from None


def _truth(text: str, option: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise OptionError(f"{option}={text}: must be true or false")
    return text.lower() == "true"


def _count(given: Mapping[str, str], option: str) -> int | None:
    text = given.get(option.lower())
    if text is None:
        return None
    if not text.isdigit() or int(text) < 1:
        raise OptionError(f"{option}={text}: must be a whole number above 0")
    return int(text)
