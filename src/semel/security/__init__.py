"""What a broker and a client both need to protect a connection: TLS contexts, credentials, tokens."""
