"""Headers over HTTP ranges, from a server on the loopback: few bytes are read, and every failure is one line."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from hetero.machine.types import ModelError, TierError, UsageError
from hetero.models import remote
from hetero.models.checkpoint import open_checkpoint
from hetero.models.describe import describe
from tests.tiny import tiny_gguf, tiny_hf


class Server(http.server.ThreadingHTTPServer):
    """Serves a folder; `mode` makes it misbehave; `sent` counts the bytes of bodies, `asked` the requests."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folder, self.mode, self.sent = folder, "ranges", 0
        self.asked: list[tuple[str, str | None]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        server.asked.append((self.path, self.headers.get("Authorization")))
        path = server.folder / self.path.lstrip("/").partition("?")[0]
        if server.mode == "silent":
            threading.Event().wait(3)
            return
        if not path.is_file():
            return self.send_error(404)
        data = path.read_bytes()
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        assert found
        start, stop = int(found[1]), min(int(found[2]) + 1, len(data))
        if server.mode == "whole":
            self.send_response(200)
            part = data
        else:
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
            part = data[start:stop]
        self.send_header("Content-Length", str(len(part)))
        self.end_headers()
        if server.mode != "cut":
            server.sent += len(part)
            self.wfile.write(part)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()


def test_a_gguf_on_a_server_has_the_index_of_the_file(server: Server, tmp_path: Path) -> None:
    path = tiny_gguf("qwen3moe", tmp_path / "x.gguf", "Q4_0")
    with open_checkpoint(path) as local:
        assert describe(f"{server.url}/x.gguf") == local.index


def test_all_parts_of_a_split_model_are_followed(server: Server, tmp_path: Path) -> None:
    path = tiny_gguf("deepseek2", tmp_path / "s.gguf", split=3)
    with open_checkpoint(path) as local:
        assert describe(f"{server.url}/{path.name}") == local.index


def test_only_the_header_of_a_large_file_travels(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny_gguf("qwen3moe", tmp_path / "x.gguf", num_hidden_layers=8)
    monkeypatch.setattr(remote, "_PIECE", 4096)
    describe(f"{server.url}/x.gguf")
    # 64 KiB at a time, the headers of these files being smaller, and a look behind the last tensor.
    assert server.sent <= (1 << 16) + 3 * 4096 < path.stat().st_size / 4


def test_a_directory_of_safetensors_on_a_hub(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tiny_hf("qwen3_moe", tmp_path / "org/model/resolve", sharded=True)
    home.rename(home.with_name("main"))
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    with open_checkpoint(home.with_name("main")) as local:
        found = describe("hf:org/model")
        assert found.tensors == local.index.tensors
    assert found.name == "org/model"


def test_the_token_goes_to_the_hub_and_nowhere_else(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org/model/resolve/v2").mkdir(parents=True)
    (tmp_path / "org/model/resolve/v2/config.json").write_text("{}")
    monkeypatch.setenv("HF_TOKEN", "secret")
    with pytest.raises(ModelError):
        describe(f"{server.url}/org/model/resolve/v2")
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    with pytest.raises(ModelError):
        describe("hf:org/model@v2")
    assert [token for _, token in server.asked] == [None, "Bearer secret"]


@pytest.mark.parametrize("url", ["/absent.gguf", "/nothing"])
def test_what_is_not_there_is_a_tier_error(server: Server, url: str) -> None:
    with pytest.raises(TierError, match="answers 404") as caught:
        describe(server.url + url)
    assert caught.value.code == 5


def test_a_server_without_ranges_is_a_tier_error(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny_gguf("qwen3moe", tmp_path / "x.gguf")
    monkeypatch.setattr(remote, "_PIECE", 4096)
    server.mode = "whole"
    with pytest.raises(TierError, match="does not answer ranges"):
        describe(f"{server.url}/x.gguf")


@pytest.mark.parametrize("mode", ["silent", "cut"])
def test_a_server_that_falls_silent_is_a_tier_error(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    tiny_gguf("qwen3moe", tmp_path / "x.gguf")
    monkeypatch.setattr(remote, "TIMEOUT", 0.3)
    server.mode = mode
    with pytest.raises(TierError, match="cannot be read"):
        describe(f"{server.url}/x.gguf")


def test_a_port_that_nobody_answers_is_a_tier_error(server: Server) -> None:
    server.shutdown()
    server.server_close()
    with pytest.raises(TierError, match="cannot be read"):
        describe(f"{server.url}/x.gguf")


def test_a_damaged_header_names_the_address(server: Server, tmp_path: Path) -> None:
    path = tiny_gguf("qwen3moe", tmp_path / "x.gguf")
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ModelError, match="is truncated") as caught:
        describe(f"{server.url}/x.gguf")
    assert caught.value.message.startswith(server.url)
    (tmp_path / "y.gguf").write_bytes(b"<!doctype html><p>sign in")
    with pytest.raises(ModelError, match="an HTML page"):
        describe(f"{server.url}/y.gguf")


@pytest.mark.parametrize("text", ["hf:", "hf:org", "hf:org/", "https:///x.gguf"])
def test_no_address_is_a_usage_error(text: str) -> None:
    with pytest.raises(UsageError):
        describe(text)
