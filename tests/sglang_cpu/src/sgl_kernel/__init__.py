"""Plain-torch versions of the CPU kernels that SGLang's speculative decoding calls.

SGLang takes these from a C++ build of ``sgl-kernel`` for CPU, which no package index carries. The functions here
compute the same results, more slowly, so that a real SGLang server runs on any CPU. They carry the names and the
signatures of the call sites in SGLang 0.5.23, which each module names.

Two rules keep the behaviour the same on every CPU:

* ``torch.ops.sgl_kernel.convert_weight_packed`` is never defined. SGLang takes its presence for "AMX kernels are
  there" and would pack weights for them, on machines whose CPU has AMX and on no others.
* A kernel that is not here can be imported, and raises ``NotImplementedError`` when called.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from sgl_kernel import torch_ops
from sgl_kernel.attention import decode_attention_cpu, extend_attention_cpu
from sgl_kernel.kv_cache import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    build_draft_decode_metadata_cpu,
    copy_all_layer_kv_cache_cpu,
)
from sgl_kernel.sampling import murmur_hash32_cpu
from sgl_kernel.spec_tree import (
    build_tree_kernel_efficient_cpu,
    fill_accept_out_cache_loc_cpu,
    fill_bonus_tokens_cpu,
    rotate_input_ids_cpu,
    verify_tree_greedy_cpu,
)

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_draft_decode_metadata_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "decode_attention_cpu",
    "extend_attention_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "murmur_hash32_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]

torch_ops.register()


def __getattr__(name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(
            f"sgl_kernel.{name} has no plain-torch version: this is the sgl_kernel of drafttrace's CPU tests, "
            f"which has only {', '.join(__all__)}"
        )

    missing.__name__ = missing.__qualname__ = name
    return missing
