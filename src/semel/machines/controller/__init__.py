"""What is decided for the whole cluster: elections, topics, reassignments. docs/replication.md has the rules."""
