"""Where core meets a framework: PortableAttention, layers, transformers."""

from vllm_adapter.engine.integrations.attention import PortableAttention

__all__ = ["PortableAttention"]
