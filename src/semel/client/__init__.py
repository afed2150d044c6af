"""The client: producer, consumer and admin, written once for asyncio, with one thin blocking face over it.

What a request may do, and what to do when it fails, is decided in `semel.machines`; the modules here own the sockets
and the clock. Import what you need from `semel` itself: `semel.Producer`, `semel.Consumer`, `semel.Admin`.
"""
