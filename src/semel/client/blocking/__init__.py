"""The blocking clients: the asyncio clients on an event loop in a thread of their own."""
