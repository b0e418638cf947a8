"""A finding, as the doctor's rules make it: the public one, which adapters' hooks give too."""

from vllm_adapter.contract.finding import Evidence, Finding, Severity

__all__ = ["Evidence", "Finding", "Severity"]
