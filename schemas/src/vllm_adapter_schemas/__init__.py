"""JSON Schemas of vllm-adapter."""
