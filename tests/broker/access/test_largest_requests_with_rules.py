"""The largest request of every API, with an authorizer and thousands of rules: the loop turns, whatever is decided."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from semel.broker.embedded import Broker
from semel.broker.handlers import SERVED
from semel.machines.security.access import (
    CLUSTER_NAME,
    AccessRule,
    AccessRules,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from semel.wire.apis import ApiKey
from tests.broker.access.rules import ANONYMOUS, WITH_AUTHORIZER, rule
from tests.broker.largest_requests import Largest, Size, method_of
from tests.broker.raw import Raw
from tests.broker.test_largest_requests import MOST_CALLS_AT_ONCE, MOST_CALLS_IN_A_TURN, Work, in_order

#: Smaller than without rules: they are sent twice. What is done at once may cost a call for each element, as there.
SIZE = Size(elements=12_000, partitions=100, topics=100, created=200)
ALL_NAMES = {
    ResourceType.TOPIC: "*", ResourceType.GROUP: "*", ResourceType.TRANSACTIONAL_ID: "*",
    ResourceType.CLUSTER: CLUSTER_NAME,
}
EVERYTHING = [rule(kind, name, Operation.ALL, who=ANONYMOUS) for kind, name in ALL_NAMES.items()]
OTHERS = [
    AccessRule(kind, f"other-{number:04}-", pattern, f"User:{number}", "*", Operation.READ, Permission.ALLOW)
    for number in range(1500)
    for kind in (ResourceType.TOPIC, ResourceType.GROUP)
    for pattern in (PatternType.LITERAL, PatternType.PREFIXED)
]


@pytest.fixture(scope="module", params=["allowed", "denied"])
def sent_to(request: pytest.FixtureRequest) -> Iterator[tuple[Largest, Work]]:
    settings = {**WITH_AUTHORIZER, "node.id": 1, "auto.create.topics.enable": "true"}
    with Broker(settings=settings) as broker, Raw(broker) as raw:
        assert broker.server.access is not None
        rules: AccessRules = broker.server.access.rules
        rules.add([*OTHERS, *EVERYTHING])
        largest = Largest(raw, SIZE)
        largest.prepare()
        if request.param == "denied":
            rules.remove(EVERYTHING)
        work = Work(broker)
        yield largest, work
        work.stop()


@pytest.mark.parametrize("key", sorted(SERVED, key=in_order), ids=method_of)
def test_no_turn_of_the_loop_does_more_than_its_share(sent_to: tuple[Largest, Work], key: ApiKey) -> None:
    largest, work = sent_to
    for message, version in getattr(largest, method_of(key))():
        frame, _ = largest.raw._frame(message, version)
        work.most_in_a_turn()
        largest.raw.socket.sendall(frame)
        assert largest.raw.receive_frame(), "it is legal, so it is answered"
        assert work.most_in_a_turn() < MOST_CALLS_AT_ONCE.get(key, MOST_CALLS_IN_A_TURN)
