"""Which tensors of a Hugging Face file make up one matrix, by their names: weights, codes, scales, zero points."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

T = TypeVar("T")
_PARTS = (
    *("weight", "weight_scale_inv", "weight_scale", "weight_scale_2", "scale", "qscale_weight", "weight_packed"),
    *("weight_shape", "weight_zero_point", "weight_global_scale", "weight_g_idx"),
    *("qweight", "qzeros", "scales", "g_idx"),
)
_CODES = ("weight", "weight_packed", "qweight", "blocks")
_PART = re.compile(rf"(.+)\.({'|'.join(_PARTS)})")
_STACK = re.compile(r"(.+\.mlp\.experts\.(?:gate_up|gate|up|down)_proj)(?:_(blocks|scales|scale|scale_inv))?")
_STACK_PARTS = {"scale": "weight_scale", "scale_inv": "weight_scale_inv"}
_ACTIVATIONS = re.compile(
    r".+\.(input_scale|input_global_scale|activation_scale|qscale_act|[kvq]_scale|[kv]_zero_point|prob_output_scale)"
)


def modules_of(named: Mapping[str, T]) -> tuple[dict[str, dict[str, T]], dict[str, T]]:
    """The tensors of each matrix by its name without `.weight` and by what they are; and all other tensors by name.

    Scales of activations are left out: activations are not quantised that way here.
    """
    modules: dict[str, dict[str, T]] = {}
    for name, t in named.items():
        if found := _stem_and_part(name):
            modules.setdefault(found[0], {})[found[1]] = t
    whole = {stem: parts for stem, parts in modules.items() if any(code in parts for code in _CODES)}
    rest = {}
    for name, t in named.items():
        found = _stem_and_part(name)
        if (found is None or found[0] not in whole) and not _ACTIVATIONS.fullmatch(name):
            rest[name] = t
    return whole, rest


def _stem_and_part(name: str) -> tuple[str, str] | None:
    if match := _PART.fullmatch(name):
        return match[1], match[2]
    if match := _STACK.fullmatch(name):
        part = match[2] or "weight"
        return match[1], _STACK_PARTS.get(part, part)
    return None
