"""Boxes and demands for tests of the planner: descriptors with figures of one's own."""

from __future__ import annotations

from typing import Any

from model_configs import CONFIGS

from vllm_adapter.contract.capability import Capability, parse_capability
from vllm_adapter.planning.box import PlanBox, profile_box
from vllm_adapter.planning.demand import ModelDemand, demand_from
from vllm_adapter.planning.model_files import ModelFiles
from vllm_adapter.planning.model_shape import shape_of
from vllm_adapter.planning.plan import ExecutionPlan, make_plan
from vllm_adapter.planning.quantisation import packing_of
from vllm_adapter.planning.workload import Workload

GIB = 1 << 30


def demand(name: str, **changes: Any) -> ModelDemand:
    """A published model's demand, its config changed."""
    config = CONFIGS[name] | changes
    shape = shape_of(config, name)
    return demand_from(ModelFiles(name, shape, packing_of(config, shape.dtype), None))


def descriptor(**changes: Any) -> Capability:
    """A chip of round figures; `changes` by "section__field"."""
    raw: dict[str, Any] = {
        "schema": "vllm-adapter/capability/1.0",
        "identity": {"vendor": "Acme", "arch": "a1", "name": "Acme 1", "torch_type": "acme"},
        "compute_units": {
            "float32": {"throughput_gflops": 50_000},
            "float16": {"throughput_gflops": 400_000},
            "bfloat16": {"throughput_gflops": 400_000},
            "float8_e4m3fn": {"throughput_gflops": 800_000},
            "source": {"kind": "assumed"},
        },
        "memory": {
            "capacity_bytes": 80 * GIB,
            "bandwidth_gb_s": 2000,
            "runtime_reserve_bytes": GIB,
            "source": {"kind": "assumed"},
        },
        "dma": {"engine_count": 2, "max_concurrent_transfers": 2, "source": {"kind": "assumed"}},
        "execution": {"graph_capture": True, "source": {"kind": "assumed"}},
        "numerics": {
            "fp8_flavour": "e4m3fn",
            "native_fp8": True,
            "native_bfloat16": True,
            "source": {"kind": "assumed"},
        },
        "kv": {"block_multiple": 1, "preferred_block": 16, "source": {"kind": "assumed"}},
        "operators": {},
    }
    for path, value in changes.items():
        section, _, name = path.partition("__")
        raw[section] = {**raw[section], name: value}
    return parse_capability(raw, "acme.json")


def box(count: int = 1, **changes: Any) -> PlanBox:
    """So many of that chip."""
    return profile_box(descriptor(**changes), "acme", count, "test")


def plan(
    model: str = "Llama-3-8B",
    on: PlanBox | None = None,
    context: int | None = None,
    concurrency: int | None = None,
    objective: str = "throughput",
    **own: str,
) -> ExecutionPlan:
    """A plan of a published model."""
    asked = Workload(context, concurrency, objective, own)
    return make_plan(demand(model), on or box(), asked)
