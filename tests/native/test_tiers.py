"""Which tier is chosen: decided on recorded CPUs, not on the one that runs the test."""

import dataclasses
import platform
import subprocess
import sys

import pytest

from hetero.machine.types import HardwareError, UsageError
from hetero.native import Kernels, cpu_tiers, tiers
from hetero.native.library import open_library
from hetero.native.tiers import CpuLeaves, choose_tier, decide, read_cpu

# Leaf 1 ECX: FMA, OSXSAVE, AVX, F16C. Leaf 7 EBX: AVX2, AVX-512 F DQ BW VL. Leaf 7 ECX: AVX512_VNNI.
AVX2 = {"leaf1_ecx": 1 << 12 | 1 << 27 | 1 << 28 | 1 << 29, "leaf7_ebx": 1 << 5}
AVX512 = {"leaf7_ebx": 1 << 5 | 1 << 16 | 1 << 17 | 1 << 30 | 1 << 31, "leaf7_ecx": 1 << 11}
TILES = 1 << 22 | 1 << 24 | 1 << 25

ZEN1 = CpuLeaves(is_x86=1, **AVX2, xcr0=0x7)
ZEN4 = CpuLeaves(is_x86=1, **{**AVX2, **AVX512}, xcr0=0xE7)
SAPPHIRE_RAPIDS = dataclasses.replace(
    ZEN4, leaf7_edx=TILES, leaf7_1_eax=1 << 5, xcr0=0x602E7, max_palette=1, amx_permitted=1
)
CPUS = {
    "zen1": (ZEN1, ["generic", "avx2"]),
    "zen4": (ZEN4, ["generic", "avx2", "avx512"]),
    "sapphire rapids": (SAPPHIRE_RAPIDS, ["generic", "avx2", "avx512", "amx"]),
    "amx hidden by xcr0": (dataclasses.replace(SAPPHIRE_RAPIDS, xcr0=0xE7), ["generic", "avx2", "avx512"]),
    "tile config without data": (dataclasses.replace(SAPPHIRE_RAPIDS, xcr0=0x202E7), ["generic", "avx2", "avx512"]),
    "palette 0": (dataclasses.replace(SAPPHIRE_RAPIDS, max_palette=0), ["generic", "avx2", "avx512"]),
    "amx not permitted": (dataclasses.replace(SAPPHIRE_RAPIDS, amx_permitted=0), ["generic", "avx2", "avx512"]),
    "amx faults": (dataclasses.replace(SAPPHIRE_RAPIDS, amx_runs=0), ["generic", "avx2", "avx512"]),
    "amx without avx512 bf16": (dataclasses.replace(SAPPHIRE_RAPIDS, leaf7_1_eax=0), ["generic", "avx2", "avx512"]),
    "amx without avx512": (dataclasses.replace(SAPPHIRE_RAPIDS, leaf7_ecx=0), ["generic", "avx2"]),
    "avx512 without f16c": (dataclasses.replace(ZEN4, leaf1_ecx=1 << 12), ["generic"]),
    "no zmm state": (dataclasses.replace(ZEN4, xcr0=0x7), ["generic", "avx2"]),
    "no ymm state": (dataclasses.replace(ZEN1, xcr0=0x3), ["generic"]),
    "no vnni": (dataclasses.replace(ZEN4, leaf7_ecx=0), ["generic", "avx2"]),
    "no fma": (dataclasses.replace(ZEN1, leaf1_ecx=1 << 29), ["generic"]),
    "arm": (CpuLeaves(), ["generic"]),
}


@pytest.mark.parametrize("name", CPUS)
def test_usable_tiers_of_recorded_cpus(name):
    cpu, expected = CPUS[name]
    assert [status.name for status in decide(cpu, frozenset(tiers.TIERS)) if status.usable] == expected


def test_reasons_name_what_is_missing():
    def reason(cpu, tier, built=frozenset({"generic", "avx2"})):
        return next(status.reason for status in decide(cpu, built) if status.name == tier)

    assert reason(ZEN1, "amx") == "this CPU lacks amx_tile"
    assert reason(ZEN1, "avx512") == "this CPU lacks avx512f"
    assert reason(SAPPHIRE_RAPIDS, "amx") == "hetero was built without amx kernels"
    assert "operating system" in reason(CPUS["amx hidden by xcr0"][0], "amx")
    assert "palette" in reason(CPUS["palette 0"][0], "amx")
    assert "first tile instruction fails" in reason(CPUS["amx faults"][0], "amx")
    assert reason(CpuLeaves(), "avx2") == "this CPU is not x86-64"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="NOT TESTED: AMX is x86-64's")
def test_amx_is_tried_in_a_child_that_may_die():
    cpu = read_cpu()
    dry = dataclasses.replace(cpu, amx_runs=1)
    # Where CPUID has no AMX the instruction is invalid, and this process must outlive it.
    assert open_library("generic").hetero_amx_runs() == (tiers.missing("amx", dry) == "" and cpu.amx_runs)


def test_asking_for_the_tiers_imports_no_numpy():
    code = "import sys; from hetero.native import cpu_tiers; cpu_tiers(); print('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"


@pytest.fixture
def machine(monkeypatch):
    """Makes choose_tier see a given CPU with the tiers of this version built."""

    def set_cpu(cpu, built=("generic", "avx2")):
        monkeypatch.setattr(tiers, "cpu_tiers", lambda: decide(cpu, frozenset(built)))

    monkeypatch.delenv("HETERO_ISA", raising=False)
    return set_cpu


def test_the_best_usable_tier_is_chosen(machine):
    machine(SAPPHIRE_RAPIDS)
    assert choose_tier() == "avx2"
    machine(SAPPHIRE_RAPIDS, built=("generic", "avx2", "avx512"))
    assert choose_tier() == "avx512"
    machine(ZEN1, built=("generic", "avx2", "avx512"))
    assert choose_tier() == "avx2"
    machine(ZEN1, built=("generic",))
    assert choose_tier() == "generic"


def test_the_environment_forces_a_tier_and_an_argument_wins_over_it(machine, monkeypatch):
    machine(ZEN4)
    monkeypatch.setenv("HETERO_ISA", "generic")
    assert choose_tier() == "generic"
    assert choose_tier("avx2") == "avx2"


@pytest.mark.parametrize(
    ("cpu", "wanted", "message"),
    [
        (ZEN1, "amx", "HETERO_ISA=amx: this CPU lacks amx_tile"),
        (SAPPHIRE_RAPIDS, "amx", "HETERO_ISA=amx: hetero was built without amx kernels"),
        (ZEN4, "avx512", "HETERO_ISA=avx512: hetero was built without avx512 kernels"),
    ],
)
def test_an_unusable_tier_is_refused_with_a_hint(machine, monkeypatch, cpu, wanted, message):
    machine(cpu)
    monkeypatch.setenv("HETERO_ISA", wanted)
    with pytest.raises(HardwareError) as refused:
        choose_tier()
    assert refused.value.message.startswith(message)
    assert refused.value.hint == "unset HETERO_ISA, or name a tier that hetero probe shows as usable"
    assert refused.value.code == 3


def test_a_name_that_is_no_tier_is_a_usage_error(machine, monkeypatch):
    machine(ZEN1)
    monkeypatch.setenv("HETERO_ISA", "sse9")
    with pytest.raises(UsageError, match=r"^HETERO_ISA=sse9: no such tier, expected one of generic, avx2"):
        choose_tier()


def test_without_any_library_the_package_to_install_is_named(monkeypatch):
    monkeypatch.setattr(tiers, "library_path", lambda tier: None)
    cpu_tiers.cache_clear()
    try:
        assert [status.built for status in cpu_tiers()] == [False] * 4
        with pytest.raises(HardwareError, match="no C\\+\\+ compiler was found at install") as refused:
            choose_tier()
        assert "apt install g++" in refused.value.hint
    finally:
        cpu_tiers.cache_clear()


def test_a_tier_that_is_not_built_does_not_load():
    with pytest.raises(HardwareError, match="the neon kernels do not load"):
        Kernels("neon")
