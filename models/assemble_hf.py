"""From the tensors of a Hugging Face directory to the model's: renamed, stacked, fused ones split, all checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from hetero.machine.types import ModelError
from hetero.models.assemble import OTHER, Tensor, check, is_mtp, refuse_unused, whole
from hetero.models.config import ModelConfig
from hetero.models.families import Family
from hetero.models.families.common import VISION, Expected
from hetero.models.formats import SAFETENSORS_SUPPORTED, StoredTensor
from hetero.models.fused import fused_biases, fused_weights
from hetero.models.joint import split_joint
from hetero.models.matrices import Found
from hetero.models.names import from_hf, hf_expert, hf_fused, layer_of
from hetero.models.safetensors_file import HfDirectory

_CAST = "use a BF16 version of this model, or a GGUF one"


def assemble_hf(
    family: Family, directory: HfDirectory
) -> tuple[ModelConfig, dict[str, Tensor], tuple[str, ...], tuple[StoredTensor, ...]]:
    """The configuration, tensors, notes and MTP tensors of a Hugging Face directory.

    Raises ModelError as `assemble_gguf` does.
    """
    where = str(directory.path)
    config = family.config_from_hf(directory.config, str(directory.path / "config.json"))
    named, mtp = _renamed(family, directory, config)
    _refuse_dtypes(named, directory)
    found, experts = _found(family, named, directory)
    expected = family.expected_tensors(config, found)
    found = split_joint(found, expected, directory.files)
    unused = [t.matrices[0].stored for n, t in found.items() if n not in expected]
    unused += [next(iter(parts.values())) for n, parts in experts.items() if n not in expected]
    refuse_unused(unused, directory.files)
    for name in expected:
        if name in experts:
            if name in found:
                raise _twice(name, found[name].matrices[0].stored, experts[name][min(experts[name])], directory)
            found[name] = _stack(name, experts[name], expected[name], directory)
    tensors = check(found, expected, directory.files, where)
    notes: tuple[str, ...] = ()
    towers = sum(1 for t in directory.tensors if re.fullmatch(VISION, t.name))
    if towers:
        notes += (f"{where}: {towers} tensors of the vision parts are not used: this version reads text only",)
    if "lm_head.weight" not in tensors and not config.tie_word_embeddings:
        notes += (f"{where}: has no lm_head.weight; the embedding is used in its place",)
    config = replace(config, tie_word_embeddings="lm_head.weight" not in tensors)
    return config, tensors, notes, mtp


def _renamed(
    family: Family, directory: HfDirectory, config: ModelConfig
) -> tuple[dict[str, StoredTensor], tuple[StoredTensor, ...]]:
    """The tensors by canonical name without those that are skipped, and those of multi-token prediction layers."""
    skip = re.compile("|".join(family.SKIP_HF))
    named: dict[str, StoredTensor] = {}
    mtp: list[StoredTensor] = []
    for t in directory.tensors:
        name = from_hf(t.name, family.RENAME_HF)
        if is_mtp(name, config):
            mtp.append(t)
        elif not skip.fullmatch(t.name):
            if name in named:
                raise _twice(name, named[name], t, directory)
            named[name] = t
    return named, tuple(mtp)


def _twice(name: str, first: StoredTensor, second: StoredTensor, directory: HfDirectory) -> ModelError:
    return ModelError(
        f"{directory.files[second.file]}: {second.name!r} and {first.name!r} are the same tensor {name!r}", OTHER
    )


def _found(
    family: Family, named: Mapping[str, StoredTensor], directory: HfDirectory
) -> tuple[dict[str, Found], dict[str, dict[int, StoredTensor]]]:
    """Whole tensors (fused ones taken apart), and the experts that are stored one by one, by canonical name."""
    found: dict[str, Found] = {}
    experts: dict[str, dict[int, StoredTensor]] = {}
    for name, t in named.items():
        if expert := hf_expert(name):
            experts.setdefault(expert[0], {})[expert[1]] = t
        elif (fused := hf_fused(name)) and family.FUSED_EXPERTS:
            stem, part, kind = fused
            split = fused_weights if kind == "weight" else fused_biases
            parts = split(t, part, family.FUSED_EXPERTS, directory.files[t.file])
            found |= {f"{stem}.{p}.{kind}": Found(*made) for p, made in parts.items()}
        else:
            found[name] = whole(t)
    return found, experts


def _stack(
    name: str, parts: Mapping[int, StoredTensor], want: Expected, directory: HfDirectory
) -> Found:
    """One stacked tensor of all experts, which must be complete and alike."""
    n = want.shape[0]
    where = str(directory.path)
    if set(parts) != set(range(n)):
        missing, extra = sorted(set(range(n)) - set(parts)), sorted(set(parts) - set(range(n)))
        what = f"lacks experts {_some(missing)}" if missing else f"has experts {_some(extra)} too many"
        raise ModelError(f"{where}: {_place(name)} {what}; expected experts 0 to {n - 1}", OTHER)
    ordered = tuple(parts[e] for e in range(n))
    first = ordered[0]
    for t in ordered:
        if t.shape != first.shape or t.format != first.format:
            raise ModelError(
                f"{directory.files[t.file]}: {t.name!r} has shape {list(t.shape)} and type {t.format}, but expert 0 "
                f"has {list(first.shape)} and {first.format}",
                OTHER,
            )
    return Found((n, *first.shape), tuple(m for t in ordered for m in whole(t).matrices))


def _place(name: str) -> str:
    return f"layer {layer_of(name)} ({name!r})"


def _some(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")


def _refuse_dtypes(named: Mapping[str, StoredTensor], directory: HfDirectory) -> None:
    for t in named.values():
        if t.format not in SAFETENSORS_SUPPORTED:
            raise ModelError(
                f"{directory.files[t.file]}: tensor {t.name!r} has the dtype {t.format}; this version reads F32, F16 "
                "and BF16",
                _CAST,
            )
