"""What the parts of the admin client share: a cluster, a deadline, and asking until there is a final answer."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterable
from contextvars import ContextVar
from typing import Any, Concatenate, ParamSpec, TypeVar

from semel.client.cluster.cluster import Cluster, Leader, Target
from semel.config import Values
from semel.errors import ErrorCode, Misuse, RequestTimedOut
from semel.machines.values import TopicPartition

P = ParamSpec("P")
T = TypeVar("T")
Part = TypeVar("Part", bound="AdminPart")

#: When the call that is being made must be over, in the loop's time; None outside of any.
_deadline: ContextVar[float | None] = ContextVar("deadline", default=None)
#: Each step keeps to the deadline itself and says what it waited for. This is for those that do not.
_SLACK_S = 0.5


def within_api_timeout(
    method: Callable[Concatenate[Part, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Part, P], Coroutine[Any, Any, T]]:
    """All steps of a call together take default.api.timeout.ms at most, and go on trying until then."""

    @functools.wraps(method)
    async def run(self: Part, /, *arguments: P.args, **named: P.kwargs) -> T:
        if _deadline.get() is not None:
            return await method(self, *arguments, **named)
        limit_ms = self.config["default.api.timeout.ms"]
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


class AdminPart:
    """One part of the admin client. Whoever puts the parts together sets `cluster` and `config`."""

    cluster: Cluster
    config: Values

    @property
    def _timeout_ms(self) -> int:
        """How much time is left of the call that is being made."""
        deadline = _deadline.get()
        if deadline is None:
            return int(self.config["default.api.timeout.ms"])
        return max(1, int((deadline - asyncio.get_running_loop().time()) * 1000))

    async def _ask(self, request: Any, to: Target = None) -> Any:
        """Send until the answer is final, for as long as the call may take."""
        return await self.cluster.request_retrying(request, to=to, timeout_ms=self._timeout_ms)

    async def _ask_leader(self, request: Any, partition: TopicPartition) -> Any:
        """As `_ask`, of the partition's leader; one that its topic does not have is a Misuse."""
        info = await self.cluster.topic(partition.topic, timeout_ms=self._timeout_ms)
        if partition.partition >= len(info.partitions):
            await self._refresh([partition.topic])
            info = await self.cluster.topic(partition.topic, timeout_ms=self._timeout_ms)
        if partition.partition >= len(info.partitions):
            why = f"topic '{partition.topic}' has partitions 0 to {len(info.partitions) - 1}, not {partition.partition}"
            raise Misuse(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, why)
        return await self._ask(request, Leader(*partition))

    async def _refresh(self, topics: Iterable[str] | None) -> None:
        """Ask for metadata until there is an answer, for as long as the call may take."""
        await self.cluster.refresh_retrying(topics, timeout_ms=self._timeout_ms)
