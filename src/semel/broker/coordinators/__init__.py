"""Runs the coordinators on their internal topics: one host, a shell for each, and the marker sender."""
