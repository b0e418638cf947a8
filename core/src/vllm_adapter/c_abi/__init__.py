"""A chip's C library by ctypes, without torch: the ABI's mirror, loading, typed errors."""
