"""The client's way to the brokers: connections, metadata, coordinators, throttling."""
