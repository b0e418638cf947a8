"""Everything that imports torch."""
