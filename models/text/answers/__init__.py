"""What a model writes, taken apart while it streams: reasoning, answer, tool calls. One parser per dialect."""

from hetero.models.text.answers.dialects import DIALECTS, Dialect, dialect_of
from hetero.models.text.answers.parts import AnswerParser, Part, ToolCall

__all__ = ["DIALECTS", "AnswerParser", "Dialect", "Part", "ToolCall", "dialect_of"]
