"""Framed requests and responses over sockets, for both sides of a conversation.

What crosses a connection is a length and that many bytes. This room knows frames and order; it knows nothing of
topics, and only the client half knows how a response is matched to its request.
"""
