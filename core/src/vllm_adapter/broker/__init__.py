"""vLLM's two entry points: which adapter serves, decided once for all processes."""
