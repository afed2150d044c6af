"""How a record is written to a partition exactly once: the broker's half and the producer's half.

Broker: `producer_state`. Client: `accumulator`, `sender`, `sticky_partitioner`.
"""
