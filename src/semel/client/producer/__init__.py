"""The producer: `producer` is what users call, `send_loop` is the one task that sends."""
