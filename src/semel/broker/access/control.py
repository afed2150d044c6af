"""Access control: asks the rules on behalf of a request, and puts a guard in front of every handler.

Guarantees:

- With an authorizer no handler runs without its guard. An API without a guard is refused.
- A guard runs before the handler, so what is denied has no effect.
- Without an authorizer there is no `AccessControl` object, and a request costs nothing more.
"""

from __future__ import annotations

from collections.abc import Generator
from importlib import import_module
from types import CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any

from semel.broker.access.guards import GUARDS, Answer, Guard, Merge
from semel.broker.stored.access_rules import AccessRuleStore, StoredRules
from semel.config import ConfigError
from semel.errors import ErrorCode, Refused
from semel.machines.security.access import CLUSTER_NAME, AccessRules, Operation, ResourceType
from semel.machines.security.principals import parse_principals
from semel.wire.apis import ApiKey

if TYPE_CHECKING:
    from semel.broker.dispatch import Call, Handler
    from semel.broker.server import BrokerServer


class AccessControl:
    """The access rules of one broker."""

    def __init__(self, broker: BrokerServer) -> None:
        self.broker = broker
        settings = broker.settings
        try:
            super_users = parse_principals(settings["super.users"])
        except ValueError as error:
            raise ConfigError(f"super.users: {error}") from None
        self.rules = AccessRules(
            super_users=super_users, allow_where_no_rule=settings["allow.everyone.if.no.acl.found"]
        )
        self.stored: StoredRules
        if broker.cluster is None:
            self.stored = AccessRuleStore(broker.stores.metadata, self.rules)
        else:
            self.stored = broker.cluster.shared_rules(self.rules)

    def allows(
        self, call: Call, operation: Operation, resource_type: ResourceType, name: str, *, logged: bool = True
    ) -> bool:
        """Whether the client may do this.

        A no goes to the audit log. `logged=False` where it denies nothing that was asked for (Kafka's
        `logIfDenied=false`): what a listing hides, or a first question that is followed by another.
        """
        connection = call.connection
        who, host = connection.who, connection.peer[0]
        if self.rules.allows(who, host, operation, resource_type, name):
            return True
        if logged:
            self.broker.audit.denied(call, self.rules, operation, resource_type, name)
        return False

    def allows_on_cluster(self, call: Call, operation: Operation, *, logged: bool = True) -> bool:
        """Whether the client may do this to the cluster."""
        return self.allows(call, operation, ResourceType.CLUSTER, CLUSTER_NAME, logged=logged)

    def is_of_a_broker(self, call: Call) -> bool:
        """Whether another broker of the cluster asks: ClusterAction is all that it needs, as in Kafka."""
        cluster = self.broker.cluster
        return cluster is not None and cluster.is_of_a_broker(call)

    def allows_on_any(self, call: Call, operation: Operation, resource_type: ResourceType) -> bool:
        """Whether the client may do this to some resource of this type."""
        connection = call.connection
        return self.rules.allows_on_any(connection.who, connection.peer[0], operation, resource_type)

    def operations(self, call: Call, resource_type: ResourceType, name: str) -> int:
        """All that the client may do to a resource, as the bits of `authorized operations` fields."""
        connection = call.connection
        return self.rules.operations(connection.who, connection.peer[0], resource_type, name)

    def guarded(self, key: ApiKey, handler: Handler) -> Handler:
        """A handler with its guard in front."""
        if key not in GUARDS:
            return _refuse
        named = GUARDS[key]
        if named is None:
            return handler
        guard: Guard = getattr(import_module(f"semel.broker.access.guards.{named[0]}"), named[1])

        def handle(broker: BrokerServer, request: Any, call: Call) -> Any:
            verdict = guard(self, request, call)
            if verdict is None:
                return handler(broker, request, call)
            if type(verdict) is GeneratorType:
                return _guard_in_steps(verdict, handler, broker, request, call)
            return _go_on(verdict, handler, broker, request, call)

        return handle


def _refuse(broker: BrokerServer, request: Any, call: Call) -> Any:
    raise Refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "no access rule can allow this API")


def _go_on(verdict: Any, handler: Handler, broker: BrokerServer, request: Any, call: Call) -> Any:
    """Answer what was denied, and let the handler answer the rest."""
    if type(verdict) is Answer:
        return verdict.reply
    reply = handler(broker, request, call)
    if verdict is None:
        return reply
    if type(reply) is GeneratorType:
        return _merge_in_steps(verdict, reply, broker, call)
    return _merge_later(verdict, reply, broker, call) if type(reply) is CoroutineType else verdict(reply)


def _guard_in_steps(
    steps: Generator[None, None, Any], handler: Handler, broker: BrokerServer, request: Any, call: Call
) -> Generator[None, None, Any]:
    verdict = yield from steps
    reply = _go_on(verdict, handler, broker, request, call)
    return (yield from reply) if type(reply) is GeneratorType else reply


def _merge_in_steps(
    merge: Merge, steps: Generator[None, None, Any], broker: BrokerServer, call: Call
) -> Generator[None, None, Any]:
    reply = yield from steps
    if type(reply) is CoroutineType:
        return _merge_later(merge, reply, broker, call)
    merged = merge(reply)
    return (yield from merged) if type(merged) is GeneratorType else merged


async def _merge_later(merge: Merge, reply: Any, broker: BrokerServer, call: Call) -> Any:
    merged = merge(await reply)
    if type(merged) is not GeneratorType:
        return merged
    from semel.broker.dispatch import Pace

    pace = Pace(broker, call)
    while True:
        try:
            next(merged)
        except StopIteration as done:
            return done.value
        await pace.rest()
