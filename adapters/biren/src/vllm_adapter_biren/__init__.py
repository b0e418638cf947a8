"""Biren GPUs as devices."""
