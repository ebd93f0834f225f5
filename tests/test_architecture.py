"""The house's rules, read from the sources: who may import whom, where torch may load, who may print."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

REPO = Path(__file__).parent.parent
ROOMS = ("cli", "machine", "models", "engine", "native")
TYPES = "hetero.machine.types"
MAY_IMPORT = {
    "cli": {"machine", "models", "engine", "native"},
    "engine": {"models", "native"},
    "models": {"native"},
    "machine": {"native"},
    "native": set[str](),
}
"""Rooms below each room. `hetero.machine.types` is open to all and not listed."""

PLANNERS = {"hetero.machine.probe", "hetero.machine.plan"}
LOADERS = {"engine/load.py", "engine/engine.py"}
"""Only Engine.load may probe and plan for itself, when it is given no plan."""

TORCH_ROOMS = {"engine"}
"""Opening, checking or converting a checkpoint must not wait for torch, so no other room loads it on import."""

PRINTERS = {"cli", "demo"}


@dataclass(frozen=True)
class Import:
    """One imported module name, dots in front for a relative one, and whether importing the file runs it."""

    module: str
    line: int
    at_import: bool


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (REPO / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(REPO).as_posix()


def imports(tree: ast.AST, at_import: bool = True) -> Iterator[Import]:
    """All imports below `tree`; those in functions or under TYPE_CHECKING do not run at import."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, node.lineno, at_import)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            # `from hetero.machine import types` means the submodule as much as `import hetero.machine.types`.
            yield from (Import(f"{module}.{alias.name}", node.lineno, at_import) for alias in node.names)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from (found for part in node.body for found in imports(ast.Module([part], []), False))
            yield from imports(ast.Module(node.orelse, []), at_import)
        else:
            in_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports(node, at_import and not in_function)


def imports_of(path: Path) -> list[Import]:
    return list(imports(ast.parse(path.read_text(encoding="utf-8"))))


def is_within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def imported_room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if parts[0] == "hetero" and len(parts) > 1 else None


def breaches_of_direction(room: str, found: list[Import]) -> list[str]:
    """Imports of `room` that point to a room above or beside it."""
    wrong = []
    for item in found:
        target = imported_room(item.module)
        if target in (None, room) or is_within(item.module, TYPES):
            continue
        if room == "engine" and any(is_within(item.module, planner) for planner in PLANNERS):
            continue
        if target not in MAY_IMPORT[room]:
            wrong.append(f"line {item.line}: {room} imports {item.module}")
    return wrong


def test_every_room_has_sources() -> None:
    assert all(sources(room) for room in ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_one_way(room: str) -> None:
    wrong = {name_of(path): breaches_of_direction(room, imports_of(path)) for path in sources(room)}
    assert {name: lines for name, lines in wrong.items() if lines} == {}


def test_shared_types_import_nothing_of_hetero() -> None:
    assert [item for item in imports_of(REPO / "machine/types.py") if imported_room(item.module)] == []


def test_only_engine_load_probes_and_plans() -> None:
    users = {
        name_of(path)
        for path in sources("engine")
        if any(is_within(item.module, planner) for item in imports_of(path) for planner in PLANNERS)
    }
    assert users <= LOADERS


def test_no_room_is_imported_without_its_prefix() -> None:
    """`import engine.x` works from the repository's root, and is then a second copy of hetero.engine.x."""
    wrong = [
        f"{name_of(path)}:{item.line} {item.module}"
        for path in sources(*ROOMS, "tests", "demo")
        for item in imports_of(path)
        if item.module.split(".")[0] in ROOMS
    ]
    assert wrong == []


def test_rooms_use_no_relative_imports() -> None:
    wrong = [
        f"{name_of(path)}:{item.line} {item.module}"
        for path in sources(*ROOMS)
        for item in imports_of(path)
        if item.module.startswith(".")
    ]
    assert wrong == []


def torch_free() -> list[Path]:
    """Sources that must not load torch when imported."""
    rooms = [room for room in ROOMS if room not in TORCH_ROOMS]
    return sources(*rooms)


def test_torch_is_not_imported_at_module_level() -> None:
    wrong = [
        f"{name_of(path)}:{item.line} {item.module}"
        for path in torch_free()
        for item in imports_of(path)
        if item.at_import and (is_within(item.module, "torch") or is_within(item.module, "hetero.engine"))
    ]
    assert wrong == []


def test_importing_the_torch_free_modules_loads_no_torch() -> None:
    """Catches what the sources do not show: a library that brings torch along."""
    modules = [
        "hetero." + name_of(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for path in torch_free()
        if path.name != "__main__.py"
    ]
    code = (
        f"import importlib, sys\nfor name in {modules!r}:\n    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, f'{name} loads torch'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_only_the_command_line_prints() -> None:
    wrong = [
        f"{name_of(path)}:{node.lineno}"
        for path in sources(*(room for room in ROOMS if room not in PRINTERS))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("room", "line", "allowed"),
    [
        ("models", "from hetero.engine import Engine", False),
        ("models", "import hetero.machine.probe", False),
        ("models", "from hetero.machine import probe", False),
        ("models", "from hetero.machine.types import ModelIndex", True),
        ("native", "from hetero.models.config import ModelConfig", False),
        ("machine", "def f():\n    from hetero.models import x", False),
        ("engine", "from hetero.cli import main", False),
        ("engine", "from hetero.machine.cpu import usable_cpus", False),
        ("cli", "from hetero.engine import Engine", True),
    ],
)
def test_the_walk_itself_tells_breaches_from_allowed_imports(room: str, line: str, allowed: bool) -> None:
    assert (breaches_of_direction(room, list(imports(ast.parse(line)))) == []) == allowed


def test_the_walk_itself_knows_what_runs_at_import() -> None:
    code = (
        "if TYPE_CHECKING:\n    import a\nelse:\n    import b\n"
        "try:\n    import c\nexcept ImportError:\n    pass\n"
        "class X:\n    import d\n    def f(self):\n        import e\n"
    )
    found = {item.module: item.at_import for item in imports(ast.parse(code))}
    assert found == {"a": False, "b": True, "c": True, "d": True, "e": False}
