"""The kernels that SGLang calls as ``torch.ops.sgl_kernel.<name>`` rather than by import."""

from __future__ import annotations

import torch

from sgl_kernel.attention import decode_attention_cpu, extend_attention_cpu
from sgl_kernel.sampling import murmur_hash32_cpu

_OPERATORS = {
    "extend_attention_cpu(Tensor q, Tensor? k, Tensor? v, Tensor(a!) out, Tensor k_buffer, Tensor v_buffer, "
    "float k_scale, float v_scale, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, "
    "Tensor extend_seq_lens, Tensor extend_start_loc, int max_len_extend, float scaling, float logit_cap, "
    "bool is_cross_attention, int sliding_window, Tensor? encoder_lens, Tensor? sinks, Tensor? tree_mask, "
    "bool is_causal) -> ()": extend_attention_cpu,
    "decode_attention_cpu(Tensor q, Tensor(a!) k_buffer, Tensor(b!) v_buffer, float k_scale, float v_scale, "
    "Tensor(c!) out, Tensor? k, Tensor? v, Tensor? loc, Tensor attn_logits, Tensor req_to_token, "
    "Tensor req_pool_indices, Tensor seq_lens, float scaling, float logit_cap, bool is_cross_attention, "
    "int sliding_window, Tensor? encoder_lens, Tensor? sinks) -> ()": decode_attention_cpu,
    "murmur_hash32_cpu(Tensor seed, Tensor positions, Tensor col_indices) -> Tensor": murmur_hash32_cpu,
}

# The registrations live as long as this object.
_library = torch.library.Library("sgl_kernel", "FRAGMENT")  # type: ignore[no-untyped-call]


def register() -> None:
    """Defines the operators, once for the life of the process."""
    for schema, function in _OPERATORS.items():
        name = schema.partition("(")[0]
        if not hasattr(torch.ops.sgl_kernel, name):
            _library.define(schema)  # type: ignore[no-untyped-call]
            _library.impl(name, function, "CPU")  # type: ignore[no-untyped-call]
