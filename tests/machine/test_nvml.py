"""The driver's library, played by a small one of our own: the calls and their structures as NVIDIA documents them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from hetero.machine.nvml import DriverGpu, DriverGpus, ask_driver

SOURCE = """
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory;
static int cards[2] = {1, 2};
int nvmlInit_v2(void) { return INIT; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 18 ? "Driver/library version mismatch" : "Not Supported"; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device) { *device = &cards[i]; return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    strncpy(name, *(int *)device == 1 ? "RTX 5090" : "GRID A100", length);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, memory *m) {
    m->total = 32ull << 30; m->free = 31ull << 30; m->used = 1ull << 30;
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { *major = 12; *minor = 0; return 0; }
int nvmlDeviceGetMaxPcieLinkGeneration(void *device, unsigned *v) { *v = 5; return *(int *)device == 1 ? 0 : 3; }
#ifndef OLD
int nvmlDeviceGetMaxPcieLinkWidth(void *device, unsigned *v) { *v = 16; return 0; }
#endif
"""


def library(tmp_path: Path, *flags: str) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("NOT TESTED: no C compiler")
    source = tmp_path / "nvml.c"
    source.write_text(SOURCE)
    built = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", *flags, "-o", built, source], check=True)
    return str(built)


def test_facts_of_every_card_are_read(tmp_path: Path) -> None:
    found = ask_driver(library(tmp_path, "-DINIT=0"))
    assert found.error == ""
    assert found.gpus[0] == DriverGpu("RTX 5090", 32 << 30, 31 << 30, "12.0", 16 * 3.94e9)
    # A virtual card has no link to speak of.
    assert (found.gpus[1].name, found.gpus[1].link_bytes_per_s) == ("GRID A100", 0.0)


def test_the_drivers_own_words_are_the_error(tmp_path: Path) -> None:
    found = ask_driver(library(tmp_path, "-DINIT=18"))
    assert found == DriverGpus(error="NVML error 18: Driver/library version mismatch")


def test_a_library_without_optional_calls_still_tells_the_rest(tmp_path: Path) -> None:
    found = ask_driver(library(tmp_path, "-DINIT=0", "-DOLD"))
    assert [gpu.link_bytes_per_s for gpu in found.gpus] == [0.0, 0.0]


def test_a_system_without_the_library_knows_of_no_cards(tmp_path: Path) -> None:
    assert ask_driver(str(tmp_path / "absent.so")) == DriverGpus()
