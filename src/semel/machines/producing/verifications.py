"""The verifications of one partition: batches whose transaction the coordinator is being asked about.

It guarantees that a batch which waits for the coordinator is not overtaken by a later one of the same producer and
epoch (K-14920), and that a coordinator's word given before a marker is of no use after it (K-14884).
"""

from __future__ import annotations

from semel.errors import ErrorCode, Refused

#: A coordinator that says so will not agree later either.
_NEVER = frozenset(
    (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
)


class Guard:
    """One verification that is in progress. It is valid until data or a marker of that producer is written.

    Guards are compared by identity: one taken before a marker is never equal to one taken after it.
    """

    __slots__ = ()


class _Verification:
    __slots__ = ("guard", "lowest_sequence", "supports_epoch_bump", "timestamp_ms")

    def __init__(self, sequence: int, timestamp_ms: int, supports_epoch_bump: bool) -> None:
        self.guard = Guard()
        self.lowest_sequence = sequence
        self.timestamp_ms = timestamp_ms
        self.supports_epoch_bump = supports_epoch_bump


class Verifications:
    """By producer id and epoch: what a fenced producer still sends is nothing to its successor."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[int, dict[int, _Verification]] = {}

    def __bool__(self) -> bool:
        return bool(self._of)

    def begin(
        self, producer_id: int, producer_epoch: int, first_sequence: int, now_ms: int, supports_epoch_bump: bool
    ) -> Guard:
        """A guard to hold while the coordinator is asked about a batch with this first sequence."""
        verification = self._find(producer_id, producer_epoch)
        if verification is None:
            verification = _Verification(first_sequence, now_ms, supports_epoch_bump)
            self._of.setdefault(producer_id, {})[producer_epoch] = verification
        else:
            verification.lowest_sequence = min(verification.lowest_sequence, first_sequence)
        return verification.guard

    def holds(self, producer_id: int, producer_epoch: int, guard: Guard | None) -> bool:
        """Whether this guard is still valid."""
        verification = self._find(producer_id, producer_epoch)
        return guard is not None and verification is not None and verification.guard is guard

    def is_of(self, producer_id: int, producer_epoch: int) -> bool:
        """Whether a batch of this producer and epoch waits."""
        return self._find(producer_id, producer_epoch) is not None

    def check_sequence(self, producer_id: int, producer_epoch: int, first_sequence: int, *, known: bool) -> None:
        """While a batch waits for its verification, a later one must not overtake it."""
        verification = self._find(producer_id, producer_epoch)
        if verification is None:
            return
        if not known and verification.supports_epoch_bump and first_sequence != 0:
            raise Refused(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} is new here and begins at sequence {first_sequence}, not 0",
            )
        if first_sequence > verification.lowest_sequence:
            raise Refused(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"sequence {first_sequence} of producer {producer_id} arrived while {verification.lowest_sequence} "
                "still waits for its verification",
            )

    def forget(self, producer_id: int) -> None:
        """Data or a marker of this producer was written."""
        self._of.pop(producer_id, None)

    def answered(self, producer_id: int, producer_epoch: int, code: ErrorCode) -> None:
        """The coordinator's answer. If it does not know this producer, or has fenced it, none of its batches is coming:
        there is nothing to wait for, and anybody could fill the memory with such verifications."""
        if code in _NEVER:
            self._give_up(producer_id, producer_epoch)

    def expire(self, now_ms: int, expiration_ms: int) -> None:
        """Forget what nobody has finished in all that time."""
        for producer_id, of_producer in list(self._of.items()):
            for producer_epoch, verification in list(of_producer.items()):
                if now_ms - verification.timestamp_ms >= expiration_ms:
                    self._give_up(producer_id, producer_epoch)

    def _give_up(self, producer_id: int, producer_epoch: int) -> None:
        of_producer = self._of.get(producer_id, {})
        if of_producer.pop(producer_epoch, None) is not None and not of_producer:
            del self._of[producer_id]

    def _find(self, producer_id: int, producer_epoch: int) -> _Verification | None:
        of_producer = self._of.get(producer_id)
        return None if of_producer is None else of_producer.get(producer_epoch)
