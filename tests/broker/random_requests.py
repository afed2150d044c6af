"""Well-formed requests with random values, from a seed: for a broker in the simulated world, so that a seed repeats.

What is random is legal bytes but not legal sense: names, ids and epochs that are there beside extreme numbers, elements
twice, fields left out. The fuzz targets end at the decoder; this begins behind it.

`python -m tests.broker.random_requests 1 100` plays the seeds 1 to 100 and prints what is wrong.
"""

from __future__ import annotations

import asyncio
import logging
import random
import struct
import sys
import tempfile
import uuid
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from crc32c import crc32c

from semel.errors import ErrorCode
from semel.log.inspection import inspect
from semel.simulation.disk import Directory
from semel.simulation.world import DATA, PORT, BrokerNode, World
from semel.wire.apis import APIS, ApiKey
from semel.wire.frames import parse_response, request_frame
from semel.wire.messages.admin import CreateTopicsRequest
from semel.wire.messages.groups import ListGroupsRequest
from semel.wire.messages.metadata import MetadataRequest
from semel.wire.messages.transactions import InitProducerIdRequest, ListTransactionsRequest
from semel.wire.schema import Field, fields_of
from tests.broker.raw import batch

TOPICS, GROUPS, IDS = ("t1", "t2", "t3"), ("g1", "g2", "g3"), ("x1", "x2", "x3")
_NAMES = (("transactional_id", IDS), ("group", GROUPS), ("topic", TOPICS), ("name", TOPICS), ("key", GROUPS))
_TEXTS = (
    *TOPICS, *GROUPS, *IDS, "", "a", "m1", "__consumer_offsets", "__transaction_state", "__cluster_metadata", "0", "1",
    "User:a", "retention.ms", "cleanup.policy", "compact", "60000", "consumer", "range", "uniform", "client-id", "user",
    "é", "\0", "a\nb", "/", "..", "x" * 300, "x" * 32_700, "*", "[a-z]+", "(", "SCRAM-SHA-256", "PLAIN", "-1", "9" * 40,
    "nan", "Ongoing", "Stable", "classic", "metadata.version", "127.0.0.1", "topic", "INFO",
)  # fmt: skip
_NUMBERS = (
    -1, 0, 1, 2, 3, 5, 16, 100, -2, -3, -4, -5, 32_767, -32_768, 2**31 - 1, -(2**31), 2**31 - 2, 2**53, 2**63 - 1,
    -(2**63),
)  # fmt: skip
_RANGES = {
    "Int8": (-128, 127), "Int16": (-(2**15), 2**15 - 1), "Int32": (-(2**31), 2**31 - 1), "Int64": (-(2**63), 2**63 - 1),
    "Uint16": (0, 2**16 - 1), "Uint32": (0, 2**32 - 1),
}  # fmt: skip
_FLOATS = (0.0, -1.0, 0.5, 1e9, 1e308, float("nan"), float("inf"), float("-inf"))
_BLOBS = (
    b"", b"a", b"\0" * 20, b"\x7f" * 200, b"\0\1\0\0\0\1\0\2t1\0\0\0\0",
    b"\0\3\0\0\0\2\0\2t1\0\2t2\xff\xff\xff\xff\0\0\0\0\xff\xff\xff\xff\0\0",
)  # fmt: skip
#: Where a batch has a number, and of which kind.
_IN_A_BATCH = (
    (0, ">q"), (8, ">i"), (12, ">i"), (21, ">h"), (23, ">i"), (27, ">q"), (35, ">q"), (43, ">q"), (51, ">h"),
    (53, ">i"), (57, ">i"),
)  # fmt: skip
_PRODUCER_ID, _CRC, _ATTRIBUTES, _TRANSACTIONAL = 43, 17, 21, 16
#: What later requests say again, if an answer said it.
_LEARNED = frozenset((
    "member_id", "producer_id", "producer_epoch", "member_epoch", "generation_id", "session_id", "topic_id", "token_id",
    "hmac",
))  # fmt: skip
#: What only makes sense together with the transactional id or the group that it was told.
_TOGETHER = {
    "transactional_id": ("producer_id", "producer_epoch"),
    "group_id": ("member_id", "generation_id", "member_epoch"),
}
#: How long an answer is waited for, in virtual seconds. Some may take for ever: a fetch that waits, a join.
_PATIENCE_S = 5.0
#: How long the ids and groups may take to be usable, in virtual seconds.
_USABLE_AFTER_S = 120.0
#: Reasons for closing a connection that are none.
_NO_REASON = ("no place for an error", "serving failed", "broken invariant")
#: What leaves the most behind.
_TOLD_OFTEN = frozenset((
    ApiKey.PRODUCE, ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN,
    ApiKey.TXN_OFFSET_COMMIT, ApiKey.END_TXN, ApiKey.WRITE_TXN_MARKERS, ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP,
    ApiKey.CONSUMER_GROUP_HEARTBEAT, ApiKey.OFFSET_COMMIT, ApiKey.FETCH,
))  # fmt: skip
_TOPICS_AGAIN_AFTER = 200
_LOGIN = (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
VERSIONS = [
    (key, version)
    for key, api in APIS.items()
    if key not in _LOGIN
    for version in range(max(api.min_version, 3 if key == ApiKey.PRODUCE else 0), api.max_version + 1)
]


class Maker:
    """Makes requests up."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        #: How often a field is left as it is unless somebody says otherwise.
        self._tame = 0.0
        self._known: dict[str, list[Any]] = defaultdict(list)
        #: What a transactional id or a group was told last.
        self._of: dict[tuple[str, str], dict[str, Any]] = {}
        self._batches = [
            batch(b"a", b"b", timestamp_ms=1_000_000_000_000), batch(*[b"v" * 10] * 50, timestamp_ms=1_000_000_000_000)
        ]  # fmt: skip

    def request(self, key: ApiKey, version: int) -> Any:
        # Half of them are wild in a few places only: else hardly any would come through the first checks.
        self._tame = 0.8 if self._chance.random() < 0.5 else 0.0
        made = self._message(APIS[key].request, version, 0)
        if key == ApiKey.CREATE_TOPICS:
            for row in made.topics:
                row.num_partitions = min(row.num_partitions, 4)  # more would only be slow
        if key in (ApiKey.ALTER_CONFIGS, ApiKey.INCREMENTAL_ALTER_CONFIGS):
            for row in made.resources:
                row.resource_type = 2 if row.resource_type == 4 else row.resource_type  # of topics, not of the broker
        if key == ApiKey.ALTER_CLIENT_QUOTAS:
            made.validate_only = True  # a quota of one byte would end the conversation
        return made

    def learn(self, asked: Any, answer: Any) -> None:
        """Keep what an answer says for later requests."""
        for name, together in _TOGETHER.items():
            found = {field: getattr(answer, field, -1) for field in together}
            found = {field: value for field, value in found.items() if value not in (-1, "", None)}
            if found and (whose := getattr(asked, name, None)):
                self._of[name, whose] = {**self._of.get((name, whose), {}), **found}
        self._keep_ids(answer)

    def _keep_ids(self, message: Any) -> None:
        for field in fields_of(type(message)):
            value = getattr(message, field.name)
            if field.struct is not None:
                for inner in (value or []) if field.array else [] if value is None else [value]:
                    self._keep_ids(inner)
            elif field.name in _LEARNED and not field.array and value not in (-1, "", None):
                self._known[field.name].append(value)
                del self._known[field.name][:-6]

    def _message(self, cls: type[Any], version: int, depth: int) -> Any:
        chance, given = self._chance, {}
        fields = [field for field in fields_of(cls) if field.present_in(version)]
        present = {field.name for field in fields}
        for field in fields:
            if chance.random() < (0.15 if field.spec.tag is None else 0.6):
                if field.nullable_in(version) and chance.random() < 0.5:
                    given[field.name] = None
            elif field.name == "transactional_id" and field.nullable_in(version) and chance.random() < 0.5:
                given[field.name] = None
            elif field.struct is None and not field.array and not _is_a_name(field) and chance.random() < self._tame:
                continue
            elif field.array:
                count = chance.choice((0, 1, 1, 1, 2, 3) if depth < 2 else (0, 1, 1, 2))
                values = [self._value(field, version, depth) for _ in range(count)]
                given[field.name] = values + values[:1] if chance.random() < 0.1 else values
            else:
                given[field.name] = self._value(field, version, depth)
        for name, together in _TOGETHER.items():
            for old in ("", "v3_and_below_"):
                if old + name in given and chance.random() < 0.7:
                    known = self._of.get((name, given[old + name]), {})
                    given |= {old + one: known[one] for one in together if old + one in present and one in known}
        return cls(**given)

    def _value(self, field: Field, version: int, depth: int) -> Any:
        chance, name = self._chance, field.name
        if field.struct is not None:
            return self._message(field.struct, version, depth + 1)
        if chance.random() < 0.5 and self._known[name]:
            return chance.choice(self._known[name])
        if field.kind == "String":
            return self._text(name)
        if field.kind == "Bool":
            return chance.random() < 0.5
        if field.kind == "Uuid":
            return chance.choice((uuid.UUID(int=0), uuid.UUID(int=1), uuid.UUID(int=chance.getrandbits(128))))
        if field.kind == "Float64":
            return chance.choice(_FLOATS)
        if field.kind == "Bytes":
            return chance.choice((*_BLOBS, chance.randbytes(30)))
        if field.kind == "Records":
            batches = [self._batch() for _ in range(chance.choice((0, 1, 1, 1, 2)))]
            return b"".join(batches) if chance.random() < 0.9 else bytes(61)
        return self._number(field)

    def _text(self, name: str) -> str:
        chance = self._chance
        for part, usual in _NAMES:
            if part in name and chance.random() < 0.7:
                return chance.choice(usual)
        return chance.choice(_TEXTS)

    def _number(self, field: Field) -> int:
        chance, name = self._chance, field.name
        low, high = _RANGES[field.kind]
        usual: tuple[int, ...] = ()
        if "epoch" in name:
            usual = (-1, 0, 0, 1)
        elif "partition" in name or name in ("index", "generation_id"):
            usual = (0, 0, 1, 2)
        elif name in ("max_wait_ms", "timeout_ms"):
            usual = (0, 10, -1, 100)
        elif name.endswith("_timeout_ms"):
            usual = (6000, 10_000, 0, -1)
        elif name == "acks":
            usual = (-1, -1, 1, 0)
        elif name == "replication_factor":
            usual = (1, -1, 1, 0)
        if usual and chance.random() < 0.7:
            return chance.choice(usual)
        return chance.choice([one for one in _NUMBERS if low <= one <= high] + [chance.randrange(min(40, high))])

    def _batch(self) -> bytes:
        """A batch with other numbers, mostly with the right checksum."""
        chance, data = self._chance, bytearray(self._chance.choice(self._batches))
        for _ in range(chance.choice((0, 0, 1, 2))):
            place, code = chance.choice(_IN_A_BATCH)
            if place >= _PRODUCER_ID and self._known["producer_id"] and chance.random() < 0.7:
                known, sequence = chance.choice(self._known["producer_id"]), chance.choice((0, 0, 2, 4, 1, 2**31 - 1))
                struct.pack_into(">qhi", data, _PRODUCER_ID, known, chance.choice((0, 0, 1, 2)), sequence)
                if chance.random() < 0.5:
                    struct.pack_into(">h", data, _ATTRIBUTES, _TRANSACTIONAL)
                continue
            low, high = _RANGES[{"h": "Int16", "i": "Int32", "q": "Int64"}[code[1]]]
            struct.pack_into(code, data, place, chance.choice([one for one in _NUMBERS if low <= one <= high]))
        if chance.random() < 0.05:
            data[chance.randrange(61, len(data))] ^= 1 << chance.randrange(8)
        if chance.random() < 0.95:
            struct.pack_into(">I", data, _CRC, crc32c(bytes(data[_ATTRIBUTES:])))
        return bytes(data)


def _is_a_name(field: Field) -> bool:
    return field.kind in ("Uuid", "Records") or any(part in field.name for part, _ in _NAMES)


def codes_in(message: Any) -> Counter[int]:
    """How often each error code stands in an answer."""
    found: Counter[int] = Counter()
    for field in fields_of(type(message)):
        value = getattr(message, field.name)
        if field.struct is not None:
            for inner in (value or []) if field.array else [] if value is None else [value]:
                found += codes_in(inner)
        elif field.name == "error_code":
            found[int(value)] += 1
    return found


class _Lines(logging.Handler):
    """Keeps what the broker logs about exceptions and errors."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR or record.exc_info:
            kind = record.exc_info[1] if record.exc_info else ""
            self.found.append(f"logged: {record.getMessage()[:200]} {kind!r}"[:400])


class _Answers(asyncio.BufferedProtocol):
    """One connection, which waits for one answer at a time."""

    def __init__(self) -> None:
        self._buffer, self._data = bytearray(65_536), bytearray()
        self._waiter: asyncio.Future[bytes] | None = None
        self.is_closed = False

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self._data += self._buffer[:nbytes]
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._look()

    async def next(self) -> bytes:
        self._waiter = asyncio.get_running_loop().create_future()
        self._look()
        return await self._waiter

    def _look(self) -> None:
        if self._waiter is None or self._waiter.done():
            return
        size = int.from_bytes(self._data[:4]) if len(self._data) >= 4 else None
        if size is not None and len(self._data) >= 4 + size:
            frame = bytes(self._data[4 : 4 + size])
            del self._data[: 4 + size]
            self._waiter.set_result(frame)
        elif self.is_closed:
            self._waiter.set_exception(ConnectionResetError("closed by the broker"))


class Conversation:
    """Random requests to one broker. What must not happen is in `wrong`."""

    def __init__(self, seed: int, count: int) -> None:
        self.seed, self._count = seed, count
        self._world = World(f"random requests {seed}")
        self._broker = BrokerNode(
            self._world,
            settings={"group.initial.rebalance.delay.ms": 0, "delegation.token.secret.key": "of a test"},
        )
        self._maker = Maker(random.Random(f"requests {seed}"))
        self._connection: tuple[asyncio.Transport, _Answers] | None = None
        self._correlation_id = 0
        self._why_closed = ""
        self.wrong: list[str] = []
        self.answered = 0
        self.codes: Counter[int] = Counter()

    @property
    def trace_hash(self) -> str:
        """All that happened in the world, as one word."""
        return self._world.trace.hash

    def hold(self, directory: Path) -> None:
        """Hold it, and then read the files in this directory."""
        lines = _Lines()
        logger = logging.getLogger("semel")
        before = logger.propagate
        logger.addHandler(lines)
        try:
            logger.propagate = False
            self._world.run(self._story())
        finally:
            logger.removeHandler(lines)
            logger.propagate = before
        self.wrong += lines.found + self._world.violations
        self._read_files(directory)

    async def _story(self) -> None:
        logging.getLogger("semel").setLevel(logging.WARNING)
        await self._begin()
        client = self._world.process("client")
        await self._world.on(client, self._talk())
        for end in (None, self._broker.stop, self._broker.kill):
            if end is not None:
                waits = end()
                if waits is not None:
                    await waits
                await self._begin()
                self._connection = None
            await self._world.on(client, self._use_what_is_there("at once" if end is None else end.__name__))
        await self._broker.stop()

    async def _begin(self) -> None:
        await self._broker.start()
        server = self._broker.server
        assert server is not None
        refused = server.connections.refusals.refused

        def note(connection: Any, why: str) -> None:
            self._why_closed = why
            refused(connection, why)

        server.connections.refusals.refused = note  # type: ignore[method-assign]

    async def _talk(self) -> None:
        chance = random.Random(f"order {self.seed}")
        # Each version of each API, and then what chance says.
        weights = [4 if key in _TOLD_OFTEN else 1 for key, _ in VERSIONS]
        keys = [*VERSIONS, *chance.choices(VERSIONS, weights, k=self._count - len(VERSIONS))]
        chance.shuffle(keys)
        for number, (key, version) in enumerate(keys):
            if number % _TOPICS_AGAIN_AFTER == 0:
                await self._create_topics()
            await self._one(key, version)

    async def _create_topics(self) -> None:
        """Some requests delete them."""
        row = CreateTopicsRequest.CreatableTopic
        rows = [row(name=name, num_partitions=3, replication_factor=1) for name in TOPICS]
        asked = CreateTopicsRequest(topics=rows, timeout_ms=1000)
        self._hang_up()
        self._maker.learn(asked, await self._ask(ApiKey.CREATE_TOPICS, 7, asked))

    async def _one(self, key: ApiKey, version: int) -> None:
        asked = self._maker.request(key, version)
        said = f"{APIS[key].name} {version}: {repr(asked)[:600]}"
        self._why_closed = ""
        try:
            answer = await self._ask(key, version, asked)
        except TimeoutError:
            self._hang_up()
            return
        except ConnectionError:
            self._connection = None
            if not self._why_closed or any(one in self._why_closed for one in _NO_REASON):
                self.wrong.append(f"closed ({self._why_closed}): {said}")
            return
        if answer is None:
            return
        self.answered += 1
        codes = codes_in(answer)
        self.codes += codes
        if codes[ErrorCode.UNKNOWN_SERVER_ERROR] or codes[ErrorCode.KAFKA_STORAGE_ERROR]:
            self.wrong.append(f"an internal error: {said}: {repr(answer)[:300]}")
        self._maker.learn(asked, answer)

    async def _ask(self, key: ApiKey, version: int, asked: Any, patience_s: float = _PATIENCE_S) -> Any:
        if self._connection is None or self._connection[1].is_closed:
            loop = asyncio.get_running_loop()
            self._connection = await loop.create_connection(_Answers, self._broker.machine.name, PORT)
        transport, answers = self._connection
        self._correlation_id += 1
        transport.write(b"".join(request_frame(key, version, self._correlation_id, "random", asked)))
        if key == ApiKey.PRODUCE and asked.acks == 0:
            return None
        async with asyncio.timeout(patience_s):
            correlation_id, answer = parse_response(key, version, await answers.next())
        if correlation_id != self._correlation_id:
            self.wrong.append(f"the answer to another request than {APIS[key].name}")
        return answer

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection[0].close()
        self._connection = None

    async def _use_what_is_there(self, when: str) -> None:
        """Nothing that was asked before keeps anybody from work for ever."""
        self._hang_up()
        try:
            await self._use(when)
        except (TimeoutError, ConnectionError) as error:
            self.wrong.append(f"{when}: no answer ({error!r}, {self._why_closed})")

    async def _use(self, when: str) -> None:
        until_s = self._world.loop.time() + _USABLE_AFTER_S
        for name in IDS:
            asked = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=6000)
            code = -1
            while code and self._world.loop.time() < until_s:
                answer = await self._ask(ApiKey.INIT_PRODUCER_ID, 5, asked, _USABLE_AFTER_S)
                code = answer.error_code
                if code:
                    await asyncio.sleep(1)
            if code:
                self.wrong.append(f"{when}: {name} cannot be used: {ErrorCode(code).name}")
        for key, question in (
            (ApiKey.METADATA, MetadataRequest(topics=None)),
            (ApiKey.LIST_GROUPS, ListGroupsRequest()),
            (ApiKey.LIST_TRANSACTIONS, ListTransactionsRequest()),
        ):
            answer = await self._ask(key, APIS[key].max_version, question)
            if +Counter({code: count for code, count in codes_in(answer).items() if code}):
                self.wrong.append(f"{when}: {APIS[key].name} has errors: {repr(answer)[:300]}")

    def _read_files(self, directory: Path) -> None:
        """What `semel log dump` says about what is left."""
        disk = self._broker.machine.disk
        root = disk.find(DATA)
        assert type(root) is Directory
        for name, entry in sorted(root.names.items()):
            if type(entry) is not Directory or name.startswith("."):
                continue
            (directory / name).mkdir()
            for file, content in sorted(entry.names.items()):
                path = directory / name / file
                path.write_bytes(bytes(content.data))
            for path in sorted((directory / name).iterdir()):
                self.wrong += [f"{name}/{path.name}: {problem}" for problem in inspect(str(path)).problems]


def main(first: int, last: int, count: int = 4000) -> None:
    for seed in range(first, last + 1):
        conversation = Conversation(seed, count)
        with tempfile.TemporaryDirectory() as directory:
            conversation.hold(Path(directory))
        print(f"seed {seed}: {conversation.answered} answers, {len(conversation.wrong)} wrong", flush=True)
        for line in conversation.wrong:
            print(f"  {line}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
