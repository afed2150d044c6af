"""Framed requests and responses over sockets.

What crosses a connection is a length and that many bytes. This room knows frames and their order; it knows nothing of
topics.
"""
