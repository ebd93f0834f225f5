"""The supported architectures, one file each, and the look-up by what a checkpoint calls itself."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from hetero.machine.types import ModelError
from hetero.models.blocks import Batch, Ops
from hetero.models.config import ModelConfig
from hetero.models.families import (
    bailing_moe,
    bailing_moe_v2,
    deepseek,
    deepseek_v4,
    deepseek_v32,
    ernie4_5_moe,
    glm4_moe,
    glm_moe_dsa,
    gpt_oss,
    granite_moe,
    hunyuan_moe,
    hy_v3,
    llama,
    llama4,
    minimax_m2,
    mixtral,
    olmoe,
    qwen2_moe,
    qwen3_5,
    qwen3_5_moe,
    qwen3_moe,
    qwen3_next,
    qwen_dense,
)
from hetero.models.families.common import Expected, FusedExperts
from hetero.models.families.unsupported import NEEDS_GGUF, NEEDS_HF

if TYPE_CHECKING:
    import torch


class Family(Protocol):
    """What the readers need of a family; a module of this package."""

    NAME: str
    HF_ARCHITECTURES: tuple[str, ...]
    HF_MODEL_TYPES: tuple[str, ...]
    GGUF_ARCHS: tuple[str, ...]
    RENAME_HF: tuple[tuple[str, str], ...]
    """(pattern, replacement) pairs that turn raw names into canonical ones, applied in this order."""
    SKIP_HF: tuple[str, ...]
    """Patterns of raw names that are left out."""
    FUSED_EXPERTS: FusedExperts | None
    """None: the family's files hold its experts one by one, which is read in any case."""
    SKIP_GGUF: tuple[str, ...]
    PERMUTED_QK: bool

    def config_from_hf(self, raw: Mapping[str, Any], where: str = ...) -> ModelConfig: ...

    def config_from_gguf(
        self, meta: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str = ...
    ) -> ModelConfig: ...

    def expected_tensors(self, config: ModelConfig, names: Container[str] = ...) -> dict[str, Expected]: ...

    def forward(self, config: ModelConfig, batch: Batch, ops: Ops) -> torch.Tensor: ...


_DENSE_AND_FIRST = (llama, qwen3_moe, deepseek, mixtral, olmoe, minimax_m2, glm4_moe, gpt_oss)
_SPARSE = (deepseek_v32, glm_moe_dsa, deepseek_v4)
_QWEN = (qwen_dense, qwen2_moe, qwen3_next, qwen3_5_moe, qwen3_5)
_LATER = (granite_moe, hunyuan_moe, bailing_moe, bailing_moe_v2, llama4, hy_v3, ernie4_5_moe)
FAMILIES: dict[str, Family] = {f.NAME: f for f in (*_DENSE_AND_FIRST, *_SPARSE, *_QWEN, *_LATER)}


def family_for_gguf(arch: str, where: str) -> Family:
    """The family of a GGUF `general.architecture`. Raises ModelError for others, saying what is supported."""
    for family in FAMILIES.values():
        if arch in family.GGUF_ARCHS:
            return family
    supported = ", ".join(a for f in FAMILIES.values() for a in f.GGUF_ARCHS)
    raise _unsupported(where, arch, NEEDS_GGUF.get(arch), supported)


def family_of_gguf(meta: Mapping[str, Any], where: str) -> Family:
    """The family of a GGUF file's metadata: Mixtral's files call themselves llama, and have experts."""
    arch = meta["general.architecture"]
    count = meta.get("llama.expert_count")
    has_experts = arch == "llama" and isinstance(count, int) and count
    return FAMILIES[mixtral.NAME] if has_experts else family_for_gguf(arch, where)


def family_for_hf(raw: Mapping[str, Any], where: str) -> Family:
    """The family of a config.json, by `architectures`, or by `model_type` where that is missing."""
    architectures = raw.get("architectures")
    if isinstance(architectures, list) and architectures and isinstance(architectures[0], str):
        name = architectures[0]
        found = [f for f in FAMILIES.values() if name in f.HF_ARCHITECTURES]
    else:
        model_type = raw.get("model_type")
        if not isinstance(model_type, str):
            raise ModelError(
                f"{where}: has neither architectures nor model_type; expected the config.json of a language model",
                "download the model's own config.json",
            )
        name = model_type
        found = [f for f in FAMILIES.values() if name in f.HF_MODEL_TYPES]
    if found:
        return found[0]
    supported = ", ".join(a for f in FAMILIES.values() for a in f.HF_ARCHITECTURES)
    raise _unsupported(where, name, NEEDS_HF.get(name), supported)


def _unsupported(where: str, name: str, needs: str | None, supported: str) -> ModelError:
    if needs is not None:
        message = f"{where}: architecture {name!r} is known but not supported yet: it needs {needs}"
    else:
        message = f"{where}: architecture {name!r} is not supported; expected one that hetero knows"
    return ModelError(message, f"models of these architectures run: {supported}")
