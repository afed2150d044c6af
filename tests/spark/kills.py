"""Rounds of kill -9 at a pipeline, placed where they hurt: a driver, its executors, or the broker.

Before a kill the whole driver is frozen (SIGSTOP) and the broker and Spark's checkpoint are asked where it stands, so
where a kill landed is what was found, not what was hoped for. A round whose kill did not hurt does not count.

All traffic of the pipeline goes through a fault proxy. A placed kill strikes while the proxy holds the message that
it waited for. A random one strikes at some message, drawn by lot. Meanwhile a reader of committed records writes down
what it gets and when, for the judge.
"""

from __future__ import annotations

import enum
import json
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Set
from pathlib import Path
from typing import Protocol

import confluent_kafka

import semel
from semel.testing.fault_proxy import Fault, FaultProxy, Passing, Way
from semel.testing.history import judge
from semel.wire.apis import ApiKey
from tests.spark.session import path_of_the_code
from tests.spark.stage import Stage, descendants
from tests.support.processes import Process
from tests.support.stored_transactions import TimedPoll, history, stored_transactions, timed_poll
from tests.support.waiting import until

TRANSACTIONAL_ID = "copy"
KEYS = 1000
PARTITIONS = 4
_EXECUTOR = b"CoarseGrainedExecutorBackend"


class Place(enum.Enum):
    """Where a kill landed."""

    OPEN = "between first produce and EndTxn"
    RERUN = "in a rerun, between first produce and EndTxn"
    COMMITTED = "between EndTxn and Spark's commit log"
    ELSEWHERE = "elsewhere"


class Victim(enum.Enum):
    """Who is killed."""

    DRIVER = "driver"
    EXECUTOR = "executor"
    BROKER = "broker"


class KillableBroker(Protocol):
    """Semel or Apache Kafka, in a process of its own."""

    @property
    def bootstrap_servers(self) -> str: ...

    def kill9(self) -> None: ...

    def start(self, *, within_s: float = ...) -> object: ...


class Reader:
    """A reader of committed records, by librdkafka, that runs all the while."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.polls: list[TimedPoll] = []
        self.count = 0
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap_servers, "group.id": "reader", "isolation.level": "read_committed",
                "enable.auto.commit": False, "auto.offset.reset": "earliest", "reconnect.backoff.max.ms": 500,
                "log_level": 0,  # of broken connections there will be many
            }
        )  # fmt: skip
        self._consumer.assign([confluent_kafka.TopicPartition("ledger", number, 0) for number in range(PARTITIONS)])
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._read, name="reader", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while not self._stopping.is_set():
            messages = [one for one in self._consumer.consume(5000, 0.2) if one.error() is None]
            if messages:
                self.polls.append(timed_poll(messages))
                self.count += len(messages)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(30)
        self._consumer.close()


class Kills:
    """One broker, one pipeline, and what was done to them."""

    #: Of the topics.
    replicas = 1

    def __init__(
        self, broker: KillableBroker, folder: Path, *, per_batch: int, seed: int, tell: Callable[[str], None]
    ) -> None:
        self.broker, self.tell = broker, tell
        self.chance = random.Random(seed)
        self.stage = Stage(None, broker.bootstrap_servers, folder, TRANSACTIONAL_ID, replicas=self.replicas)
        self.checkpoint = Path(self.stage.checkpoint)
        self.per_batch = per_batch
        self.sent = 0
        self.drivers = 0
        self.committed = self.aborted = 0
        self.landed: Counter[tuple[Victim, Place]] = Counter()
        self.driver: Process | None = None
        #: How often each batch was begun by the drivers that are dead.
        self._begun: Counter[int] = Counter()
        self._aim: tuple[Victim, Set[Place]] | None = None
        self._messages_left = 0
        self._struck: Place | None = None
        self._hit = threading.Event()
        self.stage.create_topics(payments=PARTITIONS, ledger=PARTITIONS)
        self._admin = semel.Admin({"bootstrap.servers": broker.bootstrap_servers})
        self._driver_connects_to = self._begin_watching()
        self.reader = Reader(broker.bootstrap_servers)

    # --- the pipeline ---------------------------------------------------------------------------------------------

    def put(self, count: int) -> None:
        """More input, in the order of its numbers."""
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.stage.bootstrap_servers, "linger.ms": 20, "enable.idempotence": True}
        )
        for number in range(self.sent, self.sent + count):
            while True:
                try:
                    producer.produce("payments", b"%d" % number, b"account-%d" % (number % KEYS))
                    break
                except BufferError:
                    producer.poll(0.1)
        assert producer.flush(120) == 0
        self.sent += count

    def _start_driver(self) -> Process:
        script = Path(__file__).with_name("copying_pipeline.py")
        command = [
            sys.executable, str(script), "--bootstrap", self._driver_connects_to, "--checkpoint",
            str(self.checkpoint), "--master", "local-cluster[2,1,1024]", "--per-batch", str(self.per_batch),
        ]  # fmt: skip
        self.drivers += 1
        # local-cluster leaves a directory `work` where it is started
        self.driver = Process(
            command, name="driver", environment={"PYTHONPATH": path_of_the_code()}, directory=self.stage.folder
        )
        return self.driver

    def _running_driver(self) -> Process:
        """The driver, started again after it was killed; with more input if it has used up all."""
        if self.driver is not None and not self.driver.running():
            code = self.driver.popen.returncode
            assert code in (0, -signal.SIGKILL), f"the driver ended with {code}:\n{self.driver.output()[-4000:]}"
            if code == 0:
                self.put(5 * self.per_batch)
            self._begun += _begun_in(self.driver)
            self.driver.close()
            self.driver = None
        return self.driver or self._start_driver()

    # --- where it stands ------------------------------------------------------------------------------------------

    def _batches(self, log: str) -> int:
        folder = self.checkpoint / log
        names = os.listdir(folder) if folder.exists() else []
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def _times_begun(self, batch: int) -> int:
        assert self.driver is not None
        return self._begun[batch] + _begun_in(self.driver)[batch]

    def _place(self) -> tuple[Place, int]:
        """What the broker and the checkpoint say, and the batch that Spark has not noted as done."""
        pending = self._batches("offsets")
        if pending <= self._batches("commits"):
            return Place.ELSEWHERE, pending
        try:
            state = self._admin.describe_transactions([TRANSACTIONAL_ID])[TRANSACTIONAL_ID].state
        except semel.KafkaError:
            return Place.ELSEWHERE, pending  # the broker does not know it yet
        if state == "Ongoing":
            return (Place.RERUN if self._times_begun(pending) > 1 else Place.OPEN), pending
        if state == "PrepareCommit":
            return Place.COMMITTED, pending
        stored = self._admin.list_group_offsets(TRANSACTIONAL_ID).values()
        done = max((json.loads(at.metadata)["batch"] for at in stored if at.metadata), default=-1)
        return (Place.COMMITTED if done >= pending else Place.ELSEWHERE), pending

    def _settled_place(self) -> Place:
        """With the driver frozen: what it had sent before has arrived when two looks in a row see the same."""
        last = self._place()
        while True:
            time.sleep(0.05)
            now = self._place()
            if now == last:
                return now[0]
            last = now

    # --- the kill -------------------------------------------------------------------------------------------------

    def _begin_watching(self) -> str:
        """Begin to look for the moments at which a kill strikes. Returns the address for the driver."""
        self._proxy = FaultProxy(self.broker.bootstrap_servers, self._watch).start()
        return self._proxy.bootstrap_servers

    def _stop_watching(self) -> None:
        self._proxy.stop()

    def _watch(self, passing: Passing) -> Fault | None:
        """The proxy's rule: strikes when the message that a placed kill waits for is there."""
        aim = self._aim
        if aim is None:
            return None
        if aim[1] == set(Place):  # at random: some message of the driver or of its tasks, whatever it is
            self._messages_left -= 1
            if self._messages_left <= 0:
                self._strike(*aim)
        elif passing.way is Way.RESPONSE:
            wanted = ApiKey.END_TXN if aim[1] == {Place.COMMITTED} else ApiKey.PRODUCE
            if passing.api_key == wanted:
                self._strike(*aim)
        return None

    def _strike(self, victim: Victim, wanted: Set[Place]) -> None:
        """Freeze, look, and kill if it is one of these places."""
        driver = self.driver
        assert driver is not None
        everyone = [driver.process_id, *descendants(driver.process_id, naming=b"")]
        executors = descendants(driver.process_id, naming=_EXECUTOR)
        _signal(everyone, signal.SIGSTOP)
        try:
            place = self._settled_place()
            if place not in wanted or (victim is Victim.EXECUTOR and not executors):
                return
            if victim is Victim.DRIVER:
                driver.kill9()
            elif victim is Victim.BROKER:
                self.broker.kill9()
            else:
                _signal(executors, signal.SIGKILL)
            self._aim = None
            self._struck = place
            self._hit.set()
        finally:
            _signal(everyone, signal.SIGCONT)

    def _kill(self, victim: Victim, wanted: Set[Place], *, at_random: bool = False, within_s: float) -> Place | None:
        """One kill; where it landed, or None if the input was used up before."""
        driver = self._running_driver()
        self._struck = None
        self._hit.clear()
        began = time.monotonic()
        if at_random:
            self._messages_left = self.chance.randrange(1, 40)
        self._aim = victim, wanted
        while not self._hit.wait(0.2) and driver.running():
            if time.monotonic() > began + within_s:
                names = " or ".join(place.name for place in wanted)
                raise AssertionError(f"no {names} to kill a {victim.value} at:\n{driver.output()[-4000:]}")
        self._aim = None
        place = self._struck
        if place is None:
            return None
        if victim is Victim.BROKER:
            self.broker.start(within_s=120)
        self.landed[victim, place] += 1
        counts = "" if place is not Place.ELSEWHERE else ": does not count"
        how = " at random" if at_random else ""
        self.tell(
            f"{victim.value} killed{how} {place.value}{counts}; {self.reader.count} of {self.sent} records are read"
        )
        return place

    def round(self, victim: Victim, aim: Place | None, *, within_s: float) -> bool:
        """Kill one victim at a place, or at random. Returns whether it hurt: only then the round counts."""
        if aim is None:
            place = self._kill(victim, set(Place), at_random=True, within_s=within_s)
            return place not in (None, Place.ELSEWHERE)
        if aim is not Place.RERUN:
            return self._kill(victim, {aim}, within_s=within_s) is not None
        # A rerun has to be made first. A broker's death makes none: its transaction goes on when it is back.
        first = Victim.DRIVER if victim is Victim.DRIVER else Victim.EXECUTOR
        place = self._kill(first, {Place.OPEN, Place.RERUN}, within_s=within_s)
        if place is Place.RERUN and first is victim:
            return True
        return place is not None and self._kill(victim, {Place.RERUN}, within_s=within_s) is not None

    def finish(self, *, within_s: float) -> None:
        """Let the pipeline end, and the reader read all."""
        self._aim = None
        driver = self.driver if self.driver is not None and self.driver.running() else self._start_driver()
        code = driver.wait(within_s=within_s)
        assert code == 0, driver.output()[-4000:]
        until(
            lambda: self.reader.count >= self.sent, within_s=120,
            what=f"the reader to read all {self.sent} records (it has {self.reader.count})",
        )  # fmt: skip

    def anomalies(self) -> list[str]:
        """All that the judge finds, what is missing, and keys whose order is not that of the input."""
        polls = self.reader.polls
        seen: dict[bytes, list[int]] = {}
        for poll in polls:
            for record in poll.records:
                key, value = record.value  # type: ignore[misc]
                seen.setdefault(key, []).append(int(value))
        wanted: dict[bytes, list[int]] = {}
        for number in range(self.sent):
            wanted.setdefault(b"account-%d" % (number % KEYS), []).append(number)
        found = [
            f"{key!r}: {len(seen.get(key, []))} records for {len(numbers)}, or not in their order"
            for key, numbers in wanted.items()
            if seen.get(key) != numbers
        ]
        found += [f"{key!r} was never sent" for key in seen.keys() - wanted.keys()]
        stored = [
            one
            for number in range(PARTITIONS)
            for one in stored_transactions(self._leader_of(number), "ledger", number)
        ]
        self.aborted = len({one.name for one in stored if one.committed is False})
        self.committed = len({one.name for one in stored if one.committed})
        return found + [str(anomaly) for anomaly in judge(history(stored, polls), at_rest=True)]

    def _leader_of(self, partition: int) -> str:
        """The address at which this partition of `ledger` is read."""
        return self.stage.bootstrap_servers

    def report(self) -> str:
        where: Counter[Place] = Counter()
        who: Counter[Victim] = Counter()
        for (victim, place), count in self.landed.items():
            where[place] += count
            who[victim] += count if place is not Place.ELSEWHERE else 0
        victims = ", ".join(f"{one.value} {who[one]}" for one in Victim)
        places = "; ".join(f"{place.value}: {where[place]}" for place in Place)
        return (
            f"{self.sent} records; kills that hurt: {victims}; where kills landed: {places}; {self.drivers} drivers, "
            f"{self.committed} transactions committed and {self.aborted} aborted, {len(self.reader.polls)} polls judged"
        )

    def close(self) -> None:
        if self.driver is not None:
            self.driver.kill9()
            self.driver.close()
        self.reader.close()
        self._stop_watching()
        self._admin.close()


def _begun_in(driver: Process) -> Counter[int]:
    """How often this driver has begun each batch, by its own words."""
    return Counter(int(line.split()[1].rstrip(":")) for line in driver.lines() if line.endswith(": BEGUN"))


def _signal(processes: list[int], number: int) -> None:
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            pass  # it ended meanwhile
