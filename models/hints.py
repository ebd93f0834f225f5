"""What a config.json says of its quantisation. Apart from the readers of weights, as plans need it without numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Hints:
    """What a config.json says of its quantisation; None where it does not say."""

    block: tuple[int, int] | None = None
    symmetric: bool | None = None
    group: int | None = None
    bits: int | None = None
    floating: bool = False
    """Codes are floating-point numbers (of compressed-tensors, which has both under one name)."""
    zero_offset: int = 1
    """Added to GPTQ's zero points: 1, or 0 in files of its second format."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Hints:
        """From a config.json, whose quantization_config may lie in `text_config`."""
        nested = config.get("text_config")
        inner = nested.get("quantization_config") if isinstance(nested, dict) else None
        raw = config.get("quantization_config", inner)
        if not isinstance(raw, dict):
            return cls()
        group = _only_group(raw)
        symmetric, size = group.get("symmetric", raw.get("sym")), group.get("group_size", raw.get("group_size"))
        bits = group.get("num_bits", raw.get("bits", raw.get("w_bit")))
        block = raw.get("weight_block_size")
        sizes = isinstance(block, list) and len(block) == 2 and all(type(b) is int and 0 < b < 1 << 20 for b in block)
        return cls(
            block=(block[0], block[1]) if isinstance(block, list) and sizes else None,
            symmetric=symmetric if isinstance(symmetric, bool) else None,
            group=size if type(size) is int and size > 0 else None,
            bits=bits if type(bits) is int else None,
            floating=group.get("type") == "float",
            zero_offset=0 if raw.get("checkpoint_format") == "gptq_v2" else 1,
        )


def _only_group(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The weights' settings of compressed-tensors, where there is only one set of them."""
    groups = raw.get("config_groups")
    if not isinstance(groups, dict) or len(groups) != 1:
        return {}
    group = next(iter(groups.values()))
    weights = group.get("weights") if isinstance(group, dict) else None
    return weights if isinstance(weights, dict) else {}
