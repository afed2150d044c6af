"""The loops over records: the compiled ones where the extension was built, their Python twins where it was not."""

from __future__ import annotations

try:
    from ._speedups import (
        Batch,
        RecordWalk,
        build_pairs,
        check_framing,
        decode_columns,
        encode_columns,
        murmur2,
        partition_for_key,
        partition_rows,
        read_records,
        retain_records,
        write_record,
    )

    COMPILED = True
except ImportError:
    from ._pure import (
        RecordWalk,
        build_pairs,
        check_framing,
        decode_columns,
        encode_columns,
        murmur2,
        partition_for_key,
        partition_rows,
        read_records,
        retain_records,
        write_record,
    )
    from ._view import Batch

    COMPILED = False

__all__ = [
    "COMPILED",
    "Batch",
    "RecordWalk",
    "build_pairs",
    "check_framing",
    "decode_columns",
    "encode_columns",
    "murmur2",
    "partition_for_key",
    "partition_rows",
    "read_records",
    "retain_records",
    "write_record",
]
