"""The client: producer, consumer and admin, written once for asyncio, and thin blocking clients on top of them.

`semel.machines` decides what is sent next and what follows from an error. The modules here own the sockets and the
clock. Import what you need from `semel` itself: `semel.Producer`, `semel.Consumer`, `semel.Admin`.
"""
