"""A client after a fork: every public call says why it cannot work, none hangs, and the parent's goes on."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import sys
import textwrap
from typing import Any

import pytest

import semel
from semel import Broker
from semel.client.blocking.cluster import BlockingCluster
from tests.support.processes import Process
from tests.support.requirements import CHECKOUT

#: In the child of a fork: every public call of one client class, with arguments that would be right. Answers in JSON.
SOURCE = """
import faulthandler, inspect, json, os, sys
import pyarrow as pa
import semel
from semel.client.blocking.cluster import BlockingCluster
from semel.errors import KafkaError
from semel.wire.messages.metadata import MetadataRequest

faulthandler.dump_traceback_later(45, exit=True)
address, topic, kind = sys.argv[1:]
config = {"bootstrap.servers": address}
place = (topic, 0)
own = {"Consumer": {"group.id": topic}, "TransactSession": {"group.id": topic, "transactional.id": topic}}
transactional = {"transactional.id": topic, "linger.ms": 60_000} if kind == "Producer" else {}
made = {**vars(semel), "Producer": semel.Producer, "Consumer": semel.Consumer, "Admin": semel.Admin,
        "TransactSession": semel.TransactSession, "BlockingCluster": BlockingCluster}[kind]
client = made({**config, **own.get(kind, {}), **transactional})
kept = []
if kind == "Producer":
    client.init_transactions()
    client.begin_transaction()
    client.send(topic, b"before")
    client.commit_transaction()
    client.begin_transaction()
    kept = [client.send(topic, b"on its way")]
if kind == "Consumer":
    client.assign([place])
arguments = {
    "topic": topic, "name": topic, "topics": [topic], "names": [topic], "value": b"x",
    "rows": pa.table({"value": ["x"]}),
    "offsets": {place: 0}, "group_metadata": topic, "decided": (1, 1), "partitions": [place], "partition": place,
    "offset": 0, "timestamps": {place: 0}, "counts": {topic: 2}, "kind": "topic", "changes": {}, "before": {place: 0},
    "wanted": {place: -1}, "group_ids": [topic], "group_id": topic, "transactional_ids": [topic], "producer_id": 1,
    "producer_epoch": 1, "coordinator_epoch": 0, "to": None, "message": MetadataRequest(), "requests": [], "key": topic,
    "user": "alice", "password": "wonderland", "acls": [semel.AclBinding("User:alice", "read", "topic", topic)],
}
if kind == "BlockingCluster":
    arguments.update(partition=0, kind="group")
read, write = os.pipe()
if os.fork():
    os.close(write)
    answers = os.fdopen(read).read()
    if kind == "Producer":
        client.commit_transaction()
        assert [delivery.result(30).offset for delivery in kept] == [2]
    client.close()
    print(answers)
    sys.exit(0)
os.close(read)
answers = {}
def ask(name, call):
    try:
        call()
        answers[name] = "worked"
    except KafkaError as error:
        answers[name] = f"{type(error).__name__}: {error.why}"
    except BaseException as error:
        answers[name] = f"{type(error).__name__} {error}"
for name, method in inspect.getmembers(type(client), inspect.isfunction):
    if name.startswith("_") or name == "close":
        continue
    needed = [p.name for p in list(inspect.signature(method).parameters.values())[1:]
              if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    def call(name=name, needed=needed):
        answer = getattr(client, name)(*[arguments[one] for one in needed])
        if name == "transaction":
            answer.__enter__()
    ask(name, call)
for delivery in kept:
    ask(type(delivery).__name__, lambda: delivery.result(30))
if kind == "Consumer":
    ask("__iter__", lambda: next(iter(client)))
ask("close", client.close)
os.write(write, json.dumps(answers).encode())
os._exit(0)
"""

#: What needs neither thread nor connection, and so works anywhere.
HARMLESS = {"close"}


@pytest.mark.parametrize("kind", ["Producer", "Consumer", "Admin", "TransactSession", "BlockingCluster"])
def test_every_call_after_a_fork_is_refused_with_the_reason(session_broker: Broker, name: str, kind: str) -> None:
    with semel.Admin({"bootstrap.servers": session_broker.bootstrap_servers}) as admin:
        admin.create_topic(name)
    command = [sys.executable, "-c", textwrap.dedent(SOURCE), session_broker.bootstrap_servers, name, kind]
    with Process(command, name="fork", environment={"PYTHONPATH": str(CHECKOUT / "src")}) as process:
        assert process.wait() == 0, process.output()
        answers: dict[str, Any] = json.loads(process.lines()[-1])
    made = {"BlockingCluster": BlockingCluster}.get(kind) or getattr(semel, kind)
    public = {name for name, _ in inspect.getmembers(made, inspect.isfunction) if not name.startswith("_")}
    assert public <= set(answers)
    wrong = {name: answer for name, answer in answers.items() if "was made before a fork" not in answer}
    assert wrong == dict.fromkeys(HARMLESS, "worked")


def test_leaving_a_with_block_in_a_forked_process_takes_nothing_from_the_parent(
    session_broker: Broker, name: str
) -> None:
    """The child leaves every block that the parent entered, the embedded broker's included."""
    source = """
        import os, sys, semel
        with semel.Broker() as broker:
            with semel.Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
                producer.send("t", b"before").result(30)
                child = os.fork()
                if child:
                    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
                    assert producer.send("t", b"after").result(30).offset == 1
                    assert broker.data_dir.exists()
        print("the parent is done" if child else "the child is done", flush=True)
        if not child:
            os._exit(0)  # uvloop does not survive the end of an interpreter that forked beside its servers
    """
    command = [sys.executable, "-c", textwrap.dedent(source)]
    with Process(command, name="fork", environment={"PYTHONPATH": str(CHECKOUT / "src")}) as process:
        assert process.wait() == 0, process.output()
        assert process.output() == "the child is done\nthe parent is done\n"


def test_what_belongs_to_a_process_is_not_copied_to_another(session_broker: Broker, name: str) -> None:
    """As when a function for Spark or multiprocessing refers to it. A copy would close the connections of the first."""
    settings = {"bootstrap.servers": session_broker.bootstrap_servers}
    with semel.Producer(settings) as producer, semel.Consumer(settings) as consumer, semel.Admin(settings) as admin:
        for kept in (producer, consumer, admin, producer.send(name, "x")):
            for copied in (pickle.dumps, copy.copy, copy.deepcopy):
                with pytest.raises(TypeError, match=f"a {type(kept).__name__} .* cannot be copied or pickled"):
                    copied(kept)
        assert producer.send(name, "y").result(30).offset == 1
