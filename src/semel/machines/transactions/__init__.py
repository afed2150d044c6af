"""Transactions: the coordinator's half and the producer's half.

Broker: `coordinator` with `states` (the table), `metadata`, `shard`, `records`, `replies`.
Client: `producer` with `producer_states` (the table) and `requests`.
"""
