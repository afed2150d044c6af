"""Control batches: the one-record batches with which a coordinator ends a transaction in a partition."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from semel.errors import ErrorCode, Refused

from .batch import Batch, read_records
from .building import build_pairs
from .layout import CONTROL, TRANSACTIONAL

#: version, then 0 abort or 1 commit
_KEY = struct.Struct(">hh")
#: version, then the coordinator's epoch
_VALUE = struct.Struct(">hi")
_ABORT, _COMMIT = 0, 1
_ABORT_KEY, _COMMIT_KEY = _KEY.pack(0, _ABORT), _KEY.pack(0, _COMMIT)


@dataclass(frozen=True, slots=True)
class TransactionMarker:
    """How a transaction ended, and the epoch of the coordinator that wrote so."""

    commit: bool
    coordinator_epoch: int


def control_batch(
    producer_id: int,
    producer_epoch: int,
    commit: bool,
    coordinator_epoch: int,
    timestamp_ms: int,
    base_offset: int = 0,
    leader_epoch: int = 0,
) -> bytearray:
    """The marker that ends this producer's transaction in one partition."""
    return build_pairs(
        ((_COMMIT_KEY if commit else _ABORT_KEY, _VALUE.pack(0, coordinator_epoch)),),
        timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=TRANSACTIONAL | CONTROL,
        base_offset=base_offset,
        leader_epoch=leader_epoch,
    )


def read_marker(batch: Batch) -> TransactionMarker:
    """Read a control batch. Refused (INVALID_RECORD) if it is not the end of a transaction."""
    records = list(read_records(batch)) if batch.is_control else []
    if len(records) != 1:
        raise Refused(ErrorCode.INVALID_RECORD, "a control batch holds exactly one record")
    key, value = records[0].key, records[0].value
    if key is None or len(key) < _KEY.size or value is None or len(value) < _VALUE.size:
        raise Refused(ErrorCode.INVALID_RECORD, "a control record is too short to be an end of transaction")
    version, kind = _KEY.unpack_from(key)
    if version < 0 or kind not in (_ABORT, _COMMIT):
        raise Refused(ErrorCode.INVALID_RECORD, f"control record of version {version}, type {kind} ends no transaction")
    # Later versions only append fields, so the fields of version 0 can be read from any version.
    _, coordinator_epoch = _VALUE.unpack_from(value)
    return TransactionMarker(kind == _COMMIT, coordinator_epoch)
