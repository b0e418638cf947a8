"""Portable operators: specifications, providers, binding."""
