"""Needs a vendor library that is not on this machine."""

import ctypes

LIBRARY = ctypes.CDLL("libacme_runtime_that_is_missing.so.7")


class Plugin:
    """Never reached."""
