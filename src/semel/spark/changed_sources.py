"""A query that reads other sources than its checkpoint was made with.

Spark stores the offsets of a query's sources in the order in which the query names them. If they change places, each
is given the offsets of another one, and takes its own topics for new ones, which are read from their beginning.
Guarantees: no topic that the checkpoint has read is read again because of that.
"""

from __future__ import annotations

from collections.abc import Sequence

from .checkpoint import BatchOffsets, Checkpoint
from .frames import StreamingSource
from .preflight import PipelineMistake
from .source_options import SourceOptions

_BY_ORDER = "Spark tells the sources of a query apart by their order"


def refuse_changed_sources(sources: Sequence[StreamingSource], checkpoint: Checkpoint, batch_id: int) -> None:
    """Refuse sources that do not fit to the last offsets of the checkpoint. `batch_id` is the batch that is next."""
    known = checkpoint.offsets(batch_id) if checkpoint.is_begun(batch_id) else checkpoint.begins(batch_id)
    refuse_other_sources(sources, known, checkpoint.location)


def refuse_other_sources(sources: Sequence[StreamingSource], known: BatchOffsets, location: str) -> None:
    """Refuse sources that do not fit to these offsets. Sources that have names are told apart by these."""
    lines = known.by_source
    if known.named or not lines:
        return
    if len(lines) != len(sources):
        raise PipelineMistake(
            f"checkpoint='{location}' has the offsets of {_count(len(lines))}, and the query reads "
            f"{_count(len(sources))}: {_BY_ORDER}. Read what the checkpoint was made with, or begin a new query, with "
            "a checkpoint and a transactional_id of its own"
        )
    topics = [{place.topic for place in offsets} for offsets in lines]
    for here, source in enumerate(sources):
        options = SourceOptions.parse(source.options) if source.format == "semel" else None
        if options is None or not topics[here]:
            continue
        for there, others in enumerate(topics):
            moved = sorted(topic for topic in others - topics[here] if options.reads(topic))
            if moved:
                raise PipelineMistake(
                    f"the query reads '{moved[0]}' as its source number {here + 1}, and checkpoint='{location}' has it "
                    f"as number {there + 1}: {_BY_ORDER}, and would read '{moved[0]}' again from its beginning. Name "
                    "the sources in the order that they had"
                )
        if options.are_of_another(topics[here]):
            raise PipelineMistake(options.other_topics(topics[here], f"checkpoint='{location}'"))


def _count(sources: int) -> str:
    return "1 source" if sources == 1 else f"{sources} sources"
