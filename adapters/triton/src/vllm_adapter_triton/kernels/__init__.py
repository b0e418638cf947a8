"""What Triton compiles. These modules need Triton, and are imported at the first call."""
