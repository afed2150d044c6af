"""A consumer's reading: where it stands in each partition, and which batches read_committed hides."""
