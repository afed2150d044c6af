"""With an authorizer every API has a guard in front of its handler."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import semel
from semel.broker.access.guards import GUARDS
from semel.broker.access.guards.offsets import list_offsets
from semel.broker.access.guards.transactions import describe_producers
from semel.broker.handlers import SERVED
from semel.config.broker import STANDARD_AUTHORIZER
from semel.errors import ErrorCode
from semel.wire.apis import ApiKey
from semel.wire.messages.fetch import ListOffsetsRequest
from semel.wire.messages.transactions import DescribeProducersRequest, EndTxnRequest
from tests.broker.raw import Raw

#: Where Kafka asks nothing of the rules. Whoever comes by a listener may ask for these.
UNGUARDED = {
    ApiKey.API_VERSIONS,
    ApiKey.SASL_HANDSHAKE,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
}


def test_no_served_api_lacks_a_guard() -> None:
    assert set(GUARDS) == set(SERVED)
    assert {key for key, named in GUARDS.items() if named is None} == UNGUARDED


def test_every_guard_is_there() -> None:
    for named in GUARDS.values():
        if named is not None:
            assert callable(getattr(import_module(f"semel.broker.access.guards.{named[0]}"), named[1]))


def test_without_a_rule_a_transaction_is_not_ended() -> None:
    with semel.Broker(settings={"authorizer.class.name": STANDARD_AUTHORIZER}) as broker, Raw(broker) as raw:
        response = raw.ask(EndTxnRequest(transactional_id="t", producer_id=1, producer_epoch=0, committed=True))
        assert response.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED


def test_a_super_user_may_do_everything() -> None:
    settings = {"authorizer.class.name": STANDARD_AUTHORIZER, "super.users": "User:ANONYMOUS"}
    with semel.Broker(settings=settings) as broker, Raw(broker) as raw:
        response = raw.ask(EndTxnRequest(transactional_id="t", producer_id=1, producer_epoch=0, committed=True))
        assert response.error_code == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_another_broker_needs_cluster_action_and_nothing_else() -> None:
    """It asks where a log begins and who writes, for topics that no rule lets it describe or read."""
    asked = ListOffsetsRequest(replica_id=2, topics=[ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[])])
    producers = DescribeProducersRequest(
        topics=[DescribeProducersRequest.TopicRequest(name="t", partition_indexes=[0])]
    )

    def verdict(guard: Any, request: Any, *, is_of_a_broker: bool) -> Any:
        access = SimpleNamespace(is_of_a_broker=lambda call: is_of_a_broker, allows=lambda *_, **__: False)
        steps = guard(access, request, None)
        while True:
            try:
                next(steps)
            except StopIteration as done:
                return done.value

    for guard, request in ((list_offsets, asked), (describe_producers, producers)):
        assert verdict(guard, request, is_of_a_broker=True) is None
        assert verdict(guard, request, is_of_a_broker=False) is not None
