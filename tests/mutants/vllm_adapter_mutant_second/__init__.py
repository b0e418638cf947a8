"""A second set of wrong kernels, and of right ones, beside `vllm_adapter_mutant`."""
