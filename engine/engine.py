"""The engine: a model, a plan and a KV cache, and the loop that turns requests into tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from hetero.engine.attention import Attention, NativeAttention, TorchAttention
from hetero.engine.batch import Batch
from hetero.engine.events import Event, Prefill
from hetero.engine.kvcache import KVCache
from hetero.engine.memory import held_bytes
from hetero.engine.ops import Ops, Runtime
from hetero.engine.owners import DenseOwner, NativeOwner, TorchOwner
from hetero.engine.request import Request
from hetero.engine.sampling import Sampler, Sampling
from hetero.engine.schedule import Schedule
from hetero.engine.steps import Steps
from hetero.engine.timing import Stopwatch
from hetero.machine.plan import plan as make_plan
from hetero.machine.probe import probe
from hetero.machine.types import Plan, PlanRequest, UsageError
from hetero.models.families import FAMILIES
from hetero.models.load import Model, load_model, open_model
from hetero.native import Kernels, Pool, choose_tier
from hetero.native.memory import settle_heap

Floats = npt.NDArray[np.float32]
Progress = Callable[[int, int, str], None]


def _owner(model: Model, plan: Plan, pool: Pool) -> DenseOwner:
    if plan.placement.dense == "cpu":
        return NativeOwner(model, pool)
    exact = all(matrix.format == "F32" for matrix in model.matrices.values())
    return TorchOwner(model, torch.device(plan.placement.dense), torch.float32 if exact else torch.bfloat16)


class Engine:
    """Runs requests on one model. Not thread-safe: one thread calls it."""

    def __init__(self, model: Model, plan: Plan, owner: DenseOwner | None = None) -> None:
        self.model, self.plan, self.text = model, plan, model.text
        settle_heap()
        torch.set_num_threads(plan.threads)
        self._pool = Pool(plan.cpus, model.kernels, plan.node_places, plan.deterministic)
        owner = owner or _owner(model, plan, self._pool)
        self._kv = KVCache(model.config, plan.context, plan.kv_dtype, owner.device)
        attention: Attention = TorchAttention(self._kv)
        if owner.device.type == "cpu":
            attention = NativeAttention(self._kv, model.kernels, self._pool)
        self._runtime = runtime = Runtime(model, owner, self._pool, attention, self._kv)
        self._steps = Steps(model.config, FAMILIES[model.config.family].forward, runtime, self._pool, plan.context)
        self._schedule = Schedule(self._kv, plan.prefill_chunk)
        self._prepare()

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        device: str = "auto",
        threads: int | None = None,
        context: int | None = None,
        kv_dtype: str = "auto",
        deterministic: bool = False,
        plan: Plan | None = None,
        progress: Progress | None = None,
    ) -> Engine:
        """Open a store, a GGUF file or a safetensors directory and get it ready.

        Raises ModelError (bad files), HardwareError (does not fit, no kernels) or UsageError, before weights are read.
        `progress(done_bytes, total_bytes, what)` is called while they are.
        """
        choose_tier(None)  # HETERO_ISA that cannot be met is refused before anything else
        with contextlib.closing(open_model(Path(path))) as source:
            if plan is None:
                request = PlanRequest(device, threads, context, kv_dtype, deterministic=deterministic)
                plan = make_plan(source.index, probe(device=device), request)
            model = load_model(source, Kernels(plan.isa_tier), progress, plan.nodes)
        return cls(model, plan)

    def _prepare(self) -> None:
        """One token, so that what is made once and kept does not come to lie between the large tensors of a prompt,
        where the heap could then use neither of the parts again."""
        self.logits([0])

    def step(self) -> bool:
        """Admit, run, sample, emit. False when there was nothing to do."""
        self._schedule.admit()
        work = self._schedule.next()
        if not work:
            return False
        self._emit(work, self._run(work))
        return True

    def logits(self, token_ids: Sequence[int]) -> Floats:
        """float32 [T, vocab]: the logits that follow each of `token_ids`."""
        request = self._request(list(token_ids), Sampling(max_tokens=1), reuse=False, collect=True)
        try:
            while not request.finished:
                self.step()
        finally:
            self._schedule.remove(request)
        return np.concatenate(request.rows)

    def generate(
        self, token_ids: Sequence[int], sampling: Sampling | None = None, *, reuse: bool = True
    ) -> Iterator[Event]:
        """Answer `token_ids`: Prefill, Token ... and Done events. Closing the iterator cancels within one token.

        `reuse` False ignores what earlier requests left in the cache. Raises UsageError when the prompt does not fit.
        """
        events = self._events(self._request(list(token_ids), sampling or Sampling(), reuse=reuse))
        next(events)  # begun, so that it gives its place back also when it is dropped before it is read
        return events

    def timed(self) -> contextlib.AbstractContextManager[Stopwatch]:
        """While it lasts, steps are timed by stage; only where the dense parts are on the CPU."""
        return self._steps.timed()

    def using(self, make_ops: Callable[[Runtime, Batch], Ops]) -> contextlib.AbstractContextManager[None]:
        """While it lasts, steps are run by the operations that `make_ops` gives."""
        return self._steps.using(make_ops)

    def held_bytes(self) -> dict[str, int]:
        """Bytes that are held for each of the plan's parts that can be counted, by the ledger's names."""
        return held_bytes(self.model, self._kv)

    def close(self) -> None:
        """Stop the worker threads; the engine cannot be used afterwards."""
        self._pool.close()

    def _request(self, ids: list[int], sampling: Sampling, *, reuse: bool, collect: bool = False) -> Request:
        context, vocab = self.plan.context, self.model.config.vocab_size
        if not ids:
            raise UsageError("the prompt has no tokens", "give at least one token")
        if not 0 <= min(ids) <= max(ids) < vocab:
            found = f"token ids {min(ids)} to {max(ids)} found, expected 0 to {vocab - 1}"
            raise UsageError(found, "the tokenizer is not this model's")
        room = context - len(ids)
        if room < (0 if collect else 1):
            raise UsageError(
                f"the prompt has {len(ids)} tokens, the context holds {context}", "shorten it or raise --context"
            )
        limit = len(ids) + min(room, room if sampling.max_tokens is None else sampling.max_tokens)
        stop = frozenset[int]() if sampling.ignore_eos else self.text.stop_ids
        sampler = Sampler(sampling, vocab)
        sampler.observe(ids)
        request = Request(ids, limit, sampler, self.text.tokenizer.decoder(), stop, reuse, collect)
        self._schedule.add(request)
        return request

    def _events(self, request: Request) -> Iterator[Event]:
        try:
            yield Prefill(0, len(request.ids), 0)
            while True:
                while request.events:
                    yield request.events.popleft()
                if request.finished:
                    return
                self.step()
        finally:
            self._schedule.remove(request)

    def _run(self, work: list[tuple[Request, list[int]]]) -> Floats:
        """Logits float32 [wanted rows, vocab] of one ragged batch; its tokens are in the cache afterwards."""
        parts = []
        for request, tokens in work:
            assert request.sequence is not None
            self._kv.prepare(request.sequence, len(tokens))
            parts.append((request.sequence, tokens, request.wanted_rows(len(tokens))))
        logits = self._steps.logits(parts)
        for sequence, tokens, _ in parts:
            self._kv.extend(sequence, tokens)
        return logits

    def _emit(self, work: list[tuple[Request, list[int]]], rows: Floats) -> None:
        start = 0
        for request, tokens in work:
            assert request.sequence is not None
            before = request.sequence.length - len(tokens)
            count = len(tokens) if request.collect else int(before + len(tokens) >= len(request.ids))
            wanted = rows[start : start + count]
            if not request.collect:
                wanted[:, self.text.n_tokens :] = -np.inf  # padding of the vocabulary is never a token
            request.accept(wanted)
            start += count
            if request.finished:
                self._schedule.remove(request)
