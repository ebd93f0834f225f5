"""`hetero convert`: a checkpoint laid out for this engine, so that later starts are instant."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from hetero.cli import known, options, output, plan_view
from hetero.machine.types import ModelIndex, Plan, PlanRequest, UsageError
from hetero.machine.units import size_text

if TYPE_CHECKING:
    from hetero.machine.advice import Case
    from hetero.models.conversion import ConvertReport
    from hetero.models.importance import Importance
    from hetero.models.treatment import Treatment

_Source = Annotated[str, typer.Argument(metavar="SRC", help="A GGUF file or a safetensors directory.")]
_Destination = Annotated[
    str | None,
    typer.Argument(metavar="DST", help="The store to write, by default NAME.hetero beside SRC.", show_default=False),
]
_TEXT = 1 << 20
"""Characters of a text that are read to calibrate."""
_Experts = Annotated[
    Literal["keep", "q4", "q8", "bf16", "mixed"],
    typer.Option("--experts", help="Format of the experts; keep only rearranges them."),
]
_Bits = Annotated[
    float | None,
    typer.Option("--bits", metavar="X", help="Average bits per weight of mixed experts, by default 5.5."),
]
_Calibrate = Annotated[
    str | None,
    typer.Option("--calibrate", metavar="TEXT", help="Run the model over this text first, to see which weights count."),
]
_Dense = Annotated[
    str | None,
    typer.Option("--dense", metavar="FORMAT", help="Format of the dense matrices: keep, q4, q8, bf16, f16 or f32."),
]
_Verify = Annotated[bool, typer.Option("--verify", help="Check a store (SRC), or the one just written.")]
_Force = Annotated[bool, typer.Option("--force", help="Replace another store, and go on though space seems short.")]


def convert(
    source: _Source,
    destination: _Destination = None,
    experts: _Experts = "keep",
    bits: _Bits = None,
    calibrate: _Calibrate = None,
    dense: _Dense = None,
    verify: _Verify = False,
    force: _Force = False,
    dry_run: options.DryRun = False,
    json: options.Json = False,
    verbose: options.Verbose = False,
    log_file: options.LogFile = None,
) -> None:
    """Convert a checkpoint into a store, which loads at once."""
    from hetero.models.store import is_store
    from hetero.models.treatment import checked

    src = _path(source, "SRC")
    dst = None if destination is None else _path(destination, "DST")
    if is_store(src) and verify:
        if dst is not None or experts != "keep" or (dense, bits, calibrate) != (None, None, None):
            what = "no DST" if dst is not None else "no formats: its weights are only read"
            raise UsageError(f"--verify of a store takes {what}", f"hetero convert {shlex.quote(source)} --verify")
        _verify(src, json)
        return
    how = checked(experts, dense, bits, calibrate is not None)
    text = None if calibrate is None else _text(_path(calibrate, "TEXT"))
    if text is not None and (how.experts == "mixed" or not dry_run):  # other sizes do not depend on what counts
        importance = _importance(src, dst, text)
        output.note(f"calibrated on {importance.tokens:,} tokens of {calibrate}")
        how = dataclasses.replace(how, importance=importance)
    if dry_run:
        _dry_run(src, dst, how, json)
    else:
        _convert(src, dst, how, verify, force, json)


def _path(text: str, what: str) -> Path:
    if not text.strip():
        raise UsageError(f"{what} is empty", "`hetero convert --help` shows what it takes")
    return Path(text)


def _importance(src: Path, dst: Path | None, text: str) -> Importance:
    """What running the source over the text shows."""
    from hetero.engine import Engine
    from hetero.engine.calibration import WINDOW
    from hetero.engine.calibration import calibrate as run

    context = min(WINDOW, _longest_context(src, dst))
    with output.progress("loading") as progress:
        engine = Engine.load(src, context=context, progress=progress)
    with contextlib.closing(engine), output.progress("calibrating") as progress:
        return run(engine, text, progress)


def _longest_context(src: Path, dst: Path | None) -> int:
    """How many tokens the checkpoint was made for. What no conversion can be made of, or be put in, is refused here:
    to load a model and to run a text takes long."""
    from hetero.models.checkpoint import open_checkpoint
    from hetero.models.convert import check_source
    from hetero.models.destination import Destination, default_destination

    check_source(src)
    with contextlib.closing(open_checkpoint(src)) as checkpoint:
        Destination((default_destination(src) if dst is None else dst).absolute()).check_parent()
        return checkpoint.index.max_context


def _text(path: Path) -> str:
    """The first characters of a text, more than a calibration reads."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(_TEXT)
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a text in UTF-8", "name a text file like those the model will read") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", "name a text file") from None
    if not text.strip():
        raise UsageError(f"{path} is empty", "name a text file like those the model will read")
    return text


def _convert(src: Path, dst: Path | None, how: Treatment, check: bool, force: bool, as_json: bool) -> None:
    from hetero.models.convert import convert as run
    from hetero.models.store import verify
    from hetero.native import Kernels, choose_tier

    kernels = Kernels(choose_tier(None))
    with output.progress("converting") as progress:
        report = run(
            src,
            dst,
            experts=how.experts,
            dense=how.dense,
            bits=how.bits,
            importance=how.importance,
            kernels=kernels,
            progress=progress,
            force=force,
        )
    known.remember(report.path, src)
    if check:
        with output.progress("verifying") as progress:
            verify(report.path, progress)
    if as_json:
        output.json_result("hetero.convert", _body(report, check))
    else:
        _show(report, src, check)


def _body(report: ConvertReport, verified: bool) -> dict[str, object]:
    body = dataclasses.asdict(report)
    errors = [{"layer": layer, "relative_rms": error} for layer, error in sorted(report.errors.items())]
    formats = {str(layer): fmt for layer, fmt in sorted(report.formats.items())}
    return body | {"path": str(report.path), "errors": errors, "formats": formats, "verified": verified}


def _show(report: ConvertReport, source: Path, verified: bool) -> None:
    for text in report.notes:
        output.note(text)
    if report.errors:
        chosen = report.formats
        rows = [
            (str(layer), *((chosen[layer],) if chosen else ()), f"{error:.3%}")
            for layer, error in sorted(report.errors.items())
        ]
        treated, _, _ = report.experts.partition(",")  # the dense matrices are told of on a line of their own
        headers = ("layer", *(("format",) if chosen else ()), f"error of {treated} experts (relative RMS)")
        output.table(rows, headers=headers, right=(0, len(headers) - 1))
    if report.dense_error is not None:
        output.note(f"error of the dense matrices (relative RMS): {report.dense_error:.3%}")
    if report.resumed_files:
        output.note(f"{report.resumed_files} files were there from an interrupted run")
    _note_text(report.path)
    state = "already converted" if report.already_converted else "converted"
    sizes = f"{size_text(report.source_bytes)} of weights to {size_text(report.store_bytes)}"
    output.success(
        f"{state}{' and verified' if verified else ''}, {sizes}; hetero chat {shlex.quote(str(report.path))}"
    )
    both = size_text(report.source_file_bytes + report.store_bytes)
    if verified:
        lost = _lost(report.experts, report.left_out)
        output.note(f"both copies take {both}; the store is whole, so {source} may be deleted{lost}")
    else:
        check = f"hetero convert {shlex.quote(str(report.path))} --verify"
        output.note(f"both copies take {both}; {check} says whether the source may be deleted")
    output.result(str(report.path))


def _note_text(store: Path) -> None:
    """The tokens that begin and end texts, which converters have been known to get wrong, and what is odd of them."""
    from hetero.models.store import open_store

    text = open_store(store).text()
    bos = text.tokenizer.bos_id
    begun = bos is not None and text.tokenizer.edges.add_bos
    begins = f"texts begin with {text.tokenizer.token(bos or 0)}, " if begun else ""
    stops = " ".join(sorted(text.tokenizer.token(token) for token in text.stop_ids)) or "nothing"
    output.note(f"{begins}answers end at {stops}")
    for note in text.notes:
        output.note(note)


def _lost(treatment: str, left_out: str) -> str:
    """What a checkpoint has that its store lacks, because weights were quantised or parts were not kept."""
    wanted = [] if treatment == "keep" else [f"its weights as they were before {treatment}"]
    wanted += [f"its {left_out}, which the store does not keep"] if left_out else []
    return f" unless you want {' or '.join(wanted)}" if wanted else ""


def _verify(store: Path, as_json: bool) -> None:
    from hetero.models.store import open_store, verify

    with output.progress("verifying") as progress:
        report = verify(store, progress)
    if as_json:
        body = {"path": str(report.path), "fingerprint": report.fingerprint, "store_bytes": report.bytes}
        output.json_result("hetero.convert", body | {"verified": True})
    else:
        whole = f"{report.files} files, {size_text(report.bytes)}: every byte is as it was written"
        manifest = open_store(report.path).manifest
        lost = _lost(manifest.experts, manifest.left_out)
        output.success(f"{whole}; the checkpoint it was made from may be deleted{lost}")
        output.result(str(report.path))


def _dry_run(src: Path, dst: Path | None, how: Treatment, as_json: bool) -> None:
    """What a conversion would write: from headers alone, but for mixed experts, whose errors are measured."""
    from hetero.models.checkpoint import open_checkpoint
    from hetero.models.destination import Destination, default_destination
    from hetero.models.treatment import planned, treated_index
    from hetero.native import Kernels, choose_tier

    path = default_destination(src) if dst is None else dst
    with contextlib.closing(open_checkpoint(src)) as checkpoint, output.progress("measuring") as progress:
        Destination(path.absolute()).check_parent()
        index, mtp = checkpoint.index, checkpoint.mtp
        if how.experts == "mixed":
            how = planned(how, checkpoint, Kernels(choose_tier(None)), progress)
        layout = how.layout(checkpoint)
    sizes = {
        "source_bytes": sum(tensor.n_bytes for tensor in index.tensors) + sum(tensor.n_bytes for tensor in mtp),
        "dense_bytes": layout.dense_bytes,
        "expert_bytes": layout.expert_bytes,
        "mtp_bytes": layout.mtp_bytes,
        "free_bytes": shutil.disk_usage(path.absolute().parent).free,
    }
    experts = how.label
    case, plan = _plan_of_store(treated_index(index, layout))
    if as_json:
        body = {"path": str(path), "experts": experts, "dry_run": True, **sizes}
        made = plan_view.plan_body(case, plan, inputs={"model": str(src), "machine": {}})
        output.json_result("hetero.convert", body | {"plan": made})
        return
    rows = [("model", f"{index.name} ({index.architecture})"), ("store", str(path))]
    rows += [("experts", experts)] if index.n_experts else []
    labels = ("source", "dense part", "experts", "multi-token prediction", "free on disk")
    shown = zip(labels, sizes.values(), strict=True)
    output.table([*rows, *((label, size_text(size)) for label, size in shown if size)])
    plan_view.show_briefly(plan)


def _plan_of_store(index: ModelIndex) -> tuple[Case, Plan]:
    """What the store would need and do here; the same plan as every command's."""
    from hetero.cli.history import calibrated
    from hetero.cli.rates import with_known_rates
    from hetero.machine.advice import Case
    from hetero.machine.probe import probe

    machine = with_known_rates(probe(quick=True))
    case = Case(index, machine, calibrated(PlanRequest(), machine))
    return case, case.plan()
