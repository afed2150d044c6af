"""The classic group protocol: JoinGroup, SyncGroup, Heartbeat, LeaveGroup.

Broker: `group`, `rebalance`, `records`. Client: `member`, `assignors`.
"""
