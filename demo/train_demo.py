"""Train the demo model on the CPU. Resumable: it saves a checkpoint every minute and goes on from it.

    python demo/make_data.py
    python demo/train_demo.py
    python demo/export_gguf.py build/demo/checkpoint.pt models/demo/hetero-demo.gguf

Dialogues are packed without waste: short ones into rows of 256 tokens, long ones into rows of 2,048. The loss is
taken on the assistant's tokens; the other tokens count a tenth. The learning rate rises over the first 50 steps,
stays, and falls to zero over the last 70 %.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from model import DemoConfig, DemoModel
from muon import Muon
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from vocabulary import END_OF_TEXT, IM_END, IM_START, Messages, learn, read_dialogues

SHORT, LONG = 256, 2048
LONG_EVERY = 6
"""One step in so many is on a row of long dialogues."""
PROMPT_WEIGHT = 0.1
BALANCE_WEIGHT = 0.01
WARM_UP = 50
FALL = 0.7


@dataclass
class Rows:
    """Packed token rows of one length, and the loss weight of each token as a target (uint8, 1 = the answer)."""

    ids: Tensor
    answer: Tensor


def encode(tokenizer: Tokenizer, messages: Messages) -> tuple[list[int], list[int]]:
    """Token ids of a dialogue with the end mark, and 1 where a token belongs to an answer (with its end token)."""
    start, end, newline = (tokenizer.encode(t, add_special_tokens=False).ids for t in (IM_START, IM_END, "\n"))
    ids: list[int] = []
    answer: list[int] = []
    for message in messages:
        head = start + tokenizer.encode(message["role"] + "\n", add_special_tokens=False).ids
        body = tokenizer.encode(message["content"], add_special_tokens=False).ids + end
        ids += head + body + newline
        answer += [0] * len(head) + [int(message["role"] == "assistant")] * len(body) + [0] * len(newline)
    return ids + tokenizer.encode(END_OF_TEXT, add_special_tokens=False).ids, [*answer, 0]


def pack(documents: list[tuple[list[int], list[int]]], length: int) -> Rows:
    """Rows of `length` + 1 tokens; every row starts with a dialogue, and what does not fit is cut off."""
    ids, answer = [], []
    row: list[int] = []
    marks: list[int] = []
    for tokens, flags in documents:
        row, marks = row + tokens, marks + flags
        if len(row) > length:
            ids.append(row[: length + 1])
            answer.append(marks[: length + 1])
            row, marks = [], []
    return Rows(torch.tensor(ids, dtype=torch.int16), torch.tensor(answer, dtype=torch.uint8))


def prepare(data: Path, vocab: int, out: Path) -> tuple[Rows, Rows]:
    """Learn the tokenizer, unless there is one, and pack the dialogues; kept beside the checkpoint for later starts."""
    cache, vocabulary = out / "rows.pt", out / "tokenizer.json"
    if not cache.exists():
        dialogues = read_dialogues(data)
        if not vocabulary.exists():
            learn(dialogues, vocab).save(str(vocabulary))
        tokenizer = Tokenizer.from_file(str(vocabulary))
        documents = [encode(tokenizer, messages) for messages in dialogues]
        short = pack([d for d in documents if len(d[0]) <= SHORT], SHORT)
        long = pack([d for d in documents if len(d[0]) > SHORT], LONG)
        torch.save([asdict(short), asdict(long)], cache)
    short_state, long_state = torch.load(cache)
    return Rows(**short_state), Rows(**long_state)


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up, a plateau, then a linear fall to zero."""
    return peak * min(1.0, (step + 1) / WARM_UP, (steps - step) / (FALL * steps))


def batch_at(step: int, short: Rows, long: Rows, tokens: int) -> tuple[Tensor, Tensor]:
    """The rows of a step, drawn from an order that is shuffled anew each epoch: ids and answer marks [B, T + 1]."""
    is_long = step % LONG_EVERY == LONG_EVERY - 1
    rows, length = (long, LONG) if is_long else (short, SHORT)
    count = max(1, tokens // length)
    index = step // LONG_EVERY if is_long else step - step // LONG_EVERY
    total = len(rows.ids)
    picked = []
    for i in range(index * count, index * count + count):
        order = torch.randperm(total, generator=torch.Generator().manual_seed(i // total))
        picked.append(int(order[i % total]))
    return rows.ids[picked].long(), rows.answer[picked]


def loss_of(model: DemoModel, ids: Tensor, answer: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The loss to minimise, the mean loss on answers, and the balance loss (1 = all experts used alike)."""
    hidden, balance = model(ids[:, :-1])
    each = functional.cross_entropy(model.head(hidden).flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    marks = answer[:, 1:].flatten().float()
    weights = marks + PROMPT_WEIGHT * (1 - marks)
    loss = (each * weights).sum() / weights.sum()
    return loss + BALANCE_WEIGHT * balance, (each * marks).sum() / marks.sum(), balance


def save(path: Path, model: DemoModel, optimizers: list[torch.optim.Optimizer], step: int, seconds: float) -> None:
    """Write a checkpoint in one move, so that a kill never leaves half of one."""
    state: dict[str, Any] = {"config": asdict(model.config), "model": model.state_dict(), "step": step}
    state |= {"optimizers": [optimizer.state_dict() for optimizer in optimizers], "cpu_seconds": seconds}
    torch.save(state, path.with_suffix(".new"))
    os.replace(path.with_suffix(".new"), path)


def make_optimizers(model: DemoModel) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of attention and experts, AdamW for embedding, router and norms."""
    inner = {
        name: p for name, p in model.named_parameters() if p.dim() >= 2 and "embed" not in name and "router" not in name
    }
    outer = [p for name, p in model.named_parameters() if name not in inner]
    return [
        Muon(inner.values(), weight_decay=0.02),
        torch.optim.AdamW(outer, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    ]


def train(args: argparse.Namespace) -> None:
    """Train until `--steps`, from the checkpoint if there is one."""
    short, long = prepare(args.data, args.vocab, args.out)
    print(f"{len(short.ids)} short rows, {len(long.ids)} long rows", flush=True)
    model = DemoModel(DemoConfig(vocab=args.vocab))
    optimizers = make_optimizers(model)
    path, first, before = args.out / "checkpoint.pt", 0, 0.0
    if path.exists():
        state = torch.load(path)
        model.load_state_dict(state["model"])
        for optimizer, stored in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(stored)
        first, before = state["step"], state["cpu_seconds"]
    saved = noted = time.monotonic()
    for step in range(first, args.steps):
        for optimizer, peak in zip(optimizers, (args.muon_rate, args.rate), strict=True):
            optimizer.param_groups[0]["lr"] = learning_rate(step, args.steps, peak)
        loss, on_answers, balance = loss_of(model, *batch_at(step, short, long, args.tokens))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        seconds = before + time.process_time()
        if step % 25 == 0:
            now = time.monotonic()
            print(
                f"step {step} answers {on_answers.item():.4f} balance {balance.item():.3f}"
                f" cpu {seconds:.0f} s, {now - noted:.1f} s",
                flush=True,
            )
            noted = now
        if time.monotonic() - saved > args.save_every or step + 1 == args.steps:
            save(path, model, optimizers, step + 1, seconds)
            saved = time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("build/demo/train.jsonl"))
    parser.add_argument("--out", type=Path, default=Path("build/demo"))
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--tokens", type=int, default=2048, help="tokens in a step")
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate of AdamW")
    parser.add_argument("--muon-rate", type=float, default=1e-2, help="highest learning rate of Muon")
    parser.add_argument("--vocab", type=int, default=3072)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save-every", type=float, default=60, help="seconds between checkpoints")
    args = parser.parse_args()
    random.seed(1)
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    # Matrix products in bfloat16 with float32 sums where the CPU has them: twice as fast; elsewhere no change.
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    train(args)


if __name__ == "__main__":
    main()
