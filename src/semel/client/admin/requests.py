"""How the parts of the admin client send requests: each call has one deadline, and is retried until then."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable
from contextvars import ContextVar
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from semel.client.cluster.cluster import Cluster, Leader, Target
from semel.config import Values
from semel.errors import ErrorCode, Misuse, RequestTimedOut
from semel.machines.values import TopicPartition

P = ParamSpec("P")
T = TypeVar("T")

#: The deadline of the current call, in the loop's time; None outside of a call.
_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)
#: Each request keeps the deadline itself and reports what it waited for. This is the margin for those that do not.
_SLACK_S = 0.5


class AdminRequests:
    """Sends the requests of one admin client. Every part of the client holds the same one."""

    def __init__(self, cluster: Cluster, config: Values) -> None:
        self.cluster = cluster
        self.api_timeout_ms: int = config["default.api.timeout.ms"]

    @property
    def timeout_ms(self) -> int:
        """How much time the current call has left."""
        deadline = _deadline.get()
        if deadline is None:
            return self.api_timeout_ms
        return max(1, int((deadline - asyncio.get_running_loop().time()) * 1000))

    async def send(self, request: Any, to: Target = None) -> Any:
        """Send until the response is final, or until the call has no time left."""
        return await self.cluster.request_retrying(request, to=to, timeout_ms=self.timeout_ms)

    async def send_to_leader(self, request: Any, partition: TopicPartition) -> Any:
        """As `send`, to the partition's leader. A partition that its topic does not have raises Misuse."""
        info = await self.cluster.topic(partition.topic, timeout_ms=self.timeout_ms)
        if partition.partition >= len(info.partitions):
            await self.refresh([partition.topic])
            info = await self.cluster.topic(partition.topic, timeout_ms=self.timeout_ms)
        if partition.partition >= len(info.partitions):
            why = f"topic '{partition.topic}' has partitions 0 to {len(info.partitions) - 1}, not {partition.partition}"
            raise Misuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, why)
        return await self.send(request, Leader(*partition))

    async def refresh(self, topics: Iterable[str] | None) -> None:
        """Fetch metadata of these topics (None: all), retrying until the call has no time left."""
        await self.cluster.refresh_retrying(topics, timeout_ms=self.timeout_ms)


class AdminPart(Protocol):
    """What `within_api_timeout` needs of the object whose method it wraps."""

    _requests: AdminRequests


Part = TypeVar("Part", bound=AdminPart)


def within_api_timeout(
    method: Callable[Concatenate[Part, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Part, P], Coroutine[Any, Any, T]]:
    """Limit a call to default.api.timeout.ms, with all requests that it sends, and retry until then."""

    @functools.wraps(method)
    async def run(self: Part, /, *arguments: P.args, **named: P.kwargs) -> T:
        if _deadline.get() is not None:
            return await method(self, *arguments, **named)
        limit_ms = self._requests.api_timeout_ms
        token = _deadline.set(asyncio.get_running_loop().time() + limit_ms / 1000)
        within = f"{method.__name__}() did not finish within default.api.timeout.ms={limit_ms}"
        try:
            async with asyncio.timeout(limit_ms / 1000 + _SLACK_S):
                return await method(self, *arguments, **named)
        except RequestTimedOut as error:
            raise RequestTimedOut(error.code, f"{within}: {error.why}") from error
        except TimeoutError:
            raise RequestTimedOut(ErrorCode.REQUEST_TIMED_OUT, within) from None
        finally:
            _deadline.reset(token)

    return run
