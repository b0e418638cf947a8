"""Operators: their cases, samples and references, running a sample and judging it."""
