"""From the tensors of a Hugging Face directory to the model's: renamed, stacked, fused ones split, all checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hetero.machine.types import ModelError
from hetero.models.assemble import OTHER, Tensor, check, is_mtp, refuse_unused, whole
from hetero.models.config import ModelConfig
from hetero.models.families import Family
from hetero.models.families.common import VISION, Expected, FusedExperts, recorded_keys
from hetero.models.families.ignored import unknown_keys
from hetero.models.float_codes import Mxfp8Rows
from hetero.models.formats import SAFETENSORS_SUPPORTED, StoredTensor
from hetero.models.fused import fused_biases, fused_fp8, fused_mxfp4, fused_weights
from hetero.models.hints import Hints
from hetero.models.joint import split_joint
from hetero.models.kv_b import split_kv_b
from hetero.models.matrices import Found
from hetero.models.modules import modules_of
from hetero.models.names import from_hf, hf_expert, hf_fused, layer_of
from hetero.models.quantisation import Parts, matrix_of
from hetero.models.safetensors_file import HfDirectory
from hetero.models.wording import counted

BARE = ((r"^(?=(embed_tokens|layers|norm)\.)", "model."),)
"""For files of a model without its head, whose names lack the `model.` of all others."""


def assemble_hf(
    family: Family, directory: HfDirectory
) -> tuple[ModelConfig, dict[str, Tensor], tuple[str, ...], tuple[StoredTensor, ...]]:
    """The configuration, tensors, notes and MTP tensors of a Hugging Face directory.

    Raises ModelError as `assemble_gguf` does.
    """
    where = str(directory.path)
    config_path = str(directory.path / "config.json")
    with recorded_keys() as looked_up:
        config = family.config_from_hf(directory.config, config_path)
    unknown = unknown_keys(directory.config, looked_up, family.NAME)
    named, mtp = _renamed(family, directory, config)
    found, experts = _found(family, named, directory)
    found = split_kv_b(found, config, directory.files)
    expected = family.expected_tensors(config, found)
    found = split_joint(found, expected, directory.files)
    unused = [t.matrices[0].stored for n, t in found.items() if n not in expected]
    unused += [next(iter(parts.values())).matrices[0].stored for n, parts in experts.items() if n not in expected]
    refuse_unused(unused, directory.files)
    for name in expected:
        if name in experts:
            if name in found:
                first = experts[name][min(experts[name])].matrices[0].stored
                raise _twice(name, found[name].matrices[0].stored, first, directory)
            found[name] = _stack(name, experts[name], expected[name], directory)
    tensors = check(found, expected, directory.files, where)
    notes: tuple[str, ...] = ()
    if unknown:
        shown = ", ".join(map(repr, unknown[:8])) + (" ..." if len(unknown) > 8 else "")
        notes += (f"{config_path}: {counted(len(unknown), 'key')} that this version does not know: {shown}",)
    if left := left_out(directory.tensors):
        notes += (f"{where}: this version reads text only and leaves out {left}",)
    widened = sum(isinstance(t.matrices[0], Mxfp8Rows) for t in tensors.values())
    if widened:
        held = "held as BF16, which has all of their values, in twice the space"
        notes += (f"{where}: {counted(widened, 'tensor')} of MXFP8 {'is' if widened == 1 else 'are'} {held}",)
    if "lm_head.weight" not in tensors and not config.tie_word_embeddings:
        notes += (f"{where}: has no lm_head.weight; the embedding is used in its place",)
    if "lm_head.weight" in tensors and config.tie_word_embeddings:
        notes += (f"{where}: has its own lm_head.weight, which is used though tie_word_embeddings is true",)
    config = replace(config, tie_word_embeddings="lm_head.weight" not in tensors)
    return config, tensors, notes, mtp


def left_out(tensors: Iterable[StoredTensor]) -> str:
    """What of a file is neither loaded nor kept by a conversion, in words; empty where that is nothing of worth."""
    towers = sum(1 for t in tensors if re.fullmatch(VISION, t.name))
    return f"{counted(towers, 'tensor')} of the vision parts" if towers else ""


def _renamed(
    family: Family, directory: HfDirectory, config: ModelConfig
) -> tuple[dict[str, StoredTensor], tuple[StoredTensor, ...]]:
    """The tensors by canonical name without those that are skipped, and those of multi-token prediction layers."""
    skip = re.compile("|".join(family.SKIP_HF))
    bare = BARE if any(t.name == "embed_tokens.weight" for t in directory.tensors) else ()
    named: dict[str, StoredTensor] = {}
    mtp: list[StoredTensor] = []
    for t in directory.tensors:
        raw = from_hf(t.name, bare)
        name = from_hf(raw, family.RENAME_HF)
        if is_mtp(name, config):
            mtp.append(t)
        elif not skip.fullmatch(raw):
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
) -> tuple[dict[str, Found], dict[str, dict[int, Found]]]:
    """Whole tensors (stacks taken apart), and the experts that are stored one by one, by canonical name."""
    hints = Hints.of(directory.config)
    modules, rest = modules_of(named)
    found: dict[str, Found] = {}
    experts: dict[str, dict[int, Found]] = {}
    for stem, parts in modules.items():
        path = directory.files[next(iter(parts.values())).file]
        name = f"{stem}.weight"
        if stack := hf_fused(name):
            found |= _unstacked(stack, parts, family.FUSED_EXPERTS, path, hints)
            continue
        plain = parts["weight"] if len(parts) == 1 and "weight" in parts else None
        if plain and plain.format in SAFETENSORS_SUPPORTED:
            made = whole(plain)
        else:
            matrix = matrix_of(parts, path, hints)
            made = Found((matrix.n, matrix.k), (matrix,))
        if expert := hf_expert(name):
            experts.setdefault(expert[0], {})[expert[1]] = made
        else:
            found[name] = made
    for name, t in rest.items():
        if expert := hf_expert(name):
            experts.setdefault(expert[0], {})[expert[1]] = whole(t)
        elif (stack := hf_fused(name)) and family.FUSED_EXPERTS:
            biases = fused_biases(t, stack[1], family.FUSED_EXPERTS, directory.files[t.file])
            found |= {f"{stack[0]}.{part}.bias": Found(*made) for part, made in biases.items()}
        else:
            found[name] = whole(t)
    return found, experts


def _unstacked(
    stack: tuple[str, str, str], parts: Parts, layout: FusedExperts | None, path: Path, hints: Hints
) -> dict[str, Found]:
    """The matrices of all experts in one tensor, or in codes and scales; untouched where the family has no layout."""
    stem, which, _ = stack
    if layout is None:
        return {t.name: whole(t) for t in parts.values()}
    weight = parts.get("weight")
    if "blocks" in parts:
        made = fused_mxfp4(parts, which, layout, path)
    elif weight is not None and weight.format == "F8_E4M3":
        made = fused_fp8(parts, which, layout, path, hints)
    elif weight is not None and weight.format in SAFETENSORS_SUPPORTED and len(parts) == 1:
        made = fused_weights(weight, which, layout, path)
    else:
        found = " and ".join(f"{t.name!r} ({t.format})" for t in parts.values())
        expected = "F32, F16, BF16, FP8 (F8_E4M3) with its scales, or MXFP4 in blocks"
        raise ModelError(f"{path}: experts in one tensor are {found}; this version reads {expected}", OTHER)
    return {f"{stem}.{part}.weight": Found(*matrices) for part, matrices in made.items()}


def _stack(name: str, parts: Mapping[int, Found], want: Expected, directory: HfDirectory) -> Found:
    """One stacked tensor of all experts, which must be complete and alike."""
    n = want.shape[0]
    if set(parts) != set(range(n)):
        missing, extra = sorted(set(range(n)) - set(parts)), sorted(set(parts) - set(range(n)))
        what = f"lacks experts {_some(missing)}" if missing else f"has experts {_some(extra)} too many"
        raise ModelError(f"{directory.path}: {_place(name)} {what}; expected experts 0 to {n - 1}", OTHER)
    ordered = tuple(parts[e] for e in range(n))
    shape, format = ordered[0].shape, ordered[0].matrices[0].format
    for one in ordered:
        matrix = one.matrices[0]
        if one.shape != shape or matrix.format != format:
            raise ModelError(
                f"{directory.files[matrix.stored.file]}: {matrix.stored.name!r} has shape {list(one.shape)} and type "
                f"{matrix.format}, but expert 0 has {list(shape)} and {format}",
                OTHER,
            )
    return Found((n, *shape), tuple(m for one in ordered for m in one.matrices))


def _place(name: str) -> str:
    return f"layer {layer_of(name)} ({name!r})"


def _some(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown + (f" and {len(numbers) - 8} more" if len(numbers) > 8 else "")
