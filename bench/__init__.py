"""Semel beside Apache Kafka, on the same machine, with the same clients, in turn."""
