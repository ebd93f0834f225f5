"""The control groups that hold this process, from its own up to the highest one visible, in v1 and v2."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hetero.machine.files import read_text


@dataclass(frozen=True, slots=True)
class Group:
    """One control group: its hierarchy's version, its folder, and the folder's name without the fixture's root."""

    version: int
    path: Path
    shown: str


@dataclass(frozen=True, slots=True)
class _Mount:
    version: int
    controllers: frozenset[str]
    root: str
    point: str


def groups(root: Path, controller: str) -> tuple[Group, ...]:
    """All groups above this process that could limit `controller` (`cpu`, `memory`, `cpuset`), own group first.

    A hybrid system has v1 and v2 hierarchies at once; groups of both are returned.
    """
    memberships = _memberships(root)
    found: list[Group] = []
    for mount in _mounts(root) or _usual_mounts(root, controller):
        if mount.version == 2:
            found.extend(_ancestry(root, mount, memberships.get("", "/")))
        elif controller in mount.controllers:
            found.extend(_ancestry(root, mount, memberships.get(controller, "/")))
    return tuple(found)


def _memberships(root: Path) -> dict[str, str]:
    """Controller -> path of this process's group; the v2 hierarchy has the empty name."""
    result: dict[str, str] = {}
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        for name in names.split(","):
            result[name] = path
    return result


def _mounts(root: Path) -> list[_Mount]:
    mounts: list[_Mount] = []
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        left, separator, right = line.partition(" - ")
        fields, tail = left.split(), right.split()
        if not separator or len(fields) < 5 or not tail or tail[0] not in ("cgroup", "cgroup2"):
            continue
        version = 2 if tail[0] == "cgroup2" else 1
        names = frozenset(tail[2].split(",")) if len(tail) > 2 else frozenset[str]()
        mounts.append(_Mount(version, names, _unescape(fields[3]), _unescape(fields[4])))
    return mounts


def _unescape(text: str) -> str:
    return text.replace("\\040", " ").replace("\\134", "\\")


def _usual_mounts(root: Path, controller: str) -> list[_Mount]:
    """Where the hierarchies are by custom, for systems that hide mountinfo."""
    base = "/sys/fs/cgroup"
    mounts: list[_Mount] = []
    if (root / base[1:] / controller).is_dir():
        mounts.append(_Mount(1, frozenset({controller}), "/", f"{base}/{controller}"))
    elif (root / base[1:]).is_dir():
        mounts.append(_Mount(2, frozenset(), "/", base))
    return mounts


def _ancestry(root: Path, mount: _Mount, path: str) -> Iterator[Group]:
    """The existing folders from `path` up to the mount point.

    A container sees its group's host path in /proc/self/cgroup while only that group (mountinfo's root field) or
    a namespace is mounted; whatever of the path is not visible below the mount point is left out.
    """
    below = path
    if mount.root != "/":
        inside = path == mount.root or path.startswith(mount.root + "/")
        below = path[len(mount.root) :] if inside else "/"
    parts = [part for part in PurePosixPath(below).parts if part != "/"]
    if ".." in parts:
        parts = []
    for depth in range(len(parts), -1, -1):
        shown = PurePosixPath(mount.point, *parts[:depth])
        folder = root / str(shown).lstrip("/")
        if folder.is_dir():
            yield Group(mount.version, folder, str(shown))
