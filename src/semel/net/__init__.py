"""What both sides of a conversation between processes use: the connection of a client, and of one broker to another."""
