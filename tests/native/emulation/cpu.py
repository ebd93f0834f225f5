"""Calls C functions of this very process on an emulated Sapphire Rapids (Bochs, by the package bochscpu-python).

The emulated CPU sees this process's memory at its own addresses: every GiB in use is given a compact physical GiB,
because the CPU model has fewer physical address bits than the process has virtual ones, and pages are lent when they
are first touched. Functions must not call into the kernel or need thread-local storage. The emulated CPU lacks AMX:
tile instructions are invalid there, and trap.c does their work.
"""

from __future__ import annotations

import ctypes
import importlib.util
import mmap
import struct
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
TABLES = 0x100000  # guest-physical address of the page tables, below the first lent GiB
PAGE, GIB = 4096, 1 << 30
HALT = b"\xf4"
INVALID_OPCODE = 6
REGISTERS = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", *(f"r{i}" for i in range(8, 16)))
ReadRegister = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p, ctypes.c_int)


def _area(size: int) -> tuple[mmap.mmap, int]:
    area = mmap.mmap(-1, size)
    return area, ctypes.addressof(ctypes.c_char.from_buffer(area))


def build(source: str, folder: Path) -> Path:
    """The shared library of one of the C files here, built in `folder`. CalledProcessError or OSError if not."""
    library = folder / f"{source}.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", HERE / source, "-o", library, "-ldl"], check=True)
    return library


def _load_package(folder: Path) -> tuple[Any, Any]:
    """(bochscpu, bochscpu.memory), on a model with AVX-512 VNNI. ImportError, OSError or CalledProcessError if not."""
    found = importlib.util.find_spec("bochscpu")
    if found is None or found.origin is None:
        raise ImportError("the package bochscpu-python is not installed")
    library = ctypes.CDLL(str(build("shim.c", folder)), mode=ctypes.RTLD_GLOBAL)
    package = next(Path(found.origin).parent.glob("_bochscpu*.so"))
    _load_package.path = ctypes.c_char_p(str(package).encode())  # type: ignore[attr-defined]  # the shim keeps it
    library.set_package(_load_package.path)  # type: ignore[attr-defined]
    import bochscpu
    import bochscpu.memory

    return bochscpu, bochscpu.memory


class EmulatedCpu:
    """One emulated CPU in long mode with all of AVX-512 enabled."""

    def __init__(self, folder: Path) -> None:
        self._bochs, self._memory = _load_package(folder)
        self._trap = ctypes.CDLL(str(build("trap.c", folder)))
        self.tile_instructions = 0
        self._tables, self._tables_at = _area(PAGE * 256)
        self._stack, self._stack_at = _area(8 << 20)
        self._code, self._code_at = _area(PAGE)
        self._code[:1] = HALT
        self._used_tables = 1
        self._gibs: list[int] = []
        self._session = self._bochs.Session()
        self._session.missing_page_handler = self._lend

    def _lend(self, address: int) -> None:
        page, gib = address & ~(PAGE - 1), address // GIB
        offset = page - TABLES + self._tables_at if gib == 0 else self._gibs[gib - 1] * GIB + page % GIB
        self._memory.page_insert(page, offset)

    def _new_table(self) -> int:
        self._used_tables += 1
        return self._used_tables - 1

    def _map_new_memory(self) -> None:
        """Enters every GiB that the process uses and that is not in the page tables yet."""
        for line in Path("/proc/self/maps").read_text().splitlines():
            low, high = (int(part, 16) for part in line.split()[0].split("-"))
            for gib in range(low // GIB, (high - 1) // GIB + 1) if high < 1 << 47 else ():
                if gib not in self._gibs:
                    self._gibs.append(gib)
                    self._map(gib, len(self._gibs))

    def _map(self, gib: int, physical: int) -> None:
        (entry,) = struct.unpack_from("<Q", self._tables, 8 * (gib >> 9))
        if not entry:
            entry = (TABLES + PAGE * self._new_table()) | 7
            struct.pack_into("<Q", self._tables, 8 * (gib >> 9), entry)
        upper, lower = (entry - TABLES) // PAGE, self._new_table()
        struct.pack_into("<Q", self._tables, PAGE * upper + 8 * (gib & 511), (TABLES + PAGE * lower) | 7)
        large = [(physical * GIB | i << 21) | 0x87 for i in range(512)]  # pages of 2 MiB
        struct.pack_into("<512Q", self._tables, PAGE * lower, *large)

    def _segment(self, selector: int, attributes: int, base: int = 0) -> Any:
        segment = self._bochs.Segment()
        segment.base, segment.limit, segment.selector = base, 0xFFFFFFFF, selector
        segment.attr, segment.present = attributes, True
        return segment

    def _state(self, function: int, arguments: tuple[int, ...]) -> Any:
        state = self._bochs.State()
        state.cr0, state.cr3, state.cr4, state.efer = 0x80050033, TABLES, 0x000406E0 | 1 << 18, 0xD01
        state.xcr0, state.rflags, state.mxcsr = 0xE7, 2, 0x1F80
        state.cs = self._segment(0x10, 0xA09B)
        for name in ("ds", "es", "ss", "gs"):
            setattr(state, name, self._segment(0x18, 0xC093))
        state.fs = self._segment(0, 0xC093, self._stack_at + 64)  # a stack protector reads its canary there
        top = ((self._stack_at + len(self._stack) - 2 * PAGE) & ~63) - 8
        for i, value in enumerate((self._code_at, *arguments[6:])):
            ctypes.c_uint64.from_address(top + 8 * i).value = value
        state.rsp, state.rip = top, function
        for name, value in zip(("rdi", "rsi", "rdx", "rcx", "r8", "r9"), arguments, strict=False):
            setattr(state, name, value)
        return state

    def _run(self, state: Any) -> tuple[int, str, Any] | None:
        """Runs from `state` to the end (None), or to an exception: (vector, what happened, the state there)."""
        stops: list[tuple[int, str, Any]] = []
        hook = self._bochs.Hook()
        hook.hlt = lambda session, cpu: session.stop()

        def fault(session: Any, cpu: Any, vector: Any, code: Any) -> None:
            at = session.cpu.rip
            stops.append((int(vector), f"exception {int(vector)} ({code}) at {at:#x}", session.cpu.state))
            session.stop()

        hook.exception = fault
        self._session.cpu.state = state
        self._session.run([hook])
        return stops[0] if stops else None

    def _step_tiles(self, state: Any) -> bool:
        """Does the work of the tile instructions at `state`, whose rip is behind the first; False if none are there."""

        def read(context: int, number: int) -> int:
            return ctypes.c_int64(getattr(state, REGISTERS[number])).value

        reader = ReadRegister(read)
        for length in range(5, 12):
            head = ctypes.string_at(state.rip - length, 4)
            if head[0] == 0xC4 and head[1] & 31 == 2 and head[3] in (0x49, 0x4B, 0x5C, 0x5E):
                state.rip -= length
                break
        before = self.tile_instructions
        while (length := self._trap.amx_step(ctypes.c_void_p(state.rip), reader, None)) > 0:
            state.rip += length
            self.tile_instructions += 1
        return self.tile_instructions > before

    def call(self, function: int, *arguments: int) -> int:
        """The integer that the C function at that address returns. RuntimeError if it raises a CPU exception."""
        self._map_new_memory()
        state = self._state(function, arguments)
        while (stop := self._run(state)) is not None:
            vector, text, state = stop
            if vector != INVALID_OPCODE or not self._step_tiles(state):
                raise RuntimeError(text)
        return int(self._session.cpu.rax) & 0xFFFFFFFF
