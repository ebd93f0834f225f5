"""The table of `make bench-kernels`: what is counted, which ceiling counts, and a short real run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import kernels
from bench.kernels import cell
from hetero.machine.ceilings import Ceilings

AVX2 = Ceilings(read=50e9, int8=500e9, maddubs=900e9, madd=450e9, f32=250e9)


def test_bytes_are_those_of_the_packed_matrix_and_operations_two_a_weight_and_token() -> None:
    # 48 tiles of 64 blocks of 256 bytes, and for each block 16 scales of 2 bytes.
    size = 48 * 64 * (256 + 32)
    found = cell("avx2", "Q4_0", (768, 2048), 4, 1e-4, AVX2)
    assert found.bytes_per_s == pytest.approx(size / 1e-4)
    assert found.ops_per_s == pytest.approx(2 * 768 * 2048 * 4 / 1e-4)
    assert found.of_read == pytest.approx(size / 1e-4 / 50e9)
    assert found.of_arithmetic == pytest.approx(2 * 768 * 2048 * 4 / 1e-4 / 900e9)


def test_a_table_has_a_row_for_each_token_count_and_both_shapes() -> None:
    cells = [cell("avx2", "Q8_0", shape, t, 1e-4, AVX2) for shape in kernels.SHAPES for t in kernels.TOKENS]
    lines = kernels.table(cells).splitlines()
    assert len(lines) == 2 + len(kernels.TOKENS)
    assert lines[0].split()[:2] == ["avx2", "Q8_0"]
    assert [int(line.split()[0]) for line in lines[2:]] == list(kernels.TOKENS)
    assert all(line.count("%") == 4 for line in lines[2:])
    assert len({len(line) for line in lines}) == 1


@pytest.mark.parametrize("args", [["--tiers", "sse9"], ["--formats", "Q9_9"], ["--budget", "much"]])
def test_unknown_tiers_and_formats_are_refused(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        kernels.parse(args)
    assert stopped.value.code == 2
    assert args[1] in capsys.readouterr().err


def test_a_short_run_prints_tables_and_writes_every_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "TOKENS", (1, 8))
    monkeypatch.setattr(kernels, "_SET_BYTES", 32 << 20)
    path = tmp_path / "out" / "k.json"
    assert kernels.main(["--formats", "Q4_0", "--threads", "1", "--budget", "0", "--json", str(path)]) == 0
    body = json.loads(path.read_text())
    tiers = {one["tier"] for one in body["cells"]}
    assert (body["schema"], body["version"], body["threads"]) == ("hetero.bench-kernels", 1, 1)
    assert len(body["cells"]) == len(tiers) * 2 * 2
    assert all(one["seconds"] > 0 and one["of_read"] > 0 for one in body["cells"])
    assert capsys.readouterr().out.count("tokens") == len(tiers)
