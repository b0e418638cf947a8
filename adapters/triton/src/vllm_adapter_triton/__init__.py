"""Kernels in Triton for any device that Triton compiles for; descriptors name their functions.

Modules `*_kernels` need Triton, and are imported at the first call.
"""

__version__ = "0.1.0"
