"""Fails while it is imported."""

raise ValueError("the table of devices is empty")
