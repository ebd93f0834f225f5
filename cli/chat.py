"""`hetero chat`: a conversation in the terminal, or one answer for a pipe."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hetero.cli import chat_options as own
from hetero.cli import options, output, session
from hetero.machine.types import PlanRequest, UsageError

if TYPE_CHECKING:
    from hetero.cli.answer import Answer, Kind
    from hetero.cli.conversation import Conversation
    from hetero.engine import Engine, Sampling
    from hetero.models.text import TextModel


def chat(
    model: options.ModelArgument = None,
    prompt: own.Prompt = None,
    system: own.System = None,
    temp: own.Temperature = None,
    top_k: own.TopK = None,
    top_p: own.TopP = None,
    min_p: own.MinP = None,
    repeat_penalty: own.RepeatPenalty = None,
    seed: own.Seed = None,
    max_tokens: own.MaxTokens = None,
    context: options.Context = None,
    threads: options.Threads = None,
    device: options.Device = "auto",
    kv_dtype: options.KvDtype = "auto",
    deterministic: options.Deterministic = False,
    no_template: own.NoTemplate = False,
    private: own.Private = False,
    force: options.Force = False,
    dry_run: options.DryRun = False,
    json: options.Json = False,
    verbose: options.Verbose = False,
    log_file: options.LogFile = None,
) -> None:
    """Talk to a model."""
    request = PlanRequest(device, threads, context, kv_dtype, force or dry_run, deterministic=deterministic)
    prepared = session.prepare(model, request)
    if dry_run:
        return session.show_plan(prepared, json)
    given = {"temperature": temp, "top_k": top_k, "top_p": top_p, "min_p": min_p, "repetition_penalty": repeat_penalty}
    given |= {"seed": seed, "max_tokens": max_tokens}
    talk = _Talk(prepared, _question(prompt, json), system, not no_template, private, json)
    talk.run(given)


@dataclass(frozen=True, slots=True)
class _Talk:
    """What is asked of a model: one `question`, or (None) a conversation in the terminal."""

    prepared: session.Prepared
    question: str | None
    system: str | None
    use_template: bool
    private: bool
    json: bool

    def run(self, given: dict[str, Any]) -> None:
        """Load the model and talk, sampling as `given` where it is not None."""
        prepared, question = self.prepared, self.question
        if prepared.is_demo:
            session.note_demo()
        output.note(prepared.summary()) if question is None else output.log.info("%s", prepared.summary())
        with contextlib.closing(prepared.load("chat", keep=not self.private)) as engine:
            sampling = _sampling(engine.text, given)
            conversation = _conversation(engine.text, self.system, self.use_template)
            if question is None:
                from hetero.cli.repl import Repl

                Repl(engine, conversation, sampling, self.private).run()
            else:
                conversation.ask(question)
                _answer_once(engine, conversation, sampling, prepared, self.json)


def _question(prompt: str | None, json: bool) -> str | None:
    """The prompt from `-p` and standard input, or None for a conversation in the terminal; raises UsageError."""
    parts = [] if prompt is None else [prompt]
    if not sys.stdin.isatty():
        parts.append(_read_stdin())
    elif prompt is None:
        if json or not sys.stdout.isatty():
            raise UsageError("nothing to answer", "give the prompt with -p, or pipe it in")
        return None
    question = "\n".join(part.rstrip("\n") for part in parts if part.strip())
    if not question:
        raise UsageError("the prompt is empty", "give the prompt with -p, or pipe it in")
    try:
        question.encode("utf-8")
    except UnicodeEncodeError as problem:
        raise UsageError("the prompt is not UTF-8 text", "check the terminal's encoding") from problem
    return question


def _read_stdin() -> str:
    data = sys.stdin.buffer.read()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as problem:
        found = f"byte 0x{data[problem.start]:02x} at {problem.start}"
        raise UsageError(
            f"standard input is not UTF-8 text: {found}", "pipe text in, or convert it with iconv"
        ) from problem


def _sampling(text: TextModel, given: dict[str, Any]) -> Sampling:
    """What the user asks for, then what the model's generation config says, then greedy."""
    from hetero.engine import Sampling

    chosen: dict[str, Any] = dict(text.generation)
    chosen |= {name: value for name, value in given.items() if value is not None}
    return Sampling(**chosen)


def _conversation(text: TextModel, system: str | None, use_template: bool) -> Conversation:
    from hetero.cli.conversation import Conversation

    for line in text.notes:
        output.note(line)
    if use_template and text.template is None:
        output.note("this model has no chat template: it continues each message as plain text")
    return Conversation(text, system, use_template)


class _Pipe:
    """Shows only the answer: on stdout as it comes, or not at all for JSON. Reasoning is dim on a terminal."""

    def __init__(self, silent: bool) -> None:
        self._silent = silent
        self._last = ""
        self._status = output.StatusLine()
        self._kind: Kind = "answer"

    def reading(self, done: int, total: int) -> None:
        self._status.show(f"reading {done:,} of {total:,} tokens")

    def text(self, kind: Kind, piece: str) -> None:
        self._status.clear()
        if self._silent or (kind == "thinking" and not output.is_styled(sys.stdout)):
            return
        if kind == "answer" and self._kind == "thinking":
            output.write("\n\n")
        self._kind, self._last = kind, piece
        shown = output.for_terminal(piece)
        output.write_thinking(shown) if kind == "thinking" else output.write(shown)

    def finish(self) -> None:
        self._status.clear()
        if not self._silent and not self._last.endswith("\n"):
            output.write("\n")


def _answer_once(
    engine: Engine, conversation: Conversation, sampling: Sampling, prepared: session.Prepared, json: bool
) -> None:
    from hetero.cli.answer import check_room, generate

    prompt = conversation.prompt()
    check_room(len(prompt.ids), engine.plan.context, "a larger --context makes room")
    sink = _Pipe(silent=json)
    answer = generate(engine, prompt, sampling, sink, lambda: False)
    sink.finish()
    if json:
        output.json_result("hetero.chat", _body(answer, prepared, engine.model.notes))
    elif answer.reason == "length" and sampling.max_tokens is None:
        output.note(f"cut off: the context of {engine.plan.context:,} tokens is full")
    elif not answer.answer and answer.thinking:
        output.note(f"the model was still thinking when it stopped after {len(answer.ids):,} tokens")


def _body(answer: Answer, prepared: session.Prepared, notes: Sequence[str]) -> dict[str, Any]:
    plan = prepared.plan
    return {
        "model": prepared.index.name,
        "answer": answer.answer,
        "thinking": answer.thinking,
        "finish_reason": answer.reason,
        "usage": {
            "prompt_tokens": answer.prompt_tokens,
            "cached_tokens": answer.cached_tokens,
            "completion_tokens": len(answer.ids),
        },
        "prefill_tps": answer.prefill_tps,
        "decode_tps": answer.decode_tps,
        "isa_tier": plan.isa_tier,
        "device": plan.placement.dense,
        "threads": plan.threads,
        "notes": list(notes),
    }
