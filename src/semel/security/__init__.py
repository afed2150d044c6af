"""What protects a client's connection: TLS contexts, credentials, tokens."""
