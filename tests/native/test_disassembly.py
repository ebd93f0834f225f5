"""Each tier's object holds the instructions that it is for, and none of a higher tier."""

import re
import shutil
import subprocess

import pytest

from hetero.native.library import library_path

FOREIGN = {
    "generic": r"%[yz]mm|%k[0-7]\b",
    "avx2": r"%zmm|%[xy]mm(1[6-9]|2\d|3[01])\b|%k[0-7]\b|\{evex\}",
    "avx512": r"\btdp|\btileload",
    "amx": r"\btdpbu|\btdpbsu|\btdpfp16",
}


@pytest.fixture(scope="module", params=FOREIGN)
def tier(request):
    path = library_path(request.param)
    if path is None or shutil.which("objdump") is None:
        pytest.skip(f"NOT TESTED: the {request.param} object (not built, or no objdump)")
    command = ["objdump", "-d", "--no-show-raw-insn", str(path)]
    return request.param, subprocess.run(command, capture_output=True, text=True, check=True).stdout


def instructions(text, mnemonic):
    return re.findall(rf"\t(?:{mnemonic})\b.*", text)


def test_no_instruction_of_a_higher_tier(tier):
    name, text = tier
    if "file format elf64-x86-64" not in text:
        pytest.skip("NOT TESTED: not x86-64")
    foreign = [line for line in text.splitlines() if "\t" in line and re.search(FOREIGN[name], line.split("\t")[-1])]
    assert foreign == []


def test_the_tier_uses_what_it_is_for(tier):
    name, text = tier
    if name == "avx2":
        assert len(instructions(text, "vpmaddubsw")) > 100
        assert len(instructions(text, "vfmadd231ps|vfmadd213ps|vfmadd132ps")) > 100
    if name == "avx512":
        products = instructions(text, "vpdpbusd")
        assert all("%zmm" in line for line in products)
        assert len([line for line in products if "{1to16}" in line]) > 1000
    if name == "amx":
        assert len(instructions(text, "tdpbf16ps")) >= 4 + 2 + 2 + 1
        assert len(instructions(text, "tdpbssd")) >= 4 + 2 + 2 + 1
        assert len(instructions(text, "tilerelease")) >= 2
        moves = instructions(text, "tileloadd") + instructions(text, "tilestored")
        assert moves
        assert not [line for line in moves if "(%rsp" in line]  # a spilled tile


def test_sums_of_many_tokens_stay_in_registers(tier):
    """In the loops of eight tokens, and of six with two tiles, nothing is written between the first product and
    the last but counters."""
    name, text = tier
    if name != "avx512":
        return
    kernels = re.findall(r"<\w*(?:add_chunk_512I\w*ELi8E|add_pairI\w*ELi6E)\w*>:\n(.*?)\n\n", text, re.DOTALL)
    assert len(kernels) >= 30
    for kernel in kernels:
        lines = kernel.splitlines()
        at = [i for i, line in enumerate(lines) if "vpdpbusd" in line]
        inside = lines[at[0] : at[-1]]
        assert not [line for line in inside if re.search(r"vmov\w+ .*%zmm\d+,.*\(%rsp", line)]


def test_within_a_step_of_two_by_two_tiles_are_only_loads_and_products(tier):
    name, text = tier
    if name != "amx":
        return
    first, last = "tdpbf16ps %tmm6,%tmm4,%tmm0", "tdpbf16ps %tmm7,%tmm5,%tmm3"
    steps = re.findall(rf"{first}(?:(?!{first}).)*?{last}", text, re.DOTALL)
    assert steps
    for step in steps:
        used = re.findall(r"(tdpbf16ps|tileloadd|tilestored|%[xyz]mm)", step)
        assert used == ["tdpbf16ps", "tileloadd", "tdpbf16ps", "tileloadd", "tdpbf16ps", "tdpbf16ps"]
