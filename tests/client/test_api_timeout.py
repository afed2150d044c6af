"""default.api.timeout.ms holds for every call: it goes on trying until then, and no longer."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from semel import AclBinding, Admin, Broker, Consumer, NewTopic
from semel.errors import KafkaError, RequestTimedOut, Retriable
from tests.support.processes import free_port

P = ("t", 0)
RULE = AclBinding("User:alice", "read", "topic", "t")

ADMIN_CALLS: dict[str, Callable[[Admin], object]] = {
    "create_topics": lambda admin: admin.create_topics([NewTopic("t")]),
    "create_topic": lambda admin: admin.create_topic("t"),
    "delete_topics": lambda admin: admin.delete_topics(["t"]),
    "list_topics": lambda admin: admin.list_topics(),
    "describe_topics": lambda admin: admin.describe_topics(["t"]),
    "create_partitions": lambda admin: admin.create_partitions({"t": 2}),
    "describe_configs": lambda admin: admin.describe_configs("topic", "t"),
    "describe_configs of a broker": lambda admin: admin.describe_configs("broker", "1"),
    "alter_configs": lambda admin: admin.alter_configs("topic", "t", {"retention.ms": 1}),
    "delete_records": lambda admin: admin.delete_records({P: 0}),
    "list_offsets": lambda admin: admin.list_offsets({P: -1}),
    "describe_cluster": lambda admin: admin.describe_cluster(),
    "list_groups": lambda admin: admin.list_groups(),
    "describe_groups": lambda admin: admin.describe_groups(["g"]),
    "delete_groups": lambda admin: admin.delete_groups(["g"]),
    "list_group_offsets": lambda admin: admin.list_group_offsets("g"),
    "alter_group_offsets": lambda admin: admin.alter_group_offsets("g", {P: 0}),
    "delete_group_offsets": lambda admin: admin.delete_group_offsets("g", [P]),
    "list_transactions": lambda admin: admin.list_transactions(),
    "describe_transactions": lambda admin: admin.describe_transactions(["x"]),
    "describe_producers": lambda admin: admin.describe_producers([P]),
    "abort_transaction": lambda admin: admin.abort_transaction(P, 1, 1, 1),
    "fence_producers": lambda admin: admin.fence_producers(["x"]),
    "describe_scram_credentials": lambda admin: admin.describe_scram_credentials(),
    "set_scram_credentials": lambda admin: admin.set_scram_credentials("alice", "wonderland"),
    "delete_scram_credentials": lambda admin: admin.delete_scram_credentials("alice"),
    "create_acls": lambda admin: admin.create_acls([RULE]),
    "describe_acls": lambda admin: admin.describe_acls(),
    "delete_acls": lambda admin: admin.delete_acls([RULE]),
}
CONSUMER_CALLS: dict[str, Callable[[Consumer], object]] = {
    "subscribe with a pattern": lambda consumer: consumer.subscribe(re.compile("t.*")),
    "partitions_for": lambda consumer: consumer.partitions_for("t"),
    "beginning_offsets": lambda consumer: consumer.beginning_offsets([P]),
    "end_offsets": lambda consumer: consumer.end_offsets([P]),
    "offsets_for_times": lambda consumer: consumer.offsets_for_times({P: 0}),
    "commit": lambda consumer: consumer.commit({P: 0}),
    "committed": lambda consumer: consumer.committed([P]),
    "position": lambda consumer: (consumer.assign([P]), consumer.position(P)),
}
CALLS = [(Admin, call) for call in ADMIN_CALLS.values()] + [(Consumer, call) for call in CONSUMER_CALLS.values()]
NAMES = [f"Admin.{name}" for name in ADMIN_CALLS] + [f"Consumer.{name}" for name in CONSUMER_CALLS]


@pytest.fixture(scope="module")
def black_hole() -> Iterator[int]:
    """A port where everybody is let in and nobody is answered."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listening:
        yield listening.getsockname()[1]


def test_the_table_has_every_method_that_asks_a_broker() -> None:
    methods = {name for name in dir(Admin) if not name.startswith("_")} - {"close"}
    assert methods == {name.split(" ")[0] for name in ADMIN_CALLS}


@pytest.mark.parametrize(("kind", "call"), CALLS, ids=NAMES)
@pytest.mark.parametrize("trouble", ["nobody there", "nobody answers"])
def test_without_a_broker_a_call_goes_on_trying_until_then_and_no_longer(
    black_hole: int, kind: type, call: Callable[[object], object], trouble: str
) -> None:
    port = free_port() if trouble == "nobody there" else black_hole
    config = {"bootstrap.servers": f"127.0.0.1:{port}", "default.api.timeout.ms": 300, "retry.backoff.max.ms": 50}
    if kind is Consumer:
        config["group.id"] = "g"
    with kind(config) as client:
        began = time.monotonic()
        with pytest.raises(Retriable) as raised:
            call(client)
        took = time.monotonic() - began
    assert took >= 0.29, f"it gave up after {took:.3f} s: {raised.value}"
    assert took < 8, "far below request.timeout.ms and socket.connection.setup.timeout.ms"
    assert isinstance(raised.value, (RequestTimedOut, KafkaError))


def test_a_broker_that_comes_in_time_is_enough(name: str) -> None:
    port = free_port()
    config = {"bootstrap.servers": f"127.0.0.1:{port}", "default.api.timeout.ms": 60_000}
    found: list[object] = []
    with Admin(config) as admin, Consumer({**config, "group.id": name}) as consumer:
        callers = [
            threading.Thread(target=lambda: found.append(admin.list_topics()), daemon=True),
            threading.Thread(target=lambda: found.append(consumer.subscribe(re.compile("t.*"))), daemon=True),
        ]
        for caller in callers:
            caller.start()
        with Broker(listen=f"127.0.0.1:{port}"):
            for caller in callers:
                caller.join(60)
            assert found in ([[], None], [None, []])
