"""The generic shape: a platform, a worker and a model runner for a device that vLLM does not know.

No kernel of vLLM's is needed or imported: what no adapter runs, torch runs on the device.
"""
