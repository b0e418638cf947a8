"""Hardware adapters for large language models. Importing this imports nothing heavy."""

__version__ = "0.1.0"
