"""The options of `format("semel")`: the names and rules of Spark's Kafka source."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from semel.config import CONSUMER, ConfigError
from semel.machines.values import TopicPartition

from .kafka_options import ClientSettings, source_settings

#: All options. Names are compared in lower case, because Spark passes them so.
KNOWN = (
    "subscribe",
    "subscribePattern",
    "assign",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "includeHeaders",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
)
#: The columns, without the headers that some ask for; and what is said to a schema with others.
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
OWN_COLUMNS = (
    f"format('semel') has columns of its own ({', '.join(COLUMNS)}): leave .schema(...) out, and take the value apart "
    "with from_json or cast"
)
#: Options of Spark's own source that this one has no use for, and what to do instead.
REFUSED = {
    "fetchOffset.numRetries": "offsets are asked for until kafka.default.api.timeout.ms has passed: set that, or leave "
    "it out",
    "fetchOffset.retryIntervalMs": "the pause between two tries is kafka.retry.backoff.ms: set that, or leave it out",
}
_ENDS = ("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets")

EARLIEST, LATEST = -2, -1
_INT64_MAX = 2**63 - 1

_UNITS_MS = {
    "": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000,
}  # fmt: skip


class OptionError(ValueError):
    """An option that is missing, unknown, or has an impossible value."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading starts or ends: at offsets (-2 is the start of the log, -1 its end), or at timestamps.

    `at` is one number for all partitions, or one for each.
    """

    option: str
    at: int | dict[TopicPartition, int]
    by_timestamp: bool = False
    #: Whether a timestamp newer than every record means the end of the log. Otherwise it is an error.
    latest_if_unmatched: bool = True

    def for_partition(self, place: TopicPartition) -> int:
        """The offset or the timestamp for a partition."""
        if isinstance(self.at, int):
            return self.at
        if place not in self.at:
            raise OptionError(
                f"{self.option} says nothing of {place}: name every partition that is read, "
                f"or use -2 for its beginning and -1 for its end"
            )
        return self.at[place]


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What to read, from where, and how much at a time."""

    client_settings: ClientSettings
    topics: tuple[str, ...] = ()
    pattern: re.Pattern[str] | None = None
    assigned: tuple[TopicPartition, ...] | None = None
    start: Bound = Bound("startingOffsets", LATEST)
    end: Bound = Bound("endingOffsets", LATEST)
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 15 * 60_000
    include_headers: bool = False
    isolation_level: int = 1
    poll_timeout_ms: int = 120_000

    @classmethod
    def parse(cls, options: Mapping[str, str], *, streaming: bool | None = True) -> SourceOptions:
        """Parse the options of a user, or raise `OptionError` with the option's name.

        `streaming` is None if it is not known yet: then options of batch and of streaming queries are accepted.

        >>> SourceOptions.parse({"kafka.bootstrap.servers": "localhost:9092", "subscribe": "a, b"}).topics
        ('a', 'b')
        """
        given = {name.lower(): value for name, value in options.items()}
        known = {name.lower() for name in KNOWN}
        for name, why in REFUSED.items():
            if name.lower() in given:
                raise OptionError(f"{name}: {why}")
        for name in given:
            if name not in known and not name.startswith("kafka.") and name != "path":
                raise OptionError(f"unknown option '{name}' of format('semel'){_nearest(name)}")
        ways = [name for name in ("subscribe", "subscribepattern", "assign") if name in given]
        if len(ways) != 1:
            raise OptionError("give exactly one of subscribe, subscribePattern and assign")
        least, most = _count(given, "minOffsetsPerTrigger"), _count(given, "maxOffsetsPerTrigger")
        if least and most and least > most:
            raise OptionError(f"minOffsetsPerTrigger={least} is more than maxOffsetsPerTrigger={most}")
        settings, isolation = _client_settings(given)
        return cls(
            client_settings=settings,
            topics=_names(given["subscribe"]) if "subscribe" in given else (),
            pattern=_pattern(given["subscribepattern"]) if "subscribepattern" in given else None,
            assigned=_partitions_in(given["assign"]) if "assign" in given else None,
            start=_start(given, streaming),
            end=_end(given, streaming),
            fail_on_data_loss=_truth(given.get("failondataloss", "true"), "failOnDataLoss"),
            min_partitions=_count(given, "minPartitions"),
            max_records_per_partition=_count(given, "maxRecordsPerPartition"),
            max_offsets_per_trigger=most,
            min_offsets_per_trigger=least,
            max_trigger_delay_ms=_duration_ms(given.get("maxtriggerdelay", "15m"), "maxTriggerDelay"),
            include_headers=_truth(given.get("includeheaders", "false"), "includeHeaders"),
            isolation_level=int(isolation == "read_committed"),
            poll_timeout_ms=_count(given, "kafkaConsumer.pollTimeoutMs") or 120_000,
        )

    def reads(self, place: TopicPartition) -> bool:
        """Whether this partition is among what is to be read."""
        if self.pattern is not None:
            return self.pattern.fullmatch(place.topic) is not None
        return place in self.assigned if self.assigned is not None else place.topic in self.topics

    def are_of_another(self, known: Iterable[TopicPartition]) -> bool:
        """Whether offsets of these partitions are those of another source, and this one may not leave them."""
        places = list(known)
        return bool(places) and self.fail_on_data_loss and not any(map(self.reads, places))

    def nothing_of(self, known: Iterable[TopicPartition], who: str) -> str:
        """The message for offsets of partitions that are not read."""
        if self.pattern is not None:
            reads = f"subscribePattern={self.pattern.pattern}"
        elif self.assigned is not None:
            reads = ", ".join(map(str, self.assigned))
        else:
            reads = ", ".join(self.topics)
        places = sorted(known)
        read = places if self.assigned is not None else sorted({place.topic for place in places})
        return (
            f"{who} has read {', '.join(map(str, read))}, and now none of that is read, but {reads}: read what the "
            "checkpoint was made with, or set failOnDataLoss=false to leave it, and to read the rest from its beginning"
        )


def _nearest(name: str) -> str:
    """What may have been meant by an unknown option."""
    if name in CONSUMER or name in CONSUMER.aliases:
        return f"; did you mean 'kafka.{name}'?"
    import difflib  # rarely needed, and slow to import

    near = difflib.get_close_matches(name, [known.lower() for known in KNOWN], n=1)
    meant = next((known for known in KNOWN if near and known.lower() == near[0]), None)
    return f"; did you mean '{meant}'?" if meant else f"; known are {', '.join(KNOWN)}, kafka.*"


def _client_settings(given: Mapping[str, str]) -> tuple[ClientSettings, str]:
    """The kafka.* options, checked against the client's settings, and the isolation level among them.

    Spark's source needs a consumer group for each query. This one needs none: groupIdPrefix becomes the client id.
    """
    kafka = {name[6:]: value for name, value in given.items() if name.startswith("kafka.")}
    try:
        settings, values = source_settings(kafka, given.get("groupidprefix", "semel-source"))
    except ConfigError as error:
        raise OptionError(kafka_mistake(error)) from None
    return settings, values["isolation.level"]


def kafka_mistake(error: ConfigError) -> str:
    """What is wrong with a kafka.* option. An error that begins with the setting's name begins with the option's."""
    text = str(error)
    return f"kafka.{text}" if re.match(r"[a-z]+\.[a-z.]+\b", text) else f"kafka.*: {text}"


def _start(given: Mapping[str, str], streaming: bool | None) -> Bound:
    strategy = given.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise OptionError(f"startingOffsetsByTimestampStrategy={strategy}: must be error or latest")
    found = _bound(given, "starting", "latest" if streaming else "earliest", strategy == "latest")
    if streaming is False and _holds(found, LATEST):
        raise OptionError("startingOffsets: a batch query cannot start at the end (latest, or -1 for a partition)")
    return found


def _end(given: Mapping[str, str], streaming: bool | None) -> Bound:
    if streaming:
        for option in _ENDS:
            if option.lower() in given:
                raise OptionError(f"{option} has no meaning in a streaming query, which does not end")
    found = _bound(given, "ending", "latest", True)
    if _holds(found, EARLIEST):
        raise OptionError("endingOffsets: a query cannot end at the beginning (earliest, or -2 for a partition)")
    return found


def _bound(given: Mapping[str, str], which: str, default: str, latest_if_unmatched: bool) -> Bound:
    """The first that is given: one timestamp, timestamps per partition, offsets. Spark has the same order."""
    if (text := given.get(f"{which}timestamp")) is not None:
        if not text.isdecimal() or int(text) > _INT64_MAX:
            raise OptionError(f"{which}Timestamp={text}: must be milliseconds since 1970")
        return Bound(f"{which}Timestamp", int(text), True, latest_if_unmatched)
    option = f"{which}OffsetsByTimestamp"
    if (text := given.get(option.lower())) is not None:
        return Bound(option, _numbers(text, option, "milliseconds since 1970", least=0), True, latest_if_unmatched)
    option = f"{which}Offsets"
    text = given.get(option.lower(), default)
    words = {"earliest": EARLIEST, "latest": LATEST}
    if text.lower() in words:
        return Bound(option, words[text.lower()])
    return Bound(option, _numbers(text, option, "earliest, latest", least=EARLIEST))


def _holds(bound: Bound, special: int) -> bool:
    return not bound.by_timestamp and (
        bound.at == special if isinstance(bound.at, int) else special in bound.at.values()
    )


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise OptionError("subscribe names no topic")
    return names


def _pattern(text: str) -> re.Pattern[str]:
    if not text:
        raise OptionError("subscribePattern is empty: it would match no topic")
    try:
        return re.compile(text)
    except re.error as error:
        raise OptionError(f"subscribePattern={text}: {error}") from None


def _partitions_in(text: str) -> tuple[TopicPartition, ...]:
    try:
        found = tuple(TopicPartition(topic, number) for topic, all_of in json.loads(text).items() for number in all_of)
        if not all(type(place.partition) is int for place in found):
            raise ValueError
    except (ValueError, AttributeError, TypeError):
        raise OptionError(f'assign={text}: must be JSON such as {{"payments":[0,1]}}') from None
    if not found:
        raise OptionError(f"assign={text}: names no partition")
    return found


def _numbers(text: str, option: str, or_else: str, *, least: int) -> dict[TopicPartition, int]:
    try:
        found = {
            TopicPartition(topic, int(partition)): number
            for topic, partitions in json.loads(text).items()
            for partition, number in partitions.items()
        }
        if not found or not all(type(number) is int and least <= number <= _INT64_MAX for number in found.values()):
            raise ValueError
        return found
    except (ValueError, AttributeError, TypeError):
        raise OptionError(
            f'{option}={text}: must be {or_else}, or JSON such as {{"payments":{{"0":42,"1":42}}}}'
        ) from None


def _truth(text: str, option: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise OptionError(f"{option}={text}: must be true or false")
    return text.lower() == "true"


def _count(given: Mapping[str, str], option: str) -> int | None:
    text = given.get(option.lower())
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise OptionError(f"{option}={text}: must be a whole number above 0")
    return int(text)


def _duration_ms(text: str, option: str) -> int:
    found = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
    if found is None or found[2] not in _UNITS_MS:
        raise OptionError(f"{option}={text}: must be a time such as 500ms, 30s or 15m")
    return int(found[1]) * _UNITS_MS[found[2]]
