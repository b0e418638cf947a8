"""vLLM runs on the adapters in use: its own platform class, with what binds replaced.

Nothing here is imported unless vLLM is: the broker names these modules by dotted strings.
"""
