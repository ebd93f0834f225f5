"""A conversion is the same whatever interrupts it, never looks finished before it is, and says what stops it."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from hetero.machine.types import TierError, UsageError
from hetero.models.convert import convert
from hetero.models.journal import JOURNAL, Journal
from hetero.models.pack import Packed
from hetero.models.store import open_store, verify
from hetero.native import Kernels
from tests.models.gguf_maker import Shape, write

KERNELS = Kernels("generic")
CHILD = """
import re, sys, time
from pathlib import Path
from hetero.models.convert import convert
from hetero.native import Kernels

def progress(done, total, what):
    print(what, flush=True)
    time.sleep(float(sys.argv[3]))

convert(Path(sys.argv[1]), Path(sys.argv[2]), kernels=Kernels("generic"), progress=progress)
# Not ru_maxrss, which starts from the parent's.
print("peak", int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) * 1024, flush=True)
"""


def tree_hash(root: Path) -> str:
    """Hash of all paths and contents below `root`."""
    total = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        total.update(f"{path.relative_to(root)} {path.is_dir()}\n".encode())
        if path.is_file():
            total.update(hashlib.sha256(path.read_bytes()).digest())
    return total.hexdigest()


def start(src: Path, dst: Path, pause: float, until: str = "", count: int = 1) -> subprocess.Popen[str]:
    """A process that converts and sleeps `pause` seconds after each tensor or expert.

    Returns once it has reported `count` steps whose description holds `until`.
    """
    args = [sys.executable, "-c", CHILD, str(src), str(dst), str(pause)]
    child = subprocess.Popen(args, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    while count and (line := child.stdout.readline()):
        count -= until in line
    return child


@contextmanager
def tmpfs(path: Path, size: int) -> Iterator[Path]:
    """A small file system of its own at `path`; skips where mounting is not allowed."""
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"a tmpfs is needed and cannot be mounted here: {made.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("source") / "m.gguf", Shape(layers=4))


@pytest.fixture(scope="module")
def undisturbed(source: Path) -> str:
    return tree_hash(convert(source, kernels=KERNELS).path)


def test_default_destination_is_beside_the_source_and_complete(source: Path, undisturbed: str) -> None:
    store = source.with_suffix(".hetero")
    assert sorted(p.name for p in source.parent.iterdir()) == ["m.gguf", "m.hetero"]
    report = verify(store)
    assert report.files == len([p for p in store.rglob("*") if p.is_file()]) - 1
    assert sorted(p.name for p in store.glob("experts-*")) == [f"experts-0000{layer}.bin" for layer in range(4)]


def test_killed_at_random_times_ends_in_the_same_tree(source: Path, undisturbed: str, tmp_path: Path) -> None:
    rng = random.Random(7)
    dst = tmp_path / "m.hetero"
    for place in ("dense", *(f"experts of layer {layer}" for layer in range(4))):
        child = start(source, dst, pause=0.03, until=place, count=rng.randint(1, 3))
        time.sleep(rng.uniform(0.0, 0.01))
        child.kill()
        child.wait()
        assert not dst.exists()
    report = convert(source, dst, kernels=KERNELS)
    assert report.resumed_files > 0
    assert tree_hash(dst) == undisturbed
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.hetero"]


@pytest.fixture
def quick_path(tmp_path: Path) -> Iterator[Path]:
    """A folder where fsync costs nothing, if there is one."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


def run_killed(work: Callable[[], object], patches: dict[str, Callable[..., object]], after: int) -> bool:
    """Runs `work` in a forked child that kills itself around the `after`-th call of the patched os functions."""
    pid = os.fork()
    if pid == 0:
        left = [after]

        def wrap(real: Callable[..., object]) -> Callable[..., object]:
            def wrapped(*args: object, **kwargs: object) -> object:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                result = real(*args, **kwargs)
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return result

            return wrapped

        for name, real in patches.items():
            setattr(os, name, wrap(real))
        try:
            work()
        finally:
            os._exit(0)
    return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def test_killed_around_every_system_call_that_matters(quick_path: Path) -> None:
    source = write(quick_path / "m.gguf", Shape(layers=1, experts=2))
    expected = tree_hash(convert(source, quick_path / "whole.hetero", kernels=KERNELS).path)
    patches = {name: getattr(os, name) for name in ("fsync", "replace", "rename", "unlink", "mkdir", "pwrite")}
    dst = quick_path / "m.hetero"
    after, killed = 0, True
    while killed:
        after += 1
        killed = run_killed(lambda: convert(source, dst, kernels=KERNELS), patches, after)
        convert(source, dst, kernels=KERNELS)
        assert tree_hash(dst) == expected, after
        assert {p.name for p in quick_path.iterdir()} == {"m.gguf", "m.hetero", "whole.hetero"}, after
        shutil.rmtree(dst)
    assert after > 30


def test_killed_while_replacing_a_store_leaves_the_old_or_the_new_one(quick_path: Path) -> None:
    old, new = (write(quick_path / f"{seed}.gguf", Shape(layers=1, experts=2, seed=seed)) for seed in (1, 2))
    dst = quick_path / "m.hetero"
    patches = {name: getattr(os, name) for name in ("rename", "unlink", "rmdir")}
    after, killed = 0, True
    while killed:
        after += 1
        shutil.rmtree(dst, ignore_errors=True)
        convert(old, dst, kernels=KERNELS)
        killed = run_killed(lambda: convert(new, dst, kernels=KERNELS, force=True), patches, after)
        report = convert(new, dst, kernels=KERNELS, force=True)
        assert verify(dst).fingerprint == report.fingerprint
        assert {p.name for p in quick_path.iterdir()} == {"1.gguf", "2.gguf", "m.hetero"}, after
    assert after > 4


def test_damaged_finished_layer_is_made_again(source: Path, undisturbed: str, tmp_path: Path) -> None:
    dst = tmp_path / "m.hetero"

    def stop(done: int, total: int, what: str) -> None:
        if "layer 2" in what:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(source, dst, kernels=KERNELS, progress=stop)
    layer = dst.with_name("m.hetero.tmp") / "experts-00001.bin"
    data = bytearray(layer.read_bytes())
    data[len(data) // 2] ^= 16
    layer.write_bytes(data)
    with (dst.with_name("m.hetero.tmp") / JOURNAL).open("ab") as journal:
        journal.write(b'{"file": "experts-00002.bin", "check')  # as a crash leaves it
    report = convert(source, dst, kernels=KERNELS)
    assert report.resumed_files == 2  # dense.bin and layer 0
    assert tree_hash(dst) == undisturbed


def test_half_converted_other_model_is_not_continued(source: Path, undisturbed: str, tmp_path: Path) -> None:
    other = write(tmp_path / "other.gguf", Shape(layers=4, seed=2))
    dst = tmp_path / "m.hetero"
    child = start(other, dst, pause=0.02, until="experts of layer 1")
    child.kill()
    child.wait()
    report = convert(source, dst, kernels=KERNELS)
    assert report.resumed_files == 0
    assert tree_hash(dst) == undisturbed


def test_second_process_is_told_who_is_converting(source: Path, tmp_path: Path) -> None:
    dst = tmp_path / "m.hetero"
    child = start(source, dst, pause=30)
    try:
        with pytest.raises(TierError, match=f"m.hetero is in use by pid {child.pid}$"):
            convert(source, dst, kernels=KERNELS)
    finally:
        child.kill()
        child.wait()
    convert(source, dst, kernels=KERNELS)  # the lock died with its owner


def test_existing_store_is_kept_unless_forced(source: Path, undisturbed: str, tmp_path: Path) -> None:
    dst = convert(source, tmp_path / "m.hetero", kernels=KERNELS).path
    again = convert(source, dst, kernels=KERNELS)
    assert again.already_converted
    with pytest.raises(UsageError, match="exists and is not this model"):
        convert(source, dst, experts="bf16", kernels=KERNELS)
    assert tree_hash(dst) == undisturbed
    assert convert(source, dst, experts="bf16", kernels=KERNELS, force=True).experts == "bf16"
    assert open_store(dst).manifest.layout.layers[0].gate_format == "BF16"


def test_force_never_deletes_what_is_not_a_store(source: Path, tmp_path: Path) -> None:
    keep = tmp_path / "photos"
    keep.mkdir()
    (keep / "cat.jpg").write_bytes(b"cat")
    for dst in (keep, keep / "cat.jpg"):
        with pytest.raises(UsageError, match="not"):
            convert(source, dst, kernels=KERNELS, force=True)
    assert (keep / "cat.jpg").read_bytes() == b"cat"


def test_too_small_disk_is_refused_before_anything_is_written(source: Path, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "small", 1 << 20) as small:
        with pytest.raises(TierError, match=r"needs [\d,]+ bytes, [\d,]+ are free"):
            convert(source, small / "m.hetero", kernels=KERNELS)
        assert list(small.iterdir()) == []


def test_full_disk_keeps_finished_layers_and_the_rest_is_done_elsewhere(
    source: Path, undisturbed: str, tmp_path: Path
) -> None:
    store = source.with_suffix(".hetero")
    layer = (store / "experts-00000.bin").stat().st_size
    room = sum(p.stat().st_size for p in store.rglob("*") if p.is_file()) - 5 * layer // 2
    with tmpfs(tmp_path / "small", room) as small:
        with pytest.raises(TierError, match="disk full"):
            convert(source, small / "m.hetero", kernels=KERNELS, force=True)
        assert [p.name for p in small.iterdir()] == ["m.hetero.tmp"]
        assert not list(small.rglob("*.part"))
        shutil.copytree(small / "m.hetero.tmp", tmp_path / "m.hetero.tmp")
    report = convert(source, tmp_path / "m.hetero", kernels=KERNELS)
    assert report.resumed_files >= 2
    assert tree_hash(report.path) == undisturbed


def test_read_only_folder_is_named(source: Path, tmp_path: Path) -> None:
    with tmpfs(tmp_path / "fixed", 1 << 26) as fixed:
        subprocess.run(["mount", "-o", "remount,ro", str(fixed)], check=True)
        with pytest.raises(TierError, match="cannot be written: Read-only file system") as caught:
            convert(source, fixed / "m.hetero", kernels=KERNELS)
        assert str(fixed) in caught.value.message
        assert "SRC DST" in caught.value.hint


def test_a_folder_that_takes_no_files_is_told_by_the_stores_own_name(source: Path) -> None:
    with pytest.raises(TierError, match=r"^/proc/x\.hetero") as caught:
        convert(source, Path("/proc/x.hetero"), kernels=KERNELS)
    assert ".lock" not in caught.value.message


@pytest.mark.parametrize(
    "line",
    [
        '{"a": 1}',
        '{"file": "dense.bin", "checksums": [], "digests": {}, "error": null}',
        '{"file": 5, "checksums": {}, "digests": {}, "error": null}',
        '{"file": "dense.bin", "checksums": {}, "digests": {}, "error": null, "more": 1}',
    ],
)
def test_a_journal_of_foreign_lines_counts_as_ended_there(line: str, tmp_path: Path) -> None:
    Journal.create(tmp_path, "k").add("small.safetensors", Packed({"a": ["0"]}, {"a": "1"}, None))
    with (tmp_path / JOURNAL).open("a") as file:
        file.write(line + "\n")
    journal = Journal.read(tmp_path, "k")
    assert journal is not None
    assert journal.done == {"small.safetensors": Packed({"a": ["0"]}, {"a": "1"}, None)}


def test_missing_folder_is_a_usage_error(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        convert(source, tmp_path / "nowhere" / "m.hetero", kernels=KERNELS)


def test_what_can_never_be_a_store_is_refused_before_anything_is_written(source: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for dst, words in ((tmp_path / "link", "a link to nothing"), (Path("/"), "cannot be a store")):
        with pytest.raises(UsageError, match=words):
            convert(source, dst, kernels=KERNELS)
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


@pytest.mark.parametrize(("mode", "low", "high"), [("q4", 0.05, 0.12), ("q8", 0.002, 0.01), ("bf16", 1e-4, 3e-3)])
def test_quantising_experts_reports_the_true_error_per_layer(
    tmp_path: Path, mode: str, low: float, high: float
) -> None:
    shape = Shape(layers=2, gate="BF16", up="F32", down="F16")
    source = write(tmp_path / "f.gguf", shape)
    report = convert(source, tmp_path / "f.hetero", experts=mode, kernels=KERNELS)
    assert sorted(report.errors) == [0, 1]
    assert all(low < error < high for error in report.errors.values())
    store = open_store(report.path)
    slot = store.manifest.layout.layers[1]
    data = np.fromfile(report.path / slot.file, np.uint8)
    error = norm = 0.0
    for expert in range(slot.n_experts):
        rows = KERNELS.unpack_expert(data[expert * slot.stride :][: slot.stride], *slot.formats, 256, 256)
        for part, packed, old, new in zip(
            ("gate", "up", "down"), rows, ("BF16", "F32", "F16"), slot.formats, strict=True
        ):
            if old == new:
                continue
            raw = shape.raw[f"blk.1.ffn_{part}_exps.weight"].reshape(4, 256, -1)[expert]
            exact = KERNELS.dequantize(old, raw, 256, 256).astype(np.float64)
            error += ((KERNELS.dequantize(new, packed, 256, 256) - exact) ** 2).sum()
            norm += (exact**2).sum()
    assert report.errors[1] == pytest.approx((error / norm) ** 0.5, rel=1e-3)


def test_quantised_store_has_the_source_fingerprint_and_says_its_mode(tmp_path: Path) -> None:
    source = write(tmp_path / "f.gguf", Shape(layers=1, gate="F32", up="F32", down="F32"))
    keep = convert(source, tmp_path / "keep.hetero", kernels=KERNELS)
    q4 = convert(source, tmp_path / "q4.hetero", experts="q4", kernels=KERNELS)
    assert keep.fingerprint == q4.fingerprint
    assert open_store(q4.path).manifest.experts == "q4"
    assert q4.store_bytes < keep.store_bytes


def test_quantised_source_is_requantised_when_asked(tmp_path: Path) -> None:
    source = write(tmp_path / "k.gguf", Shape(layers=1, gate="Q8_0", up="Q6_K", down="Q5_0"))
    report = convert(source, tmp_path / "q4.hetero", experts="q4", kernels=KERNELS)
    assert 0.01 < report.errors[0] < 0.2
    assert open_store(report.path).manifest.layout.layers[0].formats == ("Q4_0",) * 3


def test_unknown_treatment_of_experts_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="q3"):
        convert(source, tmp_path / "m.hetero", experts="q3", kernels=KERNELS)


def test_store_is_not_converted_again(source: Path, undisturbed: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="store already"):
        convert(source.with_suffix(".hetero"), tmp_path / "m.hetero", kernels=KERNELS)


def test_peak_memory_is_a_few_experts_not_the_model(tmp_path: Path) -> None:
    shape = Shape(layers=40, experts=16, hidden=512, inter=768, blank=True)
    source = write(tmp_path / "m.gguf", shape)
    layer = 16 * 3 * 512 * 768 * 18 // 32
    child = start(source, tmp_path / "m.hetero", pause=0)
    assert child.stdout is not None
    peak = child.stdout.read().splitlines()[-1]
    assert child.wait() == 0
    assert int(peak.removeprefix("peak ")) < 2 * layer + (300 << 20) < source.stat().st_size


def test_everything_in_a_store_can_be_read_by_whom_the_umask_lets(source: Path, tmp_path: Path) -> None:
    store = convert(source, tmp_path / "m.hetero", kernels=KERNELS).path
    assert (store / "tokenizer").stat().st_mode & 0o077 == store.stat().st_mode & 0o077
