"""Compiles a block of vLLM's own modules as one graph, before any of them has run.

    python traced.py wrapped|unwrapped

`wrapped` keeps vLLM's IR operators as single nodes, as its compilation of pieces does; `unwrapped`
traces into our providers, as the CPU platform does.
"""

from __future__ import annotations

import json
import sys
import tempfile

import torch

WIDTH, HEAD = 64, 32


def main(is_wrapped):
    from vllm import ir
    from vllm.config import CompilationConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.ir.op import enable_torch_wrap
    from vllm.platforms import current_platform
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    config = VllmConfig(compilation_config=CompilationConfig(mode=0))
    with set_current_vllm_config(config), torch.no_grad(), enable_torch_wrap(is_wrapped):
        with tempfile.NamedTemporaryFile() as meeting:
            parallel_state.init_distributed_environment(1, 0, f"file://{meeting.name}", 0, "gloo")
            parallel_state.ensure_model_parallel_initialized(1, 1)
        current_platform.import_ir_kernels()
        for op in (ir.ops.rms_norm, ir.ops.fused_add_rms_norm):
            op.set_default(["vllm_adapter", "native"])
        block, graphs = block_class()(), []
        compiled = torch.compile(block, fullgraph=True, backend=lambda g, _: graphs.append(g) or g)
        for tokens in (5, 7, 9):
            given = torch.randn(tokens, WIDTH), torch.arange(tokens)
            for tensor in given:  # as vLLM does: tokens vary, widths do not
                torch._dynamo.mark_dynamic(tensor, 0)
            for got, want in zip(compiled(*given), block(*given), strict=True):
                torch.testing.assert_close(got, want)
    register_again()
    nodes = sorted({str(n.target) for n in graphs[0].graph.nodes if "vllm" in str(n.target)})
    classes = [type(module).__name__ for module in block.children()]
    print("RESULT", json.dumps({"graphs": len(graphs), "nodes": nodes, "classes": classes}))


def register_again():
    """Registering once more, and replacing once more, changes no class."""
    from vllm.model_executor.custom_op import op_registry_oot

    from vllm_adapter.broker import plugin as vllm_plugin
    from vllm_adapter.engine.integrations.vllm import layers, linear

    before = dict(op_registry_oot)
    vllm_plugin.register()
    linear.replace()
    layers.replace()
    assert before and op_registry_oot == before


def block_class():
    from vllm.model_executor.layers.activation import GeluAndMul, SiluAndMul
    from vllm.model_executor.layers.layernorm import RMSNorm
    from vllm.model_executor.layers.linear import ReplicatedLinear
    from vllm.model_executor.layers.rotary_embedding import get_rope

    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.silu, self.gelu = SiluAndMul(), GeluAndMul(approximate="tanh")
            rope = {"rope_type": "default", "rope_theta": 10000.0}
            self.rope = get_rope(HEAD, 64, True, rope, dtype=torch.float32)
            self.norm = RMSNorm(WIDTH)
            self.linear = ReplicatedLinear(WIDTH, 2 * WIDTH, bias=False, disable_tp=True)
            torch.nn.init.normal_(self.linear.weight)
            self.linear.quant_method.process_weights_after_loading(self.linear)

        def forward(self, x, positions):
            normed, total = self.norm(x, x)
            wide = self.linear(self.norm(normed))[0]
            heads = (half.contiguous() for half in wide.split(WIDTH, dim=-1))
            query, key = self.rope(positions, *heads)
            return self.silu(wide) + self.gelu(wide), query, key, total

    return Block


if __name__ == "__main__":
    main(sys.argv[1] == "wrapped")
