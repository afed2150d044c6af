"""How a record gets into a partition once: the partition's memory of its producers, and the producer's half.

Broker: `producer_state`. Client: `accumulator`, `sender`, `sticky_partitioner`.
"""
