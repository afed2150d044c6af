"""Enforces quotas: how much clients may send, read, let the broker work and change, and how long they wait after more.

Guarantees:

- The most specific quota holds, in Kafka's order. A user's quota is shared by all clients of the user, a client id's
  quota by all clients with that id. A quota for both is for that pair alone.
- A client above its quota is answered at once with the time it has to wait, and its connection is not read meanwhile.
  A fetch above the quota is answered without records; the client asks for them again.
- Quotas are for clients. Requests of other brokers of a cluster have none: replicas must keep up.
- Without quotas there is no `Quotas` object, and a request costs nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from semel.broker.stored.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Entity,
    QuotaTable,
)
from semel.errors import ErrorCode, Refused
from semel.machines.quota_rates import SampledRate, TokenBucket, Windows

if TYPE_CHECKING:
    from semel.broker.dispatch import Call
    from semel.broker.observability.metrics import Metrics
    from semel.config import Values
    from semel.wire.messages.fetch import FetchRequest

#: With more clients than this, those that were silent for all windows of a quota are forgotten.
MANY_CLIENTS = 1000
_NANOSECONDS_PER_PERCENT = 1e7

#: A quota, and the user and client id that share it.
_Account = tuple[str, str, str]


class MutationQuota:
    """What one request may change, counted in partitions created and deleted (KIP-599)."""

    __slots__ = ("_bucket", "_is_strict", "_now_ms", "throttle_time_ms")

    def __init__(self, bucket: TokenBucket | None, is_strict: bool, now_ms: Callable[[], int]) -> None:
        self._bucket = bucket
        self._is_strict = is_strict
        self._now_ms = now_ms
        #: How long the client has to wait after this request.
        self.throttle_time_ms = 0

    def take(self, partitions: int) -> None:
        """Count a change before it is made. New clients are refused above the quota, old ones wait after the answer."""
        bucket = self._bucket
        if bucket is None:
            return
        now_ms = self._now_ms()
        if self._is_strict:
            self.throttle_time_ms = bucket.wait_ms(now_ms)
            if self.throttle_time_ms:
                raise Refused(
                    ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                    f"{CONTROLLER_MUTATION_RATE} is used up; try again in {self.throttle_time_ms} ms",
                )
        bucket.record(partitions, now_ms)
        if not self._is_strict:
            self.throttle_time_ms = bucket.wait_ms(now_ms)


class Quotas:
    """Counts what clients do and compares it with their quotas."""

    def __init__(self, store: QuotaTable, settings: Values, metrics: Metrics, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._metrics = metrics
        self._now_ms = now_ms
        self._windows = Windows(settings["quota.window.num"], settings["quota.window.size.seconds"] * 1000)
        self._mutation_windows = Windows(
            settings["controller.quota.window.num"], settings["controller.quota.window.size.seconds"] * 1000
        )
        #: Tells the requests of other brokers; None where there are none.
        self.is_of_a_broker: Callable[[Call], bool] | None = None
        self._rates: dict[_Account, SampledRate] = {}
        self._many = MANY_CLIENTS
        self._buckets: dict[tuple[_Account, float], TokenBucket] = {}
        self._many_buckets = MANY_CLIENTS

    # Finding the quota

    def _quota_of(self, quota: str, call: Call) -> tuple[float, _Account] | None:
        """The quota of a client, and the account it is counted on; None without one."""
        if self.is_of_a_broker is not None and self.is_of_a_broker(call):
            return None
        get, client_id = self._store.get, call.client_id
        # Whoever did not authenticate is the user ANONYMOUS.
        user_name = call.connection.principal.name
        for user in (user_name, None):
            for entity, shared_by in (
                (_entity(user=user, client_id=client_id), (user_name, client_id)),
                (_entity(user=user, client_id=None), (user_name, client_id)),
                (_entity(user=user), (user_name, "")),
            ):
                if (allowed := get(entity, quota)) is not None:
                    return allowed, (quota, *shared_by)
        for entity in (_entity(client_id=client_id), _entity(client_id=None)):
            if (allowed := get(entity, quota)) is not None:
                return allowed, (quota, "", client_id)
        return None

    def _rate(self, account: _Account) -> SampledRate:
        rate = self._rates.get(account)
        if rate is None:
            if len(self._rates) >= self._many:
                now_ms = self._now_ms()
                self._rates = {key: kept for key, kept in self._rates.items() if not kept.is_idle(now_ms)}
                self._many = max(MANY_CLIENTS, 2 * len(self._rates))
            rate = self._rates[account] = SampledRate(self._windows)
        return rate

    def _wait_ms_after(self, quota: str, call: Call, amount: float) -> int:
        """Count `amount`. Returns how long the client has to wait after it."""
        found = self._quota_of(quota, call)
        if found is None:
            return 0
        rate, now_ms = self._rate(found[1]), self._now_ms()
        rate.record(amount, now_ms)
        return rate.wait_ms(found[0], now_ms)

    # Counting

    def bound_fetch(self, request: FetchRequest, call: Call) -> None:
        """Limit a fetch to what its quota allows at all. A larger one would never be answered with records."""
        found = self._quota_of(CONSUMER_BYTE_RATE, call)
        if found is not None:
            most_bytes = int(found[0] * self._windows.whole_s)
            request.max_bytes = min(request.max_bytes, most_bytes)
            request.min_bytes = min(request.min_bytes, request.max_bytes)

    def fetch_wait_ms(self, call: Call, size_bytes: int) -> int:
        """How long a client has to wait instead of getting these bytes; 0 if it gets them."""
        found = self._quota_of(CONSUMER_BYTE_RATE, call)
        if found is None:
            return 0
        rate, now_ms = self._rate(found[1]), self._now_ms()
        rate.record(size_bytes, now_ms)
        wait_ms = rate.wait_ms(found[0], now_ms)
        if wait_ms:
            rate.record(-size_bytes, now_ms)
        return wait_ms

    def produce_wait_ms(self, call: Call, size_bytes: int) -> int:
        """How long a client has to wait after a produce of this size."""
        return self._wait_ms_after(PRODUCER_BYTE_RATE, call, size_bytes)

    def work_wait_ms(self, call: Call, spent_ns: int) -> int:
        """How long a client has to wait after using the broker's thread for this long; at most one window."""
        wait_ms = self._wait_ms_after(REQUEST_PERCENTAGE, call, spent_ns / _NANOSECONDS_PER_PERCENT)
        return min(wait_ms, self._windows.size_ms)

    def mutation(self, call: Call, strict_since: int) -> MutationQuota:
        """What a request may change. Clients of version `strict_since` and later know how to try again."""
        found = self._quota_of(CONTROLLER_MUTATION_RATE, call)
        bucket = None
        if found is not None:
            allowed, account = found
            now_ms = self._now_ms()
            bucket = self._buckets.get((account, allowed))
            if bucket is None:
                if len(self._buckets) >= self._many_buckets:
                    self._buckets = {key: kept for key, kept in self._buckets.items() if not kept.is_idle(now_ms)}
                    self._many_buckets = max(MANY_CLIENTS, 2 * len(self._buckets))
                bucket = self._buckets[account, allowed] = TokenBucket(self._mutation_windows, allowed, now_ms)
        return MutationQuota(bucket, call.version >= strict_since, self._now_ms)

    def connection_wait_ms(self, address: str) -> int:
        """How long a new connection waits before it is closed; 0 if it may stay."""
        allowed = self._store.get(((IP, address),), CONNECTION_CREATION_RATE)
        if allowed is None:
            allowed = self._store.get(((IP, None),), CONNECTION_CREATION_RATE)
        if allowed is None:
            return 0
        rate, now_ms = self._rate((CONNECTION_CREATION_RATE, address, "")), self._now_ms()
        rate.record(1, now_ms)
        wait_ms = rate.wait_ms(allowed, now_ms)
        if wait_ms:
            rate.record(-1, now_ms)
        return min(wait_ms, self._windows.size_ms)

    def throttle(self, call: Call, reply: Any, wait_ms: int) -> None:
        """Tell a client to wait, and do not read its connection meanwhile."""
        wait_ms = max(wait_ms, reply.throttle_time_ms if hasattr(reply, "throttle_time_ms") else 0)
        if wait_ms > 0:
            self._metrics.quota_throttles += 1
            if hasattr(reply, "throttle_time_ms"):
                reply.throttle_time_ms = wait_ms
            call.connection.mute(wait_ms / 1000)


def _entity(**names: str | None) -> Entity:
    return tuple(sorted((CLIENT_ID if kind == "client_id" else USER, name) for kind, name in names.items()))
