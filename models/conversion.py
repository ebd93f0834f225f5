"""The work of one conversion, once its source is open and its destination locked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from safetensors.numpy import save as save_safetensors

from hetero.machine.types import ModelError, TierError, UsageError
from hetero.models.checkpoint import Checkpoint
from hetero.models.destination import Destination, check_removable, remove_store
from hetero.models.direct import create
from hetero.models.extents import Extent, dense_extent, first_damaged, layer_extent, mtp_extent
from hetero.models.finish import Finisher
from hetero.models.hashing import fingerprint
from hetero.models.importance import Importance
from hetero.models.journal import JOURNAL, Journal, sync_directory, write_safely
from hetero.models.layout import DENSE_FILE, MTP_FILE, SMALL_FILE, LayerSlot, Layout
from hetero.models.manifest import MANIFEST, Manifest, StoredFile, read_manifest, write_manifest
from hetero.models.mtp import copy_mtp
from hetero.models.pack import FileSink, Packed, Tick, pack_dense, pack_layer, read_small
from hetero.models.progress import Meter, Progress
from hetero.models.source_key import source_key
from hetero.models.store import TOKENIZER, small_files
from hetero.native import Kernels

_MANIFEST_BYTES = 1 << 20
"""Allowance for the manifest's text besides its checksums."""
_CHECKSUM_BYTES = 48
"""A checksum in the manifest or the journal, with quotes and indentation."""


@dataclass(frozen=True, slots=True)
class ConvertReport:
    """What a conversion did. `errors` is the relative RMS error of each layer whose experts were quantised, `notes` say
    what was assumed or lost in reading the source."""

    path: Path
    fingerprint: str
    experts: str
    source_bytes: int
    store_bytes: int
    resumed_files: int = 0
    """Files that an interrupted run had finished."""
    already_converted: bool = False
    errors: dict[int, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    formats: dict[int, str] = field(default_factory=dict)
    """The format of each layer's experts, or those of its parts, where they were chosen for each (mixed)."""
    dense_error: float | None = None
    """The relative RMS error of the dense matrices that were quantised."""
    source_file_bytes: int = 0
    """What the source's files take on disk; with the store, what keeping both needs."""
    left_out: str = ""
    """What the source holds and the store does not, in words."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """One file of packed weights: how large it is, how to make it, and what to check in a finished one."""

    file: str
    what: str
    length: int
    source_bytes: int
    n_checksums: int
    pack: Callable[[FileSink, Tick], Packed]
    extents: Callable[[Packed], list[Extent]]
    direct: bool = False
    """All of it is written in whole pages."""


@dataclass(slots=True)
class Conversion:
    """Writes `source` in the form of `layout` to `target`; `text` is a folder with the tokenizer's files."""

    source: Checkpoint
    target: Destination
    layout: Layout
    text: Path
    experts: str
    kernels: Kernels
    progress: Progress
    mixed: bool = False
    importance: Importance | None = None
    key: str = ""
    resumed: int = 0
    results: dict[str, Packed] = field(default_factory=dict)

    def run(self, force: bool) -> ConvertReport:
        """Converts or resumes; with `force`, over an existing store and without the check for free space."""
        self.target.recover()
        self.key = source_key(self.source, self.text, self.experts)
        if existing := self._existing(force):
            return existing
        finished = _read_if_complete(self.target.tmp)
        if finished is None or finished.source_key != self.key:
            finished = self._write_all(self._journal(force))
        self._publish()
        return self._report(finished)

    def _existing(self, force: bool) -> ConvertReport | None:
        path = self.target.path
        if force and path.exists():
            check_removable(path)
        if force or not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return None
        manifest = _read_if_complete(path)
        if manifest is not None and manifest.source_key == self.key:
            return self._report(manifest, already=True)
        raise UsageError(
            f"{path} exists and is not this model converted with --experts {self.experts}",
            "name another destination, or replace it with --force",
        )

    def _journal(self, force: bool) -> Journal:
        """The interrupted run's journal, or a new one in an empty folder; checks for space before it writes."""
        tmp = self.target.tmp
        if not force:
            self._check_space()
        journal = Journal.read(tmp, self.key)
        if journal is None:
            if tmp.exists():
                remove_store(tmp)
            tmp.mkdir()
            return Journal.create(tmp, self.key)
        (tmp / MANIFEST).unlink(missing_ok=True)
        journal.rewrite()
        return journal

    def _check_space(self) -> None:
        # What an interrupted run has left is either used or deleted, so it counts as free.
        parent = self.target.path.parent
        free = shutil.disk_usage(parent).free + _tree_bytes(self.target.tmp)
        needed = self._needed_bytes()
        if needed > free:
            raise TierError(
                f"{parent}: the store needs {needed:,} bytes, {free:,} are free",
                "free some space, name a destination on another disk, or try anyway with --force",
            )

    def _needed_bytes(self) -> int:
        units = list(self._units())
        checksums = sum(unit.n_checksums for unit in units) * _CHECKSUM_BYTES
        small = sum(4 * _elements(info.shape) + 256 for info in self.layout.small)
        return sum(unit.length for unit in units) + small + _tree_bytes(self.text) + 2 * checksums + _MANIFEST_BYTES

    def _write_all(self, journal: Journal) -> Manifest:
        tmp = self.target.tmp
        meter = Meter(self.progress, self._source_bytes())
        meter.what = "norms and tokenizer"
        arrays, digests = read_small(self.source, self.layout.small, meter.tick)
        write_safely(tmp / SMALL_FILE, save_safetensors(dict(arrays)))
        self._write_text()
        done = dict(journal.done)
        with Finisher(journal) as finisher:
            for unit in self._units():
                meter.what = unit.what
                packed = done.get(unit.file)
                if packed is not None and self._intact(unit, packed):
                    self.resumed += 1
                    meter.tick(unit.source_bytes)
                else:
                    packed = self._write(unit, finisher, meter.tick)
                self.results[unit.file] = packed
                digests |= packed.digests
        self._refuse_changed()
        manifest = self._manifest(fingerprint(digests))
        write_safely(tmp / MANIFEST, write_manifest(manifest))
        return manifest

    def _refuse_changed(self) -> None:
        """A source that was written to meanwhile: no file made of it can be trusted, so none is kept for a next run.

        One that is out of reach may come back as it was: what was made of it is kept.
        """
        try:
            self.source.check_unchanged()
        except ModelError:
            remove_store(self.target.tmp)
            raise

    def _source_bytes(self) -> int:
        model = sum(info.n_bytes for info in self.source.index.tensors)
        return model + sum(slot.length for slot in self.layout.mtp)

    def _write_text(self) -> None:
        folder = self.target.tmp / TOKENIZER
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.text, folder, copy_function=_copy_synced)
        folder.chmod(self.target.tmp.stat().st_mode & 0o777)  # the copied folder was temporary, so private
        sync_directory(folder)

    def _units(self) -> Iterator[_Unit]:
        layout = self.layout
        yield _Unit(
            file=DENSE_FILE,
            what="dense matrices",
            length=layout.dense_bytes,
            source_bytes=sum(self.source.info(slot.name).n_bytes for slot in layout.dense),
            n_checksums=sum(slot.n_pieces for slot in layout.dense),
            pack=lambda sink, tick: pack_dense(self.source, layout.dense, self.kernels, sink, tick),
            extents=lambda packed: [dense_extent(slot, packed.checksums[slot.name]) for slot in layout.dense],
        )
        for slot in layout.layers:
            yield self._layer_unit(slot)
        if layout.mtp:
            yield _Unit(
                file=MTP_FILE,
                what="multi-token prediction",
                length=layout.mtp_bytes,
                source_bytes=sum(slot.length for slot in layout.mtp),
                n_checksums=sum(slot.n_pieces for slot in layout.mtp),
                pack=lambda sink, tick: copy_mtp(self.source, layout.mtp, sink, tick),
                extents=lambda packed: [mtp_extent(slot, packed.checksums[slot.key]) for slot in layout.mtp],
            )

    def _layer_unit(self, slot: LayerSlot) -> _Unit:
        known = self.importance.layers[slot.layer] if self.importance else None
        return _Unit(
            file=slot.file,
            what=f"experts of layer {slot.layer}",
            length=slot.length,
            source_bytes=sum(self.source.info(name).n_bytes for name in slot.names),
            n_checksums=slot.n_experts,
            pack=lambda sink, tick: pack_layer(self.source, slot, self.kernels, sink, tick, known),
            extents=lambda packed: [layer_extent(slot, packed.checksums[slot.file])],
            direct=True,
        )

    def _intact(self, unit: _Unit, packed: Packed) -> bool:
        """Whether the file of an earlier run still has its size and checksums."""
        path = self.target.tmp / unit.file
        if not path.is_file() or path.stat().st_size != unit.length:
            return False
        return not any(first_damaged(path.parent, extent, _no_tick) for extent in unit.extents(packed))

    def _write(self, unit: _Unit, finisher: Finisher, tick: Tick) -> Packed:
        final = self.target.tmp / unit.file
        part = final.with_name(final.name + ".part")
        fd = create(part, unit.direct)
        try:
            packed = unit.pack(FileSink(fd), tick)
            finisher.wait()
        except BaseException:
            # Gives the space of the unfinished file back; the finished ones stay for the next run.
            os.close(fd)
            part.unlink(missing_ok=True)
            raise
        finisher.finish(fd, part, final, packed)
        return packed

    def _manifest(self, print_of_source: str) -> Manifest:
        files = dict(small_files(self.target.tmp))
        files |= {unit.file: StoredFile(unit.length) for unit in self._units()}
        return Manifest(
            config=self.source.config,
            index=self.source.index,
            fingerprint=print_of_source,
            source_key=self.key,
            experts=self.experts,
            layout=self.layout,
            checksums={name: sums for packed in self.results.values() for name, sums in packed.checksums.items()},
            files=files,
            left_out=self.source.left_out,
        )

    def _publish(self) -> None:
        """Makes the complete folder visible under its final name."""
        tmp, path = self.target.tmp, self.target.path
        (tmp / JOURNAL).unlink(missing_ok=True)
        sync_directory(tmp)
        if path.exists() and any(path.iterdir()):
            path.rename(self.target.old)
        tmp.rename(path)
        sync_directory(path.parent)
        if self.target.old.exists():
            remove_store(self.target.old)

    def _report(self, manifest: Manifest, already: bool = False) -> ConvertReport:
        by_file = {slot.file: slot.layer for slot in self.layout.layers}
        errors = {by_file[f]: r.error for f, r in self.results.items() if f in by_file and r.error is not None}
        dense = self.results.get(DENSE_FILE)
        return ConvertReport(
            path=self.target.path,
            fingerprint=manifest.fingerprint,
            experts=self.experts,
            source_bytes=self._source_bytes(),
            store_bytes=_tree_bytes(self.target.path),
            resumed_files=self.resumed,
            already_converted=already,
            errors=errors,
            notes=self.source.notes,
            formats={slot.layer: _format_names(slot) for slot in self.layout.layers} if self.mixed else {},
            dense_error=dense.error if dense else None,
            source_file_bytes=sum(path.stat().st_size for path in self.source.files),
            left_out=manifest.left_out,
        )


def _format_names(slot: LayerSlot) -> str:
    alike = slot.gate_format == slot.down_format
    return slot.gate_format if alike else f"{slot.gate_format}, down {slot.down_format}"


def _read_if_complete(directory: Path) -> Manifest | None:
    try:
        return read_manifest(directory)
    except ModelError:
        return None


def _tree_bytes(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def _elements(shape: tuple[int, ...]) -> int:
    count = 1
    for dim in shape:
        count *= dim
    return count


def _copy_synced(src: str, dst: str) -> None:
    shutil.copyfile(src, dst)
    fd = os.open(dst, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _no_tick(n_bytes: int) -> None:
    """Checks of finished files are not counted as progress."""
