"""A stand-in for a schema registry: the three requests that Confluent's client makes to register and to look up."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class SchemaRegistry:
    """Serves schemas from memory, by HTTP, on a free port of 127.0.0.1."""

    def __init__(self) -> None:
        self.schemas: list[str] = []
        self.subjects: dict[str, list[int]] = {}
        self._lock = threading.Lock()
        registry = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                subject = self.path.split("/")[2].split("?")[0]
                self._answer(registry.register(subject, body["schema"]))

            def do_GET(self) -> None:
                parts = self.path.split("?")[0].split("/")
                number = int(parts[3]) if parts[1:3] == ["schemas", "ids"] else 0
                known = 1 <= number <= len(registry.schemas)
                found: dict[str, Any] = {"schema": registry.schemas[number - 1]} if known else {"error_code": 40403}
                self._answer(found, 200 if known else 404)

            def _answer(self, body: dict[str, Any], code: int = 200) -> None:
                text = json.dumps(body).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, format: str, *arguments: Any) -> None:
                """Not in the output of the tests."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def register(self, subject: str, schema: str) -> dict[str, Any]:
        with self._lock:
            if schema not in self.schemas:
                self.schemas.append(schema)
            number = self.schemas.index(schema) + 1
            versions = self.subjects.setdefault(subject, [])
            if number not in versions:
                versions.append(number)
        return {
            "id": number, "subject": subject, "version": versions.index(number) + 1, "schema": schema,
            "schemaType": "AVRO",
        }  # fmt: skip

    def __enter__(self) -> SchemaRegistry:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
