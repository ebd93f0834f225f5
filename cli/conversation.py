"""The messages of one chat and the token ids they become."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetero.models.text import Prompt, TextModel


@dataclass
class Conversation:
    """Messages in template order, and the tokens of the last turn exactly as they were generated.

    Text tokenised anew may differ from the tokens a model chose, and then the KV cache could not be used again;
    so while the rendered chat merely grows, only what is new is tokenised.
    """

    text: TextModel
    system: str | None = None
    use_template: bool = True
    messages: list[dict[str, Any]] = field(default_factory=list)
    _seen: str = ""
    _seen_ids: list[int] = field(default_factory=list)

    def ask(self, content: str) -> None:
        """Add what the user says."""
        self.messages.append({"role": "user", "content": content})

    def answered(self, answer: str, thinking: str, seen: str, seen_ids: list[int]) -> None:
        """Add an answer, whole or cut short; `seen` is all the text the model has read and written, and its tokens."""
        message = {"role": "assistant", "content": answer}
        if thinking:
            message["reasoning_content"] = thinking
        self.messages.append(message)
        self._seen, self._seen_ids = seen, seen_ids

    def withdraw(self, role: str) -> bool:
        """Take back the last message if it is of that role; returns whether it was."""
        if self.messages and self.messages[-1]["role"] == role:
            self.messages.pop()
            return True
        return False

    def clear(self) -> None:
        """Forget everything but the system message."""
        self.messages.clear()
        self._seen, self._seen_ids = "", []

    def prompt(self) -> Prompt:
        """The text that the model continues, and its token ids; raises what the template raises."""
        if not self.use_template or self.text.template is None:
            plain = str(self.messages[-1]["content"])
            return self.text.encode_text(f"{self.system}\n{plain}" if self.system else plain)
        system = [{"role": "system", "content": self.system}] if self.system else []
        prompt = self.text.encode_chat([*system, *self.messages])
        if not self._seen or not prompt.text.startswith(self._seen):
            return prompt
        tail = self.text.tokenizer.encode(prompt.text[len(self._seen) :])
        # A stop token is never merged with its neighbours, so the seam is clean only in front of one.
        clean = bool(tail) and tail[0] in self.text.stop_ids
        return dataclasses.replace(prompt, ids=[*self._seen_ids, *tail]) if clean else prompt
