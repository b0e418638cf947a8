"""Cambricon MLUs as devices."""
