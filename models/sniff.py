"""What a file that is no model really is, told by its first bytes."""

from __future__ import annotations

import errno
import os
import stat
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
    """The first bytes of a file. Raises UsageError where it is missing or may not be read, TierError on a bad disk.

    Pipes and devices are refused unread: a pipe without a writer would block for ever.
    """
    try:
        # Without O_NONBLOCK even opening a pipe waits for its writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            mode = os.fstat(fd).st_mode
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise UsageError(f"{path}: is a pipe or a device; expected a file", "name the model's own file")
            return os.read(fd, count)
        finally:
            os.close(fd)
    except OSError as e:
        raise _unreadable(path, e) from None


def _unreadable(path: Path, e: OSError) -> UsageError | TierError:
    if isinstance(e, (FileNotFoundError, NotADirectoryError)):
        return UsageError(f"{path}: no such file", "check the path")
    if isinstance(e, PermissionError):
        return UsageError(f"{path}: may not be read by this user", "check the file's permissions")
    if isinstance(e, IsADirectoryError):
        return UsageError(f"{path}: is a directory where a file is needed", "name the model's file")
    if e.errno in (errno.ENXIO, errno.ELOOP, errno.ENAMETOOLONG):  # a socket, a circle of links, no name of a file
        return UsageError(f"{path}: is no file: {e.strerror}", "check the path")
    return TierError(f"{path}: cannot be read: {e.strerror or e}", "check the disk")


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
