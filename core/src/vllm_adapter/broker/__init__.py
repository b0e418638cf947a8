"""vLLM's two entry points: which adapter serves, told once to all processes."""
