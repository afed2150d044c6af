"""Changes into multis: as few as fit the bound, and what belongs together stays together (Z2).

ZooKeeper drops the connection of a client that sends more than 1 MB. Half of that leaves room.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from semel.machines.znodes.operations import Multi, Operation, multi_size_bytes

MULTI_MAX_BYTES = 512 * 1024

#: Operations that are carried out together or not at all.
Change = tuple[Operation, ...]


def pack(changes: Iterable[Change], first: Sequence[Operation] = (), bound_bytes: int = MULTI_MAX_BYTES) -> list[Multi]:
    """`first` begins every multi. The same operation is in a multi once: several changes may check the same node."""
    multis: list[Multi] = []
    operations = dict.fromkeys(first)
    size_bytes = empty_bytes = multi_size_bytes(tuple(operations))
    for change in changes:
        added_bytes = _added_bytes(change, operations)
        if size_bytes + added_bytes > bound_bytes and len(operations) > len(first):
            multis.append(Multi(operations))
            operations, size_bytes = dict.fromkeys(first), empty_bytes
            added_bytes = _added_bytes(change, operations)
        operations.update(dict.fromkeys(change))
        size_bytes += added_bytes
    if len(operations) > len(first):
        multis.append(Multi(operations))
    return multis


def _added_bytes(change: Change, operations: dict[Operation, None]) -> int:
    new = tuple(operation for operation in change if operation not in operations)
    return multi_size_bytes(new) - multi_size_bytes(())
