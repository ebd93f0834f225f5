"""Headers of models that lie on a server, fetched by HTTP ranges: a few megabytes of hundreds of gigabytes."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hetero.machine.types import HeteroError, ModelError, ModelIndex, TierError, UsageError
from hetero.models.assemble import assemble_gguf
from hetero.models.assemble_hf import assemble_hf
from hetero.models.checkpoint import make_index
from hetero.models.families import family_for_hf, family_of_gguf
from hetero.models.formats import StoredTensor
from hetero.models.gguf_file import GgufFile, parse_gguf
from hetero.models.gguf_split import read_gguf_set
from hetero.models.outline import index_of_config, runs_as_it_is
from hetero.models.safetensors_file import CONFIG, INDEX, MAX_HEADER, SINGLE, HfDirectory, parse_header, parse_json

TIMEOUT = 20.0
"""Seconds without an answer after which a server counts as dead."""
_PIECE = 1 << 20
_MAX_TEXT = 64 << 20
_WORKERS = 8
_HUB = "https://huggingface.co"


def remote_index(text: str) -> ModelIndex:
    """The index of `https://....gguf`, of a directory's address, or of `hf:ORG/REPO[@REVISION][/FILE.gguf]`.

    Raises TierError where the server fails (exit 5), ModelError for bad headers, UsageError for no address.
    """
    url = _hub_url(text) if text.startswith("hf:") else text
    parts = urllib.parse.urlsplit(url)
    if not parts.hostname:
        raise UsageError(f"{text!r} names no server", "https://HOST/PATH/MODEL.gguf or hf:ORG/REPO")
    if parts.path.endswith(".gguf"):
        return _gguf_index(url)
    base = url.removesuffix("/" + CONFIG).removesuffix("/" + INDEX).rstrip("/")
    return _hf_index(base, text.removeprefix("hf:") if text.startswith("hf:") else Path(parts.path).name)


def _hub_url(text: str) -> str:
    """The address behind `hf:ORG/REPO[@REVISION][/FILE]`; HF_ENDPOINT names another hub."""
    org, _, rest = text.removeprefix("hf:").partition("/")
    repo, _, file = rest.partition("/")
    repo, _, revision = repo.partition("@")
    if not org or not repo:
        raise UsageError(f"{text!r} names no repository", "hf:ORG/REPO, such as hf:Qwen/Qwen3-30B-A3B")
    hub = os.environ.get("HF_ENDPOINT", _HUB).rstrip("/")
    path = urllib.parse.quote(f"{org}/{repo}/resolve/{revision or 'main'}")
    return f"{hub}/{path}" + (f"/{urllib.parse.quote(file)}" if file else "")


class Ranges:
    """A file on a server as a source of bytes. Reads ahead by a megabyte, and keeps what it has read."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._start, self._data = 0, b""
        self._start, self._data, self.size = fetch(url, 0, _PIECE)

    def pread(self, count: int, offset: int) -> bytes:
        """Up to `count` bytes at `offset`, at least one unless it is the end."""
        if offset >= self.size:
            return b""
        if not self._start <= offset < self._start + len(self._data):
            _, data, _ = fetch(self.url, offset, min(max(count, _PIECE), self.size - offset))
            self._start, self._data = offset, data
        inside = offset - self._start
        return self._data[inside : inside + count]


def fetch(url: str, start: int, count: int) -> tuple[int, bytes, int]:
    """Where the bytes begin, at most `count` of them from `start`, and the file's size. Raises TierError."""
    headers = {"Range": f"bytes={start}-{start + count - 1}", "Accept-Encoding": "identity", "User-Agent": "hetero"}
    token = os.environ.get("HF_TOKEN")
    if token and url.startswith(os.environ.get("HF_ENDPOINT", _HUB).rstrip("/") + "/"):
        headers["Authorization"] = f"Bearer {token}"
    try:
        request = urllib.request.Request(url, headers=headers)
        # Unredirected, a token would follow a redirect to another host.
        if token := headers.pop("Authorization", ""):
            request = urllib.request.Request(url, headers=headers)
            request.add_unredirected_header("Authorization", token)
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            return _answer(url, answer, start, count)
    except urllib.error.HTTPError as e:
        hint = "the repository needs a licence or does not exist; HF_TOKEN is sent where it is set"
        raise TierError(f"{url}: the server answers {e.code} {e.reason}", hint) from None
    except (OSError, http.client.HTTPException, ValueError) as e:
        reason = getattr(e, "reason", None) or e
        raise TierError(f"{url}: cannot be read: {reason}", "check the address and the connection") from None


def _answer(url: str, answer: Any, start: int, count: int) -> tuple[int, bytes, int]:
    if answer.status == 206:
        total = answer.headers.get("Content-Range", "").rpartition("/")[2]
        if not total.isdigit():
            raise TierError(f"{url}: the server does not say how large the file is", "download the header yourself")
        data = answer.read(count)
        if len(data) < min(count, int(total) - start):
            raise OSError(f"the answer was cut off at byte {start + len(data)}")
        return start, data, int(total)
    length = answer.headers.get("Content-Length", "")
    if start or not length.isdigit() or int(length) > count:
        raise TierError(f"{url}: the server does not answer ranges", "download the file, or plan its config.json")
    return 0, answer.read(count), int(length)


def _text(url: str) -> dict[str, Any]:
    _, data, size = fetch(url, 0, _MAX_TEXT)
    if size > len(data):
        raise TierError(f"{url}: {len(data)} of {size} bytes came", "try again")
    return parse_json(data, url)


def _gguf_index(url: str) -> ModelIndex:
    base, _, name = url.partition("?")[0].rpartition("/")
    here = Path(name)

    def address(path: Path) -> str:
        return url if path == here else f"{base}/{path.name}"

    def read(path: Path) -> GgufFile:
        return parse_gguf(path, Ranges(address(path)))

    try:
        files, stored = read_gguf_set(here, read, lambda path: True)
        meta = files[0].metadata
        family = family_of_gguf(meta, str(here))
        # Frequency divisors would have to be read from the weights, and take no time worth planning.
        stored = [t for t in stored if t.name != "rope_freqs.weight"]
        config, tensors, _ = assemble_gguf(family, meta, stored, tuple(f.path for f in files))
    except ModelError as e:
        raise type(e)(e.message.replace(str(here), url, 1), e.hint) from None
    title = meta.get("general.name")
    return make_index(title if isinstance(title, str) and title.strip() else here.stem, config, tensors)


def _hf_index(base: str, name: str) -> ModelIndex:
    raw = _text(f"{base}/{CONFIG}")
    where = f"{base}/{CONFIG}"
    if not runs_as_it_is(raw):
        return index_of_config(raw, name, where)
    shards = _shards(base)
    with ThreadPoolExecutor(_WORKERS) as pool:
        headers = list(pool.map(lambda pair: _header(f"{base}/{pair[1]}", *pair), enumerate(shards)))
    tensors = tuple(t for header in headers for t in header)
    found = HfDirectory(Path(name), raw, tuple(Path(shard) for shard in shards), tensors)
    config, assembled, _, _ = assemble_hf(family_for_hf(raw, where), found)
    return make_index(name, config, assembled)


def _shards(base: str) -> Sequence[str]:
    """The names of the weights' files: those of the index, or the single one where there is no index."""
    try:
        weight_map = _text(f"{base}/{INDEX}").get("weight_map")
    except TierError as e:
        if " answers 404" not in e.message:
            raise
        return [SINGLE]
    names = set(weight_map.values()) if isinstance(weight_map, dict) else set()
    if not names or any(not isinstance(n, str) or "/" in n or not n.endswith(".safetensors") for n in names):
        raise ModelError(f"{base}/{INDEX}: has no usable weight_map", "the repository is damaged or of another kind")
    return sorted(names)


def _header(url: str, number: int, name: str) -> list[StoredTensor]:
    source = Ranges(url)
    length = int.from_bytes(source.pread(8, 0), "little")
    if length > min(MAX_HEADER, source.size - 8):
        raise ModelError(f"{url}: claims a header of {length} bytes", "the file is damaged or no safetensors file")
    raw = b""
    while len(raw) < length:
        raw += source.pread(length - len(raw), 8 + len(raw))
    try:
        return parse_header(Path(name), number, raw, source.size)
    except HeteroError as e:
        raise ModelError(e.message.replace(name, url, 1), e.hint) from None
