"""Real vLLM under test: engines in processes of their own, and its server, plain and with us."""
