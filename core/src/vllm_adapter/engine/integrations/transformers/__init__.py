"""transformers models on any adapter: `adapt(model, device)` and `unadapt(model)`."""

from vllm_adapter.engine.integrations.transformers.adapt import Adapted, adapt, unadapt
from vllm_adapter.engine.integrations.transformers.cache import PagedCache
from vllm_adapter.engine.integrations.transformers.replacement_check import cache_argument

__all__ = ["Adapted", "PagedCache", "adapt", "cache_argument", "unadapt"]
