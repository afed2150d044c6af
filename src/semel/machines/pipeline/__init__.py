"""An exactly-once pipeline: what its driver decides about a micro-batch. `semel.spark` does what is decided here."""
