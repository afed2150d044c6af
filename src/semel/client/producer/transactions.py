"""A producer's transactions: what its user calls, around the machine that decides (`machines.transactions.producer`).

Guarantees: every call takes max.block.ms at most, with all that it waits for; a call that timed out, was cancelled or
interrupted goes on in the background and can be made again to wait further, or to hear how it ended if it is over by
then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from semel.client.arguments import as_group, as_identity
from semel.client.offset_arguments import Offsets, as_offsets
from semel.client.producer.send_loop import SendLoop
from semel.config import Values
from semel.errors import ErrorCode, KafkaError, Misuse, RequestTimedOut, error_for
from semel.machines.transactions.producer import GroupMetadata, ProducerState, TransactionManager
from semel.machines.values import ProducerIdentity

_OPEN = (
    ProducerState.IN_TRANSACTION,
    ProducerState.PREPARED,
    ProducerState.COMMITTING,
    ProducerState.ABORTING,
    ProducerState.ABORTABLE_ERROR,
)
_SETTLED = (
    ProducerState.UNINITIALIZED,
    ProducerState.READY,
    ProducerState.PREPARED,
    ProducerState.ABORTABLE_ERROR,
    ProducerState.FATAL_ERROR,
)


class _Call:
    """A call that begins or ends a transaction."""

    __slots__ = ("heard", "lost", "method")

    def __init__(self, method: str) -> None:
        self.method = method
        #: It returned.
        self.heard = False
        #: The thread that waits for the loop was interrupted, and may not have got what was returned.
        self.lost = False


class ProducerTransactions:
    """The part of a producer for transactions: its public methods are methods of the producer."""

    def __init__(self, config: Values, sending: SendLoop) -> None:
        self._config = config
        self._sending = sending
        self._manager, self._lock = sending.manager, sending.lock
        #: The last call since the last begin. Its caller may not have heard the outcome.
        self._last: _Call | None = None

    @property
    def identity(self) -> ProducerIdentity | None:
        return None if self._manager is None else self._manager.identity

    @property
    def state(self) -> ProducerState:
        return ProducerState.READY if self._manager is None else self._manager.state

    @property
    def is_open(self) -> bool:
        return self._manager is not None and self._manager.state in _OPEN

    async def init_transactions(self, *, keep_prepared: bool = False) -> ProducerIdentity | None:
        """Take over the transactional id: fence its former owner and end the transaction that it left open.

        With `keep_prepared` (two-phase commit) a prepared transaction is kept for `complete_transaction`, and its
        identity is returned.
        """
        manager = self._need_manager("init_transactions")
        self._sending.check_open()
        if self._has_ended_unheard("init_transactions", manager):
            return manager.prepared
        with self._lock:
            manager.initialize(keep_prepared=keep_prepared)
        await self._finish("init_transactions")
        return manager.prepared

    async def begin_transaction(self) -> None:
        """Open a transaction. Records and offsets sent from now on become visible together, or not at all."""
        self.begin_now()

    def begin_now(self) -> None:
        """Open a transaction. Nothing has to be waited for, so any thread may call this."""
        self._sending.check_open()
        manager = self._need_manager("begin_transaction")
        with self._lock:
            manager.begin()
            self._last = None

    def reached_nobody(self) -> None:
        """The caller of the last method was interrupted. From any thread."""
        if self._last is not None:
            self._last.lost = True

    async def send_offsets_to_transaction(
        self,
        offsets: Offsets,
        group_metadata: GroupMetadata | str,
    ) -> None:
        """Commit a group's offsets with the open transaction. Pass `consumer.group_metadata()`, not only a group id."""
        given, group = as_offsets(offsets), as_group(group_metadata)
        manager = self._need_manager("send_offsets_to_transaction")
        self._sending.check_open()
        with self._lock:
            manager.add_offsets(given, group)
        self._sending.wake()
        async with self._within_max_block("send_offsets_to_transaction"):
            await self._wait_until(lambda: not manager.offsets_pending)
        if manager.error is not None:
            raise manager.error

    async def prepare_transaction(self) -> ProducerIdentity:
        """Phase one of a two-phase commit (KIP-939): flush, and promise to commit. Store the returned identity."""
        manager = self._need_manager("prepare_transaction")
        self._sending.check_open()
        if self._has_ended_unheard("prepare_transaction", manager):
            return manager.identity
        async with self._within_max_block("prepare_transaction"):
            await self._sending.flush()
        with self._lock:
            manager.prepare()
            self._last = _Call("prepare_transaction")
            self._last.heard = True
        return manager.identity

    async def complete_transaction(self, decided: ProducerIdentity) -> None:
        """Phase two: commit if `decided` is the identity of the prepared transaction, and abort otherwise."""
        given = as_identity(decided)
        manager = self._need_manager("complete_transaction")
        self._sending.check_open()
        if self._has_ended_unheard("complete_transaction", manager):
            return
        with self._lock:
            manager.complete(given)
        await self._finish("complete_transaction")

    async def commit_transaction(self) -> None:
        """Wait until every record of the transaction is written, then make all of them visible at once.

        Takes max.block.ms at most. After a timeout, or if it was cancelled, call it again to wait further.
        """
        manager = self._need_manager("commit_transaction")
        self._sending.check_open()
        if self._has_ended_unheard("commit_transaction", manager):
            return
        async with self._within_max_block("commit_transaction"):
            if manager.state is ProducerState.IN_TRANSACTION:
                await self._sending.flush()
            with self._lock:
                manager.commit()
            await self._wait_for_outcome("commit_transaction", manager)
        if manager.error is not None:
            raise manager.error

    async def abort_transaction(self) -> None:
        """Abort the transaction: no read_committed reader will see its records."""
        manager = self._need_manager("abort_transaction")
        self._sending.check_open()
        if self._has_ended_unheard("abort_transaction", manager):
            return
        with self._lock:
            manager.abort()
            why = "the transaction was aborted before this record was sent"
            self._sending.sender.give_up(error_for(ErrorCode.TRANSACTION_ABORTABLE, why), sent_too=False)
        await self._finish("abort_transaction")

    async def abort_after(self, error: BaseException) -> None:
        """Abort because of `error`, which is raised by the caller even if the abort fails too.

        A transaction whose commit was requested cannot be aborted any more: call `commit_transaction` again.
        """
        if not self.is_open or self.state is ProducerState.COMMITTING:
            return
        try:
            await self.abort_transaction()
        except KafkaError as failed:
            error.add_note(f"the abort failed too: {failed}")

    async def _finish(self, method: str) -> None:
        """Wait for the outcome of the step that was started, and raise it if it is an error."""
        manager = self._need_manager(method)
        async with self._within_max_block(method):
            await self._wait_for_outcome(method, manager)
        if manager.error is not None:
            raise manager.error

    async def _wait_for_outcome(self, method: str, manager: TransactionManager) -> None:
        self._sending.wake()
        call = self._last = _Call(method)
        await self._wait_until(lambda: manager.state in _SETTLED)
        call.heard = True

    def _has_ended_unheard(self, method: str, manager: TransactionManager) -> bool:
        """Whether this is the second call of a method that has ended well since its first call gave up waiting."""
        last = self._last
        if last is None or (last.heard and not last.lost):
            return False
        if manager.state not in (ProducerState.READY, ProducerState.PREPARED):
            return False
        if last.method == method:
            last.heard, last.lost = True, False
            return True
        if {last.method, method} == {"commit_transaction", "abort_transaction"}:
            did = "committed" if method == "abort_transaction" else "aborted"
            why = f"{method}() came too late: {last.method}(), which was not waited for, has {did} the transaction"
            raise Misuse(ErrorCode.INVALID_TXN_STATE, why)
        return False

    async def _wait_until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self._sending.check_running()
            await self._sending.wait_for_change()

    @asynccontextmanager
    async def _within_max_block(self, method: str) -> AsyncIterator[None]:
        """Limit all that a call waits for to max.block.ms."""
        limit_ms = self._config["max.block.ms"]
        try:
            async with asyncio.timeout(limit_ms / 1000):
                yield
        except TimeoutError:
            last_error = self._sending.coordinator_error
            raise RequestTimedOut(
                ErrorCode.REQUEST_TIMED_OUT,
                f"{method}() did not finish within max.block.ms={limit_ms}; it continues: call {method}() again to "
                "wait further" + (f". The last error: {last_error}" if last_error else ""),
            ) from None

    def _need_manager(self, method: str) -> TransactionManager:
        if self._manager is None:
            raise Misuse(ErrorCode.INVALID_TXN_STATE, f"{method}() needs enable.idempotence=true and transactional.id")
        return self._manager
