"""What a consumer reads: its position in each partition, and the batches that read_committed hides."""
