"""The consumer group protocol (KIP-848): one heartbeat that joins, stays and leaves.

Broker: `group`, `heartbeat`, `reconciliation`, `sessions`, `records`, `classic_members`, `assignors`.
Client: `member`.
"""
