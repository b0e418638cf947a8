"""Kernels in Triton for any device that Triton compiles for; descriptors name their functions.

What is in `kernels` needs Triton, and is imported at the first call.
"""

__version__ = "0.1.0"
