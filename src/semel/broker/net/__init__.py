"""Framed requests and responses over sockets.

A frame is a length and that many bytes. This room knows frames and their order; it knows nothing of topics.
"""
