"""A chip's C library, by ctypes: loading it, its runtime, and prepared calls of its operators."""
