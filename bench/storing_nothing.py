"""`python -m bench.storing_nothing broker start ...`: the broker, but a produced batch is answered and dropped.

What a client reaches against it bounds what it can reach against any broker on the same machine.
"""

from __future__ import annotations

from typing import Any

from semel.broker.handlers import produce as handler
from semel.cli import main
from semel.wire.messages.produce import ProduceRequest, ProduceResponse


def dropped(broker: Any, request: ProduceRequest, call: Any) -> ProduceResponse:
    """Every batch is at offset 0, and nowhere."""
    return ProduceResponse(
        responses=[
            ProduceResponse.TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    ProduceResponse.PartitionProduceResponse(index=part.index, base_offset=0, log_start_offset=0)
                    for part in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


handler.produce = dropped

if __name__ == "__main__":
    main()
