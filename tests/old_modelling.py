"""Modelling code in the form that transformers 4.57 to 5.14 gives it: imports behind flags, choices kept by layers.

Small, but real where it matters: the ops are fla's, the flags are those of transformers.utils.import_utils.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers.utils.import_utils import is_causal_conv1d_available, is_flash_linear_attention_available

if is_causal_conv1d_available():
    from causal_conv1d import causal_conv1d_fn
else:
    causal_conv1d_fn = None

if is_flash_linear_attention_available():
    from fla.modules import FusedRMSNormGated
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule
else:
    chunk_gated_delta_rule = None
    FusedRMSNormGated = None

HEADS, SIZE = 1, 16


def torch_chunk_gated_delta_rule(query, key, value, g, beta, **kwargs):
    """Compute something of the right shape: no test looks at the values."""
    return value * beta[..., None] + query * key, None


class NormGated(nn.Module):
    """The eager reference of the norm."""

    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x, gate):
        return x * self.weight * gate.sigmoid()


class Mixer(nn.Module):
    """A token mixer that keeps what it chose."""

    def __init__(self, config):
        super().__init__()
        self.conv1d = nn.Conv1d(SIZE, SIZE, 4, groups=SIZE, padding=3)
        self.norm = (
            NormGated(SIZE)
            if FusedRMSNormGated is None
            else FusedRMSNormGated(SIZE, device=torch.cuda.current_device(), dtype=config.dtype)
        )
        self.causal_conv1d_fn = causal_conv1d_fn
        self.scan = chunk_gated_delta_rule or torch_chunk_gated_delta_rule

    def forward(self, x, cu_seq_lens_q=None):
        mixed = x.transpose(1, 2)
        if self.causal_conv1d_fn is not None:
            mixed = self.causal_conv1d_fn(
                x=mixed, weight=self.conv1d.weight.squeeze(1), bias=self.conv1d.bias, seq_idx=None
            )
        else:
            mixed = self.conv1d(mixed)[..., : x.shape[1]]
        heads = mixed.transpose(1, 2).reshape(*x.shape[:2], HEADS, SIZE)
        gates = heads.mean(-1)
        out, _ = self.scan(heads, heads, heads, g=-gates.exp(), beta=gates.sigmoid(), cu_seqlens=cu_seq_lens_q)
        return self.norm(out.reshape(-1, SIZE), x.reshape(-1, SIZE)).reshape(x.shape)


class Layer(nn.Module):
    """A decoder layer."""

    def __init__(self, config):
        super().__init__()
        self.mixer = Mixer(config)

    def forward(self, x):
        return x + self.mixer(x)


class Model(nn.Module):
    """A decoder of two such layers."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(Layer(config) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x
