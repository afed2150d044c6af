"""How the client reaches the brokers: connections, metadata, coordinators, throttling."""
