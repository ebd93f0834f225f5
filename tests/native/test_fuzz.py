"""Random calls through the C interface, right and wrong: on the built libraries, and on builds with sanitizers.

`fuzz/driver.cpp` makes the calls, from several threads that share pools. All memory that it names is there and ends at
a page without access, so whatever a call reads or writes too far ends the process.
"""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hetero.native.library import library_path
from tests.native.weights import USABLE

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "native"
DRIVER = HERE / "fuzz" / "driver.cpp"
SHIM = HERE / "fuzz" / "tiles_shim.h"
SHARED = ["-std=c++17", "-fno-math-errno", "-ffp-contract=off", "-pthread", f"-I{NATIVE}"]
AVX512 = "-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni"
FLAGS = {
    "generic": [],
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": AVX512.split(),
    "amx": [*AVX512.split(), "-mavx512bf16", "-include", str(SHIM)],
}
"""The amx tier is built with its tiles in software, so that sanitizers see what they load and store."""
MEMORY = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined")
THREADS = ("-fsanitize=thread",)
SOAK_SECONDS = 600

Build = Callable[..., Path]
GCC = ("g++", "-w")  # its AVX-512 headers warn of themselves


def clang() -> tuple[str, ...]:
    """Clang with all warnings as errors: an installed one, or the one in the package ziglang."""
    if shutil.which("clang++"):
        found: tuple[str, ...] = ("clang++",)
    elif importlib.util.find_spec("ziglang"):
        found = (sys.executable, "-m", "ziglang", "c++")
    else:
        pytest.skip("NOT TESTED: kernels built by clang (neither clang++ nor the package ziglang is here)")
    return (*found, "-Wall", "-Wextra", "-Werror")


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A function that compiles the driver, with a tier's source or against its library, to a program."""
    folder = tmp_path_factory.mktemp("fuzz")
    made: dict[tuple[str, ...], Path] = {}

    def make(*arguments: str, compiler: tuple[str, ...] = GCC) -> Path:
        if shutil.which(compiler[0]) is None or platform.system() != "Linux":
            pytest.skip(f"NOT TESTED: fuzzing the kernels (no {compiler[0]} here)")
        command = (*compiler, "-g1", *SHARED, str(DRIVER), *arguments)
        if command not in made:
            program = folder / f"fuzz{len(made)}"
            subprocess.run([*command, "-o", program], check=True)
            made[command] = program
        return made[command]

    return make


def against_library(build: Build, tier: str) -> Path:
    library = library_path(tier)
    assert library is not None
    return build("-O1", str(library), f"-Wl,-rpath,{library.parent}")


def with_source(build: Build, tier: str, *options: str, compiler: tuple[str, ...] = GCC) -> Path:
    """A program of the tier's own source; skipped where this CPU cannot run it."""
    bf16 = tier != "amx" or "avx512_bf16" in Path("/proc/cpuinfo").read_text()
    if ("avx512" if tier == "amx" else tier) not in USABLE or not bf16:
        pytest.skip(f"NOT TESTED: a build of the {tier} kernels (this CPU cannot run them)")
    return build("-O1", *options, *FLAGS[tier], str(NATIVE / "src" / f"tier_{tier}.cpp"), compiler=compiler)


def fuzz(program: Path, seconds: float, threads: int = 2, seed: int = 1) -> None:
    """Runs the driver, in an address space that the thread sanitizer knows its way in."""
    command = [*(["setarch", "-R"] if shutil.which("setarch") else []), program, f"{seconds}", f"{seed}", f"{threads}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60 + 4 * seconds)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.fullmatch(r"(\d+) calls, (\d+) refused\n", done.stdout)
    assert counts is not None
    assert 0 < int(counts[2]) < int(counts[1])


def test_the_library_in_use_survives_random_calls(build: Build) -> None:
    fuzz(against_library(build, USABLE[-1]), 5)


@pytest.mark.parametrize("options", [MEMORY, THREADS], ids=["memory", "threads"])
def test_sanitizers_find_nothing(build: Build, options: tuple[str, ...]) -> None:
    fuzz(with_source(build, "generic", *options), 2)


@pytest.mark.soak
def test_the_library_in_use_survives_ten_minutes_of_random_calls(build: Build) -> None:
    fuzz(against_library(build, USABLE[-1]), SOAK_SECONDS, threads=3, seed=1000)


@pytest.mark.soak
@pytest.mark.parametrize("tier", USABLE[:-1])
def test_other_libraries_survive_random_calls(build: Build, tier: str) -> None:
    fuzz(against_library(build, tier), 60, threads=3, seed=4000)


@pytest.mark.soak
@pytest.mark.parametrize("tier", FLAGS)
@pytest.mark.parametrize("options", [MEMORY, THREADS], ids=["memory", "threads"])
def test_sanitizers_find_nothing_in_any_tier(build: Build, tier: str, options: tuple[str, ...]) -> None:
    fuzz(with_source(build, tier, *options), 60, threads=3, seed=2000)


@pytest.mark.soak
@pytest.mark.parametrize("tier", FLAGS)
def test_kernels_built_by_clang_survive_random_calls(build: Build, tier: str) -> None:
    fuzz(with_source(build, tier, "-O3", compiler=clang()), 20, threads=3, seed=3000)
