"""The names of the compression codecs. A codec's number, as it stands in a record batch, is its place in `CODECS`."""

from __future__ import annotations

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

#: What a topic's `compression.type` may be, besides the names of codecs: no compression, or whatever was sent.
UNCOMPRESSED = "uncompressed"
AS_SENT = "producer"
TOPIC_CODECS = (UNCOMPRESSED, *reversed(CODECS[1:]), AS_SENT)


def topic_codec(compression_type: str) -> int | None:
    """The number of the codec that a topic's `compression.type` asks for; None where batches stay as they were sent."""
    if compression_type == AS_SENT:
        return None
    return 0 if compression_type == UNCOMPRESSED else CODECS.index(compression_type)
