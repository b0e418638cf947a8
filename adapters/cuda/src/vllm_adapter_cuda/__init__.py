"""NVIDIA GPUs as devices."""
