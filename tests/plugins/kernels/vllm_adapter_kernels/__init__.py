"""Kernels for the CPU, whose device is another adapter's."""
