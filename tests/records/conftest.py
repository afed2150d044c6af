"""Hypothesis as these tests need it: a first call may load a codec or Arrow, which says nothing about the code."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("records", deadline=None)
settings.load_profile("records")
