"""Durable partitions in Apache Kafka's own file formats: segments, indexes, snapshots, recovery, compaction."""
