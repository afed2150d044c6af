"""The partition of a key: the same as with Kafka's own clients, so that one key stays in one partition."""

from __future__ import annotations

from ._select import murmur2, partition_for_key

__all__ = ["murmur2", "partition_for_key"]
