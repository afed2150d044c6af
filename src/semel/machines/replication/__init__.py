"""One replica of a partition: what it may do as leader and as follower. docs/replication.md has the numbered rules."""
