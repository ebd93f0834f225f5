"""What the processors do when nothing is to be done, and inside a quota of one CPU where two can be seen."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hetero.engine import Engine
from hetero.engine.sampling import Sampling
from hetero.machine.cgroup import groups
from tests.tiny import tiny_gguf

pytestmark = pytest.mark.soak
PERIOD = 100_000
"""Microseconds, the kernel's own default."""


def test_no_core_is_busy_after_work_has_ended(tmp_path: Path) -> None:
    engine = Engine.load(tiny_gguf("qwen3moe", tmp_path / "m.gguf"), context=128)
    assert sum(1 for _ in engine.generate(list(range(5, 45)), Sampling(max_tokens=20))) > 1
    time.sleep(0.01)
    before = time.process_time()
    time.sleep(5)
    assert time.process_time() - before < 0.1


@pytest.fixture
def one_cpu() -> Iterator[Path]:
    """A control group with the time of one CPU, for processes to join; skipped where none may be made."""
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("NOT TESTED: a quota of one CPU (there is one CPU only)")
    folder = Path("none")
    for group in groups(Path("/"), "cpu"):
        folder = group.path / f"hetero-test-{os.getpid()}"
        quota = ("cpu.max", f"{PERIOD} {PERIOD}") if group.version == 2 else ("cpu.cfs_quota_us", f"{PERIOD}")
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            (folder / quota[0]).write_text(quota[1])
            break
        except OSError:
            folder.rmdir()
    else:
        pytest.skip("NOT TESTED: a quota of one CPU (no control group may be made here)")
    yield folder
    folder.rmdir()


def decode_rate(group: Path, *options: str) -> float:
    """Tokens per second that `hetero bench` of the bundled model writes inside the group."""
    bench = ["-m", "hetero.cli", "bench", "--json", "--prefill", "0", "--decode", "384", "--repeat", "5", *options]
    join = 'echo $$ > "$0"/cgroup.procs && exec "$@"'
    command = ["sh", "-c", join, str(group), sys.executable, *bench]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return float(json.loads(done.stdout)["decode_tps"]["median"])


def test_decode_inside_a_quota_of_one_cpu_is_as_fast_as_with_one_thread(one_cpu: Path) -> None:
    pairs = [(decode_rate(one_cpu), decode_rate(one_cpu, "--threads", "1")) for _ in range(3)]
    assert statistics.median(chosen / one for chosen, one in pairs) >= 0.8
