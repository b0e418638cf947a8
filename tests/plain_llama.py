"""The computation of an adapted Llama, written by hand in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from vllm_adapter.engine.integrations.transformers.adapt import adapted_of


class PlainLlama(torch.nn.Module):
    """Embedding, decoder layers and last norm of `model` (adapted), without a padded batch.

    It uses the same merged weights and calls the same overload of paged attention; everything
    else is a formula.
    """

    def __init__(self, model):
        super().__init__()
        base = model.model
        self.embedding, self.last = base.embed_tokens.weight, base.norm.weight
        self.layers = [layer.inner for layer in base.layers]
        self.table = adapted_of(model).steps.rope.upto(1)
        self.shape = self.layers[0].shape
        self.eps = base.norm.eps
        read = self.layers[0].attention.bindings[1]
        self.attend, self.handle = read.run, read.handle
        self.block = adapted_of(model).kv.size.block_size

    def norm(self, x, weight):
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale * weight.float()).to(x.dtype)

    @staticmethod
    def rotate(heads, cos, sin):
        first, second = heads.chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

    @staticmethod
    def store(cache, new, slots):
        # A slot below 0 is padding: its row repeats a real one, or writes what is there already.
        real = slots >= 0
        row = torch.where(real, torch.arange(slots.shape[0]), real.long().argmax())
        place, flat = slots[row].clamp(min=0), cache.flatten(0, 1)
        flat[place] = torch.where(real.any(), new[row], flat[place])

    def forward(self, input_ids, va_step):
        step, shape = va_step.step, self.shape
        x = F.embedding(input_ids, self.embedding).flatten(0, 1)
        cos, sin = self.table[va_step.positions].unsqueeze(1).chunk(2, -1)
        for layer, (keys, values) in zip(self.layers, va_step.layers, strict=True):
            fused = F.linear(self.norm(x, layer.input_norm.weight), layer.qkv.weight)
            heads = [shape.heads, shape.kv_heads, shape.kv_heads]
            query, key, value = fused.unflatten(1, (-1, shape.head_size)).split(heads, 1)
            query, key = self.rotate(query, cos, sin), self.rotate(key, cos, sin)
            self.store(keys, key, step.slot_mapping)
            self.store(values, value, step.slot_mapping)
            attended = self.attend(
                query,
                keys,
                values,
                step.block_table,
                step.seq_lens,
                step.query_start_loc,
                shape.head_size**-0.5,
                0,
                0.0,
                self.handle,
            )
            x = x + F.linear(attended.flatten(1), layer.out.weight)
            normed = self.norm(x, layer.post_norm.weight)
            gate, up = F.linear(normed, layer.gate_up.weight).chunk(2, -1)
            x = x + F.linear(F.silu(gate) * up, layer.down.weight)
        return self.norm(x, self.last).view(*input_ids.shape, -1)
