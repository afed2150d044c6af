"""A consumer's life in a group: `classic_member` and `consumer_member` (KIP-848), over `semel.machines.groups`."""
