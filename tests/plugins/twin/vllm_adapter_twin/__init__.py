"""Misbehaves on purpose, for tests: never published."""
