"""What a file that is no model really is, told by its first bytes."""

from __future__ import annotations

from pathlib import Path

from hetero.machine.types import ModelError, TierError, UsageError

_SIGNS: tuple[tuple[bytes, str, str], ...] = (
    (b"version https://git-lfs", "a git-lfs pointer, not the weights", "fetch the weights with `git lfs pull`"),
    (b"<!doctype", "an HTML page, not a model", "download the file again with the link to the file itself"),
    (b"<html", "an HTML page, not a model", "download the file again with the link to the file itself"),
    (b"<?xml", "an XML answer of a server, not a model", "download the file again; the link may have expired"),
    (b"pk\x03\x04", "a zip archive or a PyTorch pickle", "unpack it; hetero reads GGUF files and safetensors"),
    (b"\x1f\x8b", "a gzip archive", "unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", "unpack it first"),
    (b"lmgg", "a model of ggml's format from before GGUF", "download a GGUF version of this model"),
    (b"fmgg", "a model of ggml's format from before GGUF", "download a GGUF version of this model"),
    (b"tjgg", "a model of ggml's format from before GGUF", "download a GGUF version of this model"),
    (b"algg", "a LoRA adapter of ggml's format from before GGUF", "download a GGUF version of the model itself"),
    (b"fugg", "a GGUF file with its bytes swapped", "download a little-endian version of this model"),
    (b"\x93numpy", "a numpy array", "hetero reads GGUF files and directories of safetensors"),
)
_PICKLE = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05")
PICKLE_HINT = "pickles can run code and are never read; use a safetensors or GGUF version of this model"


def first_bytes(path: Path, count: int = 64) -> bytes:
    """The first bytes of a file. Raises UsageError where it is missing or may not be read, TierError on a bad disk."""
    try:
        with path.open("rb") as f:
            return f.read(count)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file", "check the path") from None
    except PermissionError:
        raise UsageError(f"{path}: may not be read by this user", "check the file's permissions") from None
    except IsADirectoryError:
        raise UsageError(f"{path}: is a directory where a file is needed", "name the model's file") from None
    except OSError as e:
        raise TierError(f"{path}: cannot be read: {e.strerror or e}", "check the disk") from None


def explain(path: Path, head: bytes, wanted: str) -> ModelError:
    """The error for a file that should have been `wanted` (such as "a GGUF file")."""
    if not head:
        return ModelError(f"{path}: the file is empty; expected {wanted}", "download it again")
    for sign, what, hint in _SIGNS:
        if head.lstrip().lower().startswith(sign):
            return ModelError(f"{path}: is {what}; expected {wanted}", hint)
    if head.startswith(_PICKLE):
        return ModelError(f"{path}: is a Python pickle; expected {wanted}", PICKLE_HINT)
    if head[8:9] == b"{":
        return ModelError(f"{path}: is a safetensors file; expected {wanted}", "name the directory that holds it")
    if head.lstrip()[:1] in (b"{", b"["):
        return ModelError(f"{path}: is a JSON text; expected {wanted}", "the server may have answered with an error")
    shown = head[:8].hex(" ")
    return ModelError(
        f"{path}: begins with bytes {shown}; expected {wanted}",
        "hetero reads GGUF files and Hugging Face directories of safetensors",
    )
