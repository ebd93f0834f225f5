"""The wheel holds what it must, works in a clean place, and an install without a compiler says what is missing."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def run(*args, **env):
    return subprocess.run(args, capture_output=True, text=True, env=os.environ | env, timeout=300)


def tracked(tmp):
    """A copy of the files under version control, or of the tree where there is no git."""
    listed = run("git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard")
    names = listed.stdout.split("\n") if listed.returncode == 0 else []
    copy = tmp / "a folder with spaces"
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    return copy


def wheel(tmp, **env):
    source, out = tracked(tmp), tmp / "out"
    # Through a source distribution, as `python -m build` does: it must hold all that the kernels are built from.
    done = run(sys.executable, "-m", "build", "--no-isolation", "-o", str(out), str(source), **env)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = out.glob("hetero-*.whl")
    return path


def hetero(site, *args):
    """`hetero` from an unpacked wheel, away from the checkout; the dependencies come from this environment."""
    code = "import sys; from hetero.cli.main import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *args], capture_output=True, text=True, cwd=site, timeout=120,
        env=os.environ | {"PYTHONPATH": str(site)},
    )  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    tmp = tmp_path_factory.mktemp("wheel")
    path = wheel(tmp)
    assert "-cp310-abi3-linux_" in path.name
    zipfile.ZipFile(path).extractall(tmp / "site")
    return tmp / "site"


def test_the_wheel_has_every_room_the_kernels_and_the_demo_model(site):
    for room in ("cli", "machine", "models", "engine", "native"):
        assert (site / "hetero" / room / "__init__.py").exists()
        assert (site / "hetero" / room / "py.typed").exists()
    assert not (site / "hetero" / "__init__.py").exists(), "hetero is a namespace"
    assert {p.name for p in (site / "hetero/native").glob("*.so")} >= {"_generic.abi3.so"}
    assert (site / "hetero/native/hetero.h").exists()
    assert (site / "hetero/models/demo/hetero-demo.gguf").exists()
    assert not list(site.glob("tests*"))


def test_the_wheel_answers_from_a_clean_place(site):
    done = hetero(site, "chat", "-p", "What is a mixture of experts?", "--max-tokens", "30")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) >= 3


def test_without_a_compiler_it_installs_and_says_so(tmp_path):
    path = wheel(tmp_path, CC="/bin/false", CXX="/bin/false")
    zipfile.ZipFile(path).extractall(tmp_path / "site")
    assert not list((tmp_path / "site/hetero/native").glob("*.so"))
    probe = hetero(tmp_path / "site", "probe", "--quick")
    assert probe.returncode == 0
    assert "compiler" in probe.stdout + probe.stderr
    chat = hetero(tmp_path / "site", "chat", "-p", "hi")
    assert chat.returncode == 3
    assert "compiler" in chat.stderr
    assert "Traceback" not in chat.stderr
