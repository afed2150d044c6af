"""A pipeline as on Spark: one driver, several writers that share its transaction, and a checkpoint that may lag behind.

The machines of `machines/pipeline` decide: the driver's transaction, the claim guard and the batch marker. There are
drivers that die, writers that die, run twice or outlive their driver, and a checkpoint that does not know of the last
commit. Each input record is in the output exactly once (S1), a batch that runs again changes nothing (S3), and a writer
of an older epoch is fenced (S4).
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Coroutine
from functools import partial
from typing import Any

from semel.client.cluster.cluster import Cluster, Coordinator, Leader
from semel.client.consumer.consumer import AsyncConsumer
from semel.errors import ErrorCode, KafkaError, error_for
from semel.machines.pipeline.batch_marker import BatchMarker, BatchVerdict, fingerprint_of, judge_batch
from semel.machines.pipeline.claims import ClaimBook, ClaimRefused, ReportsDisagree, WriteReport, check_reports
from semel.machines.pipeline.driver_transaction import CommitUnknown, DriverTransaction, PipelineProgress
from semel.machines.transactions.requests import Send
from semel.machines.values import ProducerIdentity, TopicPartition
from semel.records.batch import build
from semel.simulation.disk import ProcessDied
from semel.simulation.event_loop import PROCESS
from semel.simulation.machines import Process
from semel.simulation.play import CLIENT_SETTINGS, CONSUMER_SETTINGS, PRODUCER_SETTINGS, Actor, Play
from semel.simulation.workloads import Workload, workload
from semel.simulation.workloads.copying import QUIET_S, Restart, check_copied, create
from semel.testing.history import Ended, Ending, Outcome
from semel.wire.messages.produce import ProduceRequest

SOURCE, TARGET = "events", "processed"
PARTITIONS = 2
WRITERS = 3
NAME = "pipeline"
#: How long a request is tried again.
PATIENCE_MS = 15_000
#: How often a batch is tried by one life of the driver.
ATTEMPTS = 5

#: Where a batch ends, by partition of the source.
Ends = dict[int, int]
#: Partition and value.
Row = tuple[int, bytes]


@workload("pipeline")
class Pipeline(Workload):
    """The checkpoint is a pair of dictionaries that survive everything, as the files of Spark's checkpoint do."""

    judged_topics = (SOURCE, TARGET)

    def __init__(self, play: Play) -> None:
        super().__init__(play)
        #: Planned batches: their ends, and those that were noted as done after their commit.
        self.planned: dict[int, Ends] = {}
        self.done: set[int] = set()
        self._fed_until = 0.0
        play.actor("source-pipeline", self.feed)
        play.actor("driver", self.drive)

    async def prepare(self) -> None:
        for topic in (SOURCE, TARGET):
            await self.play.admin(partial(create, topic, PARTITIONS))

    async def feed(self, actor: Actor) -> None:
        """Send what the pipeline reads."""
        play, chance = self.play, actor.chance
        async with play.clients.producer(**PRODUCER_SETTINGS, linger_ms=0) as producer:
            while not play.is_ending:
                partition, value = chance.randrange(PARTITIONS), play.next_value(actor.who)
                place = play.sending(actor.who, SOURCE, partition, value)
                try:
                    play.sent(place, (await (await producer.send(SOURCE, value, partition=partition))).offset)
                except KafkaError:
                    play.counts["sends of unknown fate"] += 1
                self._fed_until = play.world.loop.time()
                await asyncio.sleep(chance.random() * 0.1)

    async def drive(self, actor: Actor) -> None:
        """One life of the driver: go on where the checkpoint says."""
        play, chance, loop = self.play, actor.chance, self.play.world.loop
        settings = {**CONSUMER_SETTINGS, "isolation_level": "read_committed"}
        async with _cluster(play) as cluster, play.clients.consumer(**settings) as consumer:
            await cluster.topic(TARGET)  # only a broker tells the version of its transactions
            consumer.assign([(SOURCE, number) for number in range(PARTITIONS)])
            driver = _Driver(self, actor, cluster)
            last = loop.time()
            while not play.is_ending or loop.time() - max(last, self._fed_until) < QUIET_S:
                number = max(self.done, default=-1) + 1
                begins = self.planned.get(number - 1, dict.fromkeys(range(PARTITIONS), 0))
                if number not in self.planned:
                    ends = await consumer.end_offsets([(SOURCE, one) for one in range(PARTITIONS)])
                    planned = {place.partition: end for place, end in ends.items()}
                    if planned == begins:
                        await asyncio.sleep(0.2)
                        continue
                    self.planned[number] = planned
                rows = await self._read(consumer, begins, self.planned[number])
                last = loop.time()
                await driver.run_batch(number, rows, begins, self.planned[number])
                if chance.random() < 0.1:
                    raise Restart  # and the checkpoint does not know that the batch is done
                self.done.add(number)
                await asyncio.sleep(chance.random() * 0.5)

    async def _read(self, consumer: AsyncConsumer, begins: Ends, ends: Ends) -> list[Row]:
        """The rows of a batch."""
        rows: list[Row] = []
        positions = dict(begins)
        for number, begin in begins.items():
            consumer.seek((SOURCE, number), begin)
        while any(positions[number] < ends[number] for number in ends):
            for one in await consumer.poll(timeout_ms=200):
                if one.offset < ends[one.partition]:
                    assert one.value is not None
                    rows.append((one.partition, one.value))
            for number in ends:
                positions[number] = await consumer.position((SOURCE, number))
        return rows

    async def check(self, committed: dict[tuple[str, int], list[tuple[int, bytes | None, bytes | None]]]) -> None:
        check_copied(self.play, NAME, SOURCE, TARGET, committed)


class _Driver:
    """What a driver knows in one life."""

    def __init__(self, pipeline: Pipeline, actor: Actor, cluster: Cluster) -> None:
        process = PROCESS.get()
        assert process is not None
        self._play, self._actor, self._cluster, self._process = pipeline.play, actor, cluster, process
        self._transaction = DriverTransaction(NAME, NAME, timeout_ms=8_000)
        self._book = ClaimBook()
        self._committed: PipelineProgress | None = None
        self._tries = 0

    @property
    def _now_ms(self) -> float:
        return self._play.world.loop.time() * 1000

    async def run_batch(self, number: int, rows: list[Row], begins: Ends, ends: Ends) -> None:
        """Try until the batch is committed, now or before."""
        for left in range(ATTEMPTS - 1, -1, -1):
            try:
                await self._attempt(number, rows, begins, ends)
                return
            except (KafkaError, CommitUnknown, ReportsDisagree, ClaimRefused, ProcessDied) as error:
                self._play.counts[f"pipeline: {type(error).__name__}"] += 1
                await self._abort()
                if not left and not isinstance(error, KafkaError):
                    raise error_for(ErrorCode.REQUEST_TIMED_OUT, f"batch {number}: {error}") from error
                if not left:
                    raise

    async def _abort(self) -> None:
        """Try to. What counts is the next epoch, which fences every writer of this one."""
        if self._transaction.identity is not None:
            try:
                self._transaction.on_ended(await self._ask(self._transaction.end(commit=False)), commit=False)
            except (KafkaError, CommitUnknown):
                self._play.counts["pipeline: aborts without an answer"] += 1
        self._transaction.forget_identity()
        self._committed = None

    async def _attempt(self, number: int, rows: list[Row], begins: Ends, ends: Ends) -> None:
        play, transaction = self._play, self._transaction
        fresh = transaction.identity is None
        send = transaction.begin(self._now_ms, self._cluster.transaction_version)
        if send is not None:
            transaction.on_begun(await self._ask(send))
        if fresh or self._committed is None:
            self._committed = transaction.on_progress(await self._ask(transaction.read_progress()))
        marker = BatchMarker("query", number, fingerprint_of([str(sorted(ends.items()))]))
        places = {TopicPartition(SOURCE, one): end for one, end in ends.items()}
        verdict = judge_batch(self._committed.marker, marker, NAME, self._committed.offsets, places)
        if verdict is BatchVerdict.SKIP:
            play.counts["pipeline: batches that were committed before"] += 1
            return
        self._tries += 1
        name = (self._actor.who, number, self._tries)
        assert transaction.identity is not None
        reports = await self._write(transaction.identity, name, rows)
        check_reports(self._book.given, reports)
        send = transaction.commit_offsets(
            places, marker, begins={TopicPartition(SOURCE, one): begin for one, begin in begins.items()}, rows=len(rows)
        )
        transaction.on_offsets_committed(await self._ask(send))
        play.note(Ending(self._actor.who, name))
        send = transaction.end(commit=True)
        try:
            answer = await self._ask(send)
        except KafkaError as error:
            raise transaction.end_without_answer(error, commit=True) from error
        transaction.on_ended(answer, commit=True)
        play.note(Ended(self._actor.who, name, Outcome.OK))
        play.counts["pipeline: batches"] += 1
        self._committed = PipelineProgress({**self._committed.offsets, **places}, marker)

    async def _write(
        self, identity: ProducerIdentity, name: tuple[str, int, int], rows: list[Row]
    ) -> list[WriteReport]:
        """Let the writers write, each its share. Sometimes one runs twice, and sometimes one dies."""
        play, chance, book = self._play, self._actor.chance, self._book
        epoch = identity.producer_id, identity.producer_epoch, 0
        book.open(epoch)
        runs = []
        for task in range(WRITERS):
            share = rows[task::WRITERS]
            for attempt in range(2 if chance.random() < 0.05 else 1):
                writer = _Writer(self, identity, task, f"{task}.{attempt}", name)
                process = play.world.process(f"executor-{task}")
                for partition in range(PARTITIONS):
                    # The driver notices that the connection of a writer is gone.
                    process.on_death.append(partial(book.lose_turn, epoch, writer.attempt, (TARGET, partition)))
                runs.append((attempt, writer, _in_the_world(play, process, writer.write(share))))
                if chance.random() < 0.03:
                    play.world.loop.call_later(chance.random() * 0.2, process.die, context=contextvars.Context())
        reports: list[WriteReport] = []
        failure: BaseException | None = None
        for attempt, writer, run in runs:
            try:
                found = await run
                if attempt == 0 or not any(report.task == writer.task for report in reports):
                    reports += found
            except (KafkaError, ClaimRefused, ProcessDied) as error:
                failure = error
        book.close()
        if failure is not None:
            raise failure
        return reports

    def claim(self, writer: _Writer, place: tuple[str, int], records: int) -> int | None:
        """A writer asks for its turn: a sequence number, or None if it has to wait."""
        if not self._process.is_alive:
            raise ClaimRefused("the driver is gone")
        why = self._book.refusal(writer.epoch, writer.task, writer.attempt)
        if why:
            raise ClaimRefused(why)
        return self._book.take_turn(writer.task, writer.attempt, place, records)

    def end_turn(self, writer: _Writer, place: tuple[str, int]) -> None:
        if self._process.is_alive:
            self._book.end_turn(writer.epoch, writer.attempt, place)

    async def _ask(self, send: Send) -> Any:
        return await self._cluster.request_retrying(
            send.message, to=Coordinator(send.coordinator, send.key), version=send.version, newest=send.newest,
            timeout_ms=PATIENCE_MS,
        )  # fmt: skip


class _Writer:
    """One attempt of one task, in a process of its own."""

    def __init__(
        self, driver: _Driver, identity: ProducerIdentity, task: int, attempt: str, name: tuple[str, int, int]
    ) -> None:
        self._driver, self._identity, self._name = driver, identity, name
        self._play = driver._play
        self.task, self.attempt = task, attempt
        self.epoch = identity.producer_id, identity.producer_epoch, 0

    async def write(self, rows: list[Row]) -> list[WriteReport]:
        """Write these rows, partition by partition, and report what was acknowledged."""
        reports = []
        async with _cluster(self._play) as cluster:
            for partition in range(PARTITIONS):
                values = [value for one, value in rows if one == partition]
                if values:
                    first = await self._write_partition(cluster, partition, values)
                    last = first + len(values) - 1
                    reports.append(WriteReport(self.task, TARGET, partition, len(values), first, last))
        return reports

    async def _write_partition(self, cluster: Cluster, partition: int, values: list[bytes]) -> int:
        place = TARGET, partition
        while True:
            sequence = self._driver.claim(self, place, len(values))
            if sequence is not None:
                break
            await asyncio.sleep(0.005)
        # Each try has values of its own, so that the judge can tell them apart.
        tried = [value + f" by {self._name[0]}.{self._name[2]}.{self.attempt}".encode() for value in values]
        noted = [self._play.sending(self._name[0], TARGET, partition, value, self._name) for value in tried]
        data = build(
            [(None, value) for value in tried],
            timestamp_ms=self._play.brokers[0].machine.now_ms(),
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        rows = ProduceRequest.PartitionProduceData(index=partition, records=data)
        topic = ProduceRequest.TopicProduceData(name=TARGET, partition_data=[rows])
        request = ProduceRequest(transactional_id=NAME, acks=-1, timeout_ms=3_000, topic_data=[topic])
        answer = await cluster.request_retrying(request, to=Leader(*place), version=12, timeout_ms=PATIENCE_MS)
        found = answer.responses[0].partition_responses[0]
        if found.error_code:
            code = ErrorCode.of(found.error_code)
            raise error_for(code, f"{TARGET}-{partition}: {code.meaning}")
        first = int(found.base_offset)
        for number, one in enumerate(noted):
            self._play.sent(one, first + number)
        self._driver.end_turn(self, place)
        return first


def _cluster(play: Play) -> Cluster:
    """A connection of the process that runs this."""
    process = PROCESS.get()
    assert process is not None
    settings = {name.replace("_", "."): value for name, value in CLIENT_SETTINGS.items()}
    return Cluster({**play.clients.settings, **settings}, environment=process.environment)


def _in_the_world(play: Play, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Future[Any]:
    """Run this in a process that nobody owns: it goes on when the driver dies, and ends with its work."""

    async def run() -> Any:
        try:
            return await process.result_of(work)
        finally:
            process.die()

    task: asyncio.Task[Any] = contextvars.Context().run(play.world.loop.create_task, run())
    result = play.world.loop.create_future()

    def over(done: asyncio.Task[Any]) -> None:
        error = done.exception()
        if not result.done():
            if error is None:
                result.set_result(done.result())
            else:
                result.set_exception(error)
                result.exception()  # nobody need ask: the driver may be gone

    task.add_done_callback(over, context=contextvars.Context())
    return result
