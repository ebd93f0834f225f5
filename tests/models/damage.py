"""Damage to headers: to bytes, to any value of a JSON text, and to what a safetensors header says of its tensors."""

from __future__ import annotations

import copy
import json
import random
import struct
from typing import Any

from hetero.models.formats import SAFETENSORS_BITS

EXTREMES = (0, 1, 2**31, 2**32 - 1, 2**60, 2**63, 2**64 - 1)
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2**31, 2**63, 2**70, 1e308, -1e-308, float("nan"), "", "x", "re:(a+)+$", "\x1b[31m"),
    *([], {}, [0], [1] * 100, [[[]]], {"a": {"b": []}}, [128, 128], "yarn", "gptq", "fp8", "F8_E4M3", "x" * 5000),
)
PARTS = ("weight", "weight_scale", "weight_scale_inv", "weight_packed", "weight_shape", "weight_zero_point", "scale")
PARTS += ("qweight", "qzeros", "scales", "g_idx", "bias", "weight_global_scale", "weight_scale_2", "input_scale")


def in_bytes(rng: random.Random, data: bytearray, limit: int) -> None:
    """A few random edits within the first `limit` bytes: flipped bits, extreme integers, cuts and repeats."""
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(min(limit, len(data)))
        kind = rng.randrange(5)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + 8] = rng.choice(EXTREMES).to_bytes(8, "little")
        elif kind == 2:
            del data[at : at + rng.randrange(1, 64)]
        elif kind == 3:
            data[at:at] = data[at : at + rng.randrange(1, 64)]
        else:
            data[at] = rng.randrange(256)
        if not data:
            data += b"G"


def in_json(rng: random.Random, value: Any) -> Any:
    """`value` with a few of its parts replaced, taken out, renamed or changed a little."""
    root = [value]
    for _ in range(rng.randint(1, 3)):
        holder, key = _somewhere(rng, root)
        old = holder[key]
        kind = rng.randrange(5)
        if kind == 0 and isinstance(holder, dict):
            del holder[key]
        elif kind == 1 and isinstance(holder, dict):
            holder[rng.choice([f"{key}x", *holder])] = holder.pop(key)
        elif kind == 2 and isinstance(old, int | float) and not isinstance(old, bool):
            holder[key] = rng.choice([old + 1, old - 1, old * 2, -old, old / 2, old // 2 if old == old else 0])
        else:
            holder[key] = copy.deepcopy(rng.choice(ODD_VALUES))
    return root[0]


def _somewhere(rng: random.Random, root: list[Any]) -> tuple[Any, Any]:
    """A random object or list within `root`, and one of its keys."""
    holder: Any = root
    key: Any = 0
    while True:
        inner = holder[key]
        keys = list(inner) if isinstance(inner, dict) else list(range(len(inner))) if isinstance(inner, list) else []
        if not keys or rng.random() < 0.2:
            return holder, key
        holder, key = inner, rng.choice(keys)


def in_tensors(rng: random.Random, data: bytes) -> bytes:
    """A safetensors file whose header is sound JSON, with other types, shapes and names, often of the same bytes."""
    length = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8 : 8 + length])
    for _ in range(rng.randint(1, 3)):
        name = rng.choice([n for n in header if n != "__metadata__"] or ["x"])
        entry = header.get(name)
        if not isinstance(entry, dict):
            break
        kind = rng.randrange(5)
        if kind == 0:
            _retype(rng, entry)
        elif kind == 1 and isinstance(entry.get("shape"), list):
            rng.shuffle(entry["shape"])
        elif kind == 2:
            stem, _, part = name.rpartition(".")
            header[f"{stem}.{rng.choice([*PARTS, part])}"] = header.pop(name)
        elif kind == 3:
            other = rng.choice([n for n in header if n != "__metadata__"])
            header[name], header[other] = header[other], header[name]
        else:
            header = in_json(rng, header)
            if not isinstance(header, dict):
                break
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data[8 + length :]


def _retype(rng: random.Random, entry: dict[str, Any]) -> None:
    """Another type, and a last dimension that makes it take as many bytes where one can."""
    old, new = entry.get("dtype"), rng.choice(list(SAFETENSORS_BITS))
    shape = entry.get("shape")
    sized = isinstance(shape, list) and shape and type(shape[-1]) is int
    if isinstance(old, str) and old in SAFETENSORS_BITS and sized:
        entry["shape"] = [*shape[:-1], shape[-1] * SAFETENSORS_BITS[old] // SAFETENSORS_BITS[new]]
    entry["dtype"] = new
