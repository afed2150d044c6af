"""Reads a pipeline.toml: what it says, or all of its mistakes at once.

Guarantees: an unknown key is refused with the nearest known one, so a setting is never ignored. Each mistake names its
key, and the line where it stands. `${NAME}` is taken from the environment. Values that may not be shown are known to
`hide`, and everything that is printed about a pipeline goes through it.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from semel.client.cluster.broker_connections import read_address
from semel.config import CONSUMER, PRODUCER, ConfigError, Table
from semel.config.codecs import CODECS

from ..kafka_options import OF_OTHER_CLIENTS, sink_settings
from ..source_options import KNOWN as SOURCE_OPTIONS
from ..source_options import OptionError, SourceOptions
from .positions import line_of_error, lines_of_keys, nearest_line
from .tables import HIDDEN, DeadLettersTable, FileMistakes, Mistake, OutputTable, PipelineFile, SourceTable

_VARIABLE = re.compile(r"\$\$\{|\$\{(?P<name>[A-Za-z_]\w*)(?::-(?P<otherwise>[^}]*))?\}")
_ODD_VARIABLE = re.compile(r"\$\{[^}]*\}?")
_SECRET = re.compile(r"(?i)password|secret|jaas|token|credential|access[._]?key|keystore\.key|keystore\.certificate")
_NAME = re.compile(r"[A-Za-z_]\w*")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")

_TOP = (
    "transactional_id", "checkpoint", "output_mode", "transaction_timeout_ms", "attempts", "writers", "compression",
    "marker_topic", "query_name", "metrics_port", "kafka", "source", "transform", "output", "dead_letters", "trigger",
    "spark",
)  # fmt: skip
_TABLES = ("kafka", "source", "transform", "output", "dead_letters", "trigger", "spark")
#: Options of the source that a query without an end cannot have.
_SOURCE = tuple(option for option in SOURCE_OPTIONS if not option.startswith("ending"))
_TRANSFORM = ("sql", "sql_file", "function")
_OUTPUT = ("topic", "sql", "function")
_DEAD_LETTERS = ("topic", "when", "function")
_TRIGGER = ("available_now", "processing_time")
#: For looking at the options of a source where the settings of its clients are wrong.
_ANY_BROKER = {"kafka.bootstrap.servers": "127.0.0.1:9092"}
#: What the file says elsewhere.
_ELSEWHERE = {
    "transactional.id": "transactional_id at the top of the file",
    "transaction.timeout.ms": "transaction_timeout_ms at the top of the file",
    "compression.type": "compression at the top of the file",
}


def read_pipeline(path: str | os.PathLike[str], environment: Mapping[str, str] | None = None) -> PipelineFile:
    """Read a file, or raise `FileMistakes` with all that is wrong in it."""
    path = Path(path)
    environment = os.environ if environment is None else environment
    try:
        text = path.read_bytes().decode("utf-8-sig")  # some editors write a mark at the beginning
        given = tomllib.loads(text)
    except OSError as error:
        raise FileMistakes(str(path), [Mistake("", f"cannot be read: {error.strerror or error}")]) from None
    except UnicodeDecodeError:
        raise FileMistakes(str(path), [Mistake("", "is not text in UTF-8")]) from None
    except tomllib.TOMLDecodeError as error:
        why = re.sub(r" \(at line .*\)", "", str(error))
        raise FileMistakes(str(path), [Mistake("", f"is not TOML: {why}", line_of_error(error))]) from None
    reader = _Reader(path, lines_of_keys(text), environment)
    found = reader.read(given)
    if found is None or reader.mistakes:
        hidden = sorted(reader.secrets, key=len, reverse=True)
        mistakes = []
        for mistake in sorted(reader.mistakes, key=lambda mistake: mistake.line or 0):
            why = mistake.why
            for secret in hidden:
                why = why.replace(secret, HIDDEN)
            mistakes.append(Mistake(mistake.key, why, mistake.line))
        raise FileMistakes(str(path), mistakes)
    return found


class _Reader:
    """Goes through the tables of a file and collects what is wrong."""

    def __init__(self, path: Path, lines: dict[tuple[str, ...], int], environment: Mapping[str, str]) -> None:
        self._path, self._lines, self._environment = path, lines, environment
        self.mistakes: list[Mistake] = []
        self.secrets: set[str] = set()

    def read(self, given: dict[str, Any]) -> PipelineFile | None:
        self._refuse_unknown("", given, _TOP)
        given = {name: value for name, value in given.items() if name in _TOP}
        for name in _TABLES:
            if name in given and not isinstance(given[name], dict):
                self._wrong(name, f"must be a table: [{name}]")
                given[name] = {}
        kafka = self._kafka("kafka", given.get("kafka", {}))
        if "bootstrap.servers" not in kafka:
            self._wrong("kafka.bootstrap.servers", 'is missing: name at least one broker, "host:port"')
        sources = tuple(self._sources(given.get("source", {}), kafka))
        sql, function = self._transform("transform", given.get("transform", {}))
        outputs = tuple(self._outputs(given.get("output", {})))
        dead_letters = self._dead_letters(given["dead_letters"], outputs) if "dead_letters" in given else None
        if dead_letters is not None and len(sources) > 1:
            self._wrong("dead_letters", "are rows of one source, and the file has several: give each a pipeline")
        if sql is None and function is None and len(sources) > 1 and not self._has("transform"):
            self._wrong("transform", "is missing: several sources need a sql or a function that makes them one")
        transactional_id = self._text(given, "transactional_id", required="it is the pipeline's name on the broker")
        checkpoint = self._text(given, "checkpoint", required="without one a restart would begin anew")
        arguments = self._arguments(given)
        trigger = self._trigger(given.get("trigger", {}))
        spark = self._spark(given.get("spark", {}))
        port = self._whole("", given, "metrics_port", 0, 65535)
        if self.mistakes or transactional_id is None or checkpoint is None:
            return None
        sink = {name: value for name, value in kafka.items() if _knows(PRODUCER, name)}
        return PipelineFile(
            self._path, transactional_id, self._location(checkpoint), sources, outputs, sink, spark, sql, function,
            dead_letters, trigger, arguments, port, frozenset(self.secrets), self._lines,
        )  # fmt: skip

    # --- the tables -----------------------------------------------------------------------------------------------

    def _sources(self, given: dict[str, Any], kafka: dict[str, str]) -> Iterator[SourceTable]:
        if not given:
            self._wrong("source", 'is missing: [source.payments] with subscribe = "payments", for example')
        for name, table in given.items():
            key = f"source.{name}"
            if not isinstance(table, dict):
                self._wrong(key, 'must be in a table with the name of a source: [source.payments], for example')
                continue
            if not _NAME.fullmatch(name):
                self._wrong(key, "the name is a view in SQL: letters, digits and '_'")
            self._refuse_unknown(key, table, (*_SOURCE, "kafka"))
            own = (
                self._kafka(f"{key}.kafka", table.get("kafka", {})) if isinstance(table.get("kafka", {}), dict) else {}
            )
            for option in own:
                if not _knows(CONSUMER, option):
                    self._wrong(f"{key}.kafka.{option}", "is a setting of the output's clients: give it in [kafka]")
            options = {
                option: self._written(f"{key}.{option}", value) for option, value in table.items() if option in _SOURCE
            }
            settings = {
                f"kafka.{option}": value for option, value in {**kafka, **own}.items() if _knows(CONSUMER, option)
            }
            whole = settings if settings and not self._has("kafka") and not self._has(key) else _ANY_BROKER
            self._try_options(key, {**whole, **options})
            yield SourceTable(name, {**settings, **options})

    def _try_options(self, key: str, options: dict[str, str]) -> None:
        """Parse the options as the source does. It names one mistake at a time: take that one out, and go on."""
        options = dict(options)
        while True:
            try:
                SourceOptions.parse(options)
                return
            except OptionError as error:
                named = next((name for name in options if str(error).startswith((f"{name}=", f"{name}:"))), None)
                self._wrong(f"{key}.{named}" if named else key, str(error))
                if named is None:
                    return
                del options[named]

    def _transform(self, key: str, given: dict[str, Any]) -> tuple[str | None, str | None]:
        self._refuse_unknown(key, given, _TRANSFORM)
        ways = [name for name in _TRANSFORM if name in given]
        if len(ways) > 1:
            self._wrong(key, f"has {' and '.join(ways)}: give one of them")
        elif not ways and key in self._lines_flat() and key == "transform":
            self._wrong(key, "is empty: give sql, sql_file or function")
        sql = self._text(given, "sql", key, substitute=False)
        name = self._text(given, "sql_file", key)
        if name is not None:
            try:
                sql = (self._path.parent / name).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                self._wrong(f"{key}.sql_file", f"{name} cannot be read: {getattr(error, 'strerror', None) or error}")
        return sql, self._function(key, given)

    def _outputs(self, given: dict[str, Any]) -> Iterator[OutputTable]:
        if not given:
            self._wrong("output", 'is missing: [output.ledger] with topic = "ledger", for example')
        topics: dict[str, str] = {}
        for name, table in given.items():
            key = f"output.{name}"
            if not isinstance(table, dict):
                self._wrong(key, "must be in a table with the name of an output: [output.ledger], for example")
                continue
            self._refuse_unknown(key, table, _OUTPUT)
            if "sql" in table and "function" in table:
                self._wrong(key, "has sql and function: give one of them")
            topic = self._text(table, "topic", key) or name
            self._check_topic(key, topic)
            if topic in topics.values():
                self._wrong(f"{key}.topic", f"'{topic}' is the topic of another output, too")
            yield OutputTable(name, topic, self._text(table, "sql", key, substitute=False), self._function(key, table))
            topics[name] = topic

    def _dead_letters(self, given: dict[str, Any], outputs: tuple[OutputTable, ...]) -> DeadLettersTable | None:
        key = "dead_letters"
        self._refuse_unknown(key, given, _DEAD_LETTERS)
        if ("when" in given) == ("function" in given):
            self._wrong(key, "give when (SQL: true, or the error as text), or function, and not both")
        topic = self._text(given, "topic", key, required="it is where the bad rows go")
        when, function = self._text(given, "when", key, substitute=False), self._function(key, given)
        if topic is None:
            return None
        self._check_topic(key, topic)
        if topic in (output.topic for output in outputs):
            self._wrong(f"{key}.topic", f"'{topic}' is the topic of an output, too: give dead letters one of their own")
        return DeadLettersTable(topic, when, function)

    def _trigger(self, given: dict[str, Any]) -> dict[str, Any] | None:
        self._refuse_unknown("trigger", given, _TRIGGER)
        now = given.get("available_now", False)
        if not isinstance(now, bool):
            self._wrong("trigger.available_now", "must be true or false")
        every = self._text(given, "processing_time", "trigger")
        if now and every is not None:
            self._wrong("trigger", "has available_now and processing_time: give one of them")
        if every is not None:
            if not re.fullmatch(r"(?i)\d+\s*(ms|milliseconds?|s|seconds?|m|minutes?|hours?|days?)", every.strip()):
                self._wrong("trigger.processing_time", f"'{every}' is no time: for example \"10 seconds\"")
            return {"processingTime": every}
        return {"availableNow": True} if now is True else None

    def _arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        modes = ("append", "update", "complete")
        found = {
            "output_mode": self._text(given, "output_mode", one_of=modes),
            "compression": self._text(given, "compression", one_of=CODECS),
            "query_name": self._text(given, "query_name"),
            "marker_topic": self._text(given, "marker_topic"),
            "transaction_timeout_ms": self._whole("", given, "transaction_timeout_ms", 1, 2**31 - 1),
            "attempts": self._whole("", given, "attempts", 1, 1000),
            "writers": self._whole("", given, "writers", 1, 100_000),
        }
        return {name: value for name, value in found.items() if value is not None}

    def _kafka(self, key: str, given: dict[str, Any]) -> dict[str, str]:
        found: dict[str, str] = {}
        names = sorted({*CONSUMER.rows, *PRODUCER.rows, *CONSUMER.aliases})
        for name, value in self._settings(key, given):
            if name in _ELSEWHERE:
                self._wrong(f"{key}.{name}", f"give {_ELSEWHERE[name]}")
                continue
            tables = [table for table in (CONSUMER, PRODUCER) if _knows(table, name)]
            if not tables:
                why = OF_OTHER_CLIENTS.get(name, f"is no setting of a Kafka client{_nearest(name, names)}")
                self._wrong(f"{key}.{name}", why)
                continue
            try:
                for table in tables:
                    table.parse({name: value})
                if name == "bootstrap.servers":
                    for address in CONSUMER[name].read(value):
                        read_address(address)
                elif PRODUCER in tables:
                    sink_settings("127.0.0.1:9092", {name: value}, "semel", None)
            except ConfigError as error:
                self._wrong(f"{key}.{name}", str(error))
            found[name] = value
        return found

    def _spark(self, given: dict[str, Any]) -> dict[str, str]:
        """Settings by Spark's names: in the table [spark], `sql.shuffle.partitions` is spark.sql.shuffle.partitions."""
        found = {}
        for name, value in self._settings("spark", given):
            found[name if name.startswith("spark.") else f"spark.{name}"] = value
        if found.get("spark.speculation", "").lower() == "true":
            self._wrong(
                "spark.speculation", "starts tasks twice, and a second writer is always refused: set it to false"
            )
        return found

    # --- values ---------------------------------------------------------------------------------------------------

    def _settings(self, key: str, given: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """Names with dots, quoted or not: `a.b = 1` is a table in TOML."""
        for name, value in given.items():
            if isinstance(value, dict):
                for inner, one in self._settings(f"{key}.{name}", value):
                    yield f"{name}.{inner}", one
            else:
                yield name, self._written(f"{key}.{name}", value)

    def _written(self, key: str, value: Any) -> str:
        """A value as Kafka and Spark write it."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return ",".join(self._substituted(key, item) for item in value)
        if isinstance(value, (int, float)):
            return str(value)
        if isinstance(value, str):
            return self._substituted(key, value)
        self._wrong(key, "must be text, a number, true or false")
        return ""

    def _substituted(self, key: str, text: str) -> str:
        """The text with `${NAME}` from the environment; `${NAME:-text}` has a default, `$${` is a plain `${`."""
        is_secret = _SECRET.search(key) is not None

        def value(found: re.Match[str]) -> str:
            name = found["name"]
            if name is None:
                return "${"
            known = self._environment.get(name, found["otherwise"])
            if known is None:
                self._wrong(key, f"the environment has no variable {name}: set it, or write ${{{name}:-default}}")
                return ""
            if known and (is_secret or _SECRET.search(name)):
                self.secrets.add(known)
            return known

        is_for_java = key.startswith("spark.")  # where ${user.home} may be meant
        odd = None if is_secret or is_for_java else _ODD_VARIABLE.search(_VARIABLE.sub("", text))
        if odd is not None:
            why = f"'{odd[0]}' is no variable: letters, digits and '_', as in ${{NAME}}; $${{ is a plain ${{"
            self._wrong(key, why)
        whole = _VARIABLE.sub(value, text)
        if is_secret and whole:
            self.secrets.add(whole)
        return whole

    def _text(
        self, table: dict[str, Any], name: str, within: str = "", *, required: str = "", substitute: bool = True,
        one_of: tuple[str, ...] = (),
    ) -> str | None:  # fmt: skip
        key = f"{within}.{name}" if within else name
        value = table.get(name)
        if value is None:
            if required:
                self._wrong(key, f"is missing: {required}")
            return None
        if not isinstance(value, str) or not value.strip():
            self._wrong(key, "must be text that is not empty")
            return None
        text = self._substituted(key, value) if substitute else value
        if one_of and text not in one_of:
            self._wrong(key, f"'{text}' must be one of {', '.join(one_of)}")
        return text

    def _whole(self, within: str, table: dict[str, Any], name: str, least: int, most: int) -> int | None:
        value = table.get(name)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            self._wrong(f"{within}.{name}" if within else name, f"must be a whole number from {least} to {most}")
            return None
        return value

    def _check_topic(self, key: str, topic: str) -> None:
        if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            self._wrong(f"{key}.topic", f"'{topic}' is no name of a topic: letters, digits, '.', '_' and '-'")

    def _function(self, key: str, given: dict[str, Any]) -> str | None:
        name = self._text(given, "function", key)
        if name is not None and (".py:" in name or not _FUNCTION.fullmatch(name)):
            self._wrong(f"{key}.function", f"'{name}' must be module:function, such as transform:ledger")
        return name

    def _location(self, checkpoint: str) -> str:
        """A path without a scheme is seen from the file, so that it does not matter where the command is started."""
        if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", checkpoint):
            return checkpoint
        return str((self._path.parent / checkpoint).absolute())

    def _refuse_unknown(self, key: str, given: dict[str, Any], known: tuple[str, ...]) -> None:
        for name in given:
            if name not in known:
                whole = f"{key}.{name}" if key else name
                self._wrong(whole, f"is no key of {f'[{key}]' if key else 'the file'}{_nearest(name, known)}")

    def _has(self, key: str) -> bool:
        return any(mistake.key.startswith(key) for mistake in self.mistakes)

    def _lines_flat(self) -> set[str]:
        return {".".join(path) for path in self._lines}

    def _wrong(self, key: str, why: str) -> None:
        self.mistakes.append(Mistake(key, why, nearest_line(self._lines, tuple(key.split(".")))))


def _knows(table: Table, name: str) -> bool:
    return name in table or name in table.aliases or name in table.refused or table.passes_by(name)


def _nearest(name: str, known: Any) -> str:
    candidates = list(known)
    lowered: Callable[[str], str] = str.lower
    near = difflib.get_close_matches(name.lower(), [lowered(one) for one in candidates], n=1, cutoff=0.6)
    if near:
        return f"; did you mean {next(one for one in candidates if one.lower() == near[0])}?"
    return f"; known are {', '.join(candidates)}" if len(candidates) <= 20 else ""
