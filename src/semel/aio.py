"""The clients for asyncio: the same as `semel.Producer` and the others, to be awaited.

>>> import asyncio, semel
>>> async def send_one():
...     async with semel.aio.Producer({"bootstrap.servers": broker}) as producer:
...         delivery = await producer.send("telegrams", "hello")
...         return (await delivery).offset
>>> asyncio.run(send_one())
0
"""

from semel.client.admin.admin import AsyncAdmin as Admin
from semel.client.consumer.consumer import AsyncConsumer as Consumer
from semel.client.producer.producer import AsyncProducer as Producer
from semel.client.session import AsyncTransactSession as TransactSession

__all__ = ["Admin", "Consumer", "Producer", "TransactSession"]
