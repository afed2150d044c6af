"""Which partition a key goes to: the same one as with Kafka's own clients, so that keys stay together across them."""

from __future__ import annotations

from ._select import murmur2, partition_for_key

__all__ = ["murmur2", "partition_for_key"]
