"""A query that reads other sources than its checkpoint was made with.

Spark stores the offsets of a query's sources in the order in which the query names them. If they change places, each
is given the offsets of another one, and takes its own topics for new ones, which are read from their beginning.
Guarantees: no topic that the checkpoint has read is read again because of that. A topic of another life, which was
deleted and created again between two starts, is not read at the offsets of the old one without a word.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from semel.machines.pipeline.driver_transaction import PipelineProgress

from .checkpoint import BatchOffsets, Checkpoint
from .frames import StreamingSource
from .preflight import PipelineMistake
from .range_reader import DataLost
from .source_options import EARLIEST, SourceOptions
from .source_plan import as_spark

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
    parsed = [SourceOptions.parse(source.options) if source.format == "semel" else None for source in sources]
    for here, options in enumerate(parsed):
        if options is None or not lines[here]:
            continue
        for there, other in enumerate(parsed):
            new = [place for place in sorted(lines[there]) if place not in lines[here] and options.reads(place)]
            moved = [place for place in new if other is not None and not other.reads(place)]
            if moved:
                raise PipelineMistake(
                    f"the query reads {moved[0]} in its source number {here + 1}, and checkpoint='{location}' has it "
                    f"in number {there + 1}: {_BY_ORDER}, and would read {moved[0]} again from its beginning. Name the "
                    "sources in the order that they had"
                )
        if options.are_of_another(lines[here]):
            raise PipelineMistake(options.nothing_of(lines[here], f"checkpoint='{location}'"))


def refuse_deleted_topics(
    sources: Sequence[StreamingSource],
    here: Sequence[bool],
    checkpoint: Checkpoint,
    committed: PipelineProgress,
    transactional_id: str,
) -> None:
    """Refuse a source topic that was deleted since the last batch, and created again or not.

    With a topic the brokers delete the offsets that groups have of it. Those of the checkpoint would be taken for
    offsets of the new topic, and what lies before them would never be read. `here` are the sources on this cluster.
    """
    marker = committed.marker
    if marker is None or not any(here) or not checkpoint.is_begun(marker.batch_id):
        return
    ends = checkpoint.offsets(marker.batch_id).among(here)
    parsed = [SourceOptions.parse(source.options) for source in sources if source.format == "semel"]
    strict = [options for options in parsed if options.fail_on_data_loss]
    missing = ends.keys() - committed.offsets.keys() - committed.of_others.keys()
    gone = {place.topic for place in missing if any(options.reads(place) for options in strict)}
    if gone:
        begin = as_spark({place: EARLIEST if place.topic in gone else end for place, end in ends.items()})
        raise DataLost(
            f"topic '{min(gone)}' was deleted since batch {marker.batch_id} of '{transactional_id}' was committed: the "
            "brokers have no offsets of it any more, and those of the checkpoint mean nothing in a new topic of this "
            "name. To read that from its beginning, begin a new query: an empty checkpoint, a transactional_id of its "
            f"own, and startingOffsets={json.dumps(begin)}. To go on at the old offsets, set failOnDataLoss=false"
        )


def _count(sources: int) -> str:
    return "1 source" if sources == 1 else f"{sources} sources"
