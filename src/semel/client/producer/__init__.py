"""The producer. Users call `producer`; `send_loop` is the one task that sends, the others are parts of the producer."""
