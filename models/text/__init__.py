"""Text of a model: tokens, chat template, stop set, the parts of an answer. Knows nothing of weights or requests."""

from hetero.models.text.answers import AnswerParser, Dialect, Part, ToolCall
from hetero.models.text.decoding import IncrementalDecoder
from hetero.models.text.load import load_text
from hetero.models.text.model import Prompt, TextModel
from hetero.models.text.template import ChatTemplate
from hetero.models.text.tokenizer import Tokenizer

__all__ = [
    "AnswerParser",
    "ChatTemplate",
    "Dialect",
    "IncrementalDecoder",
    "Part",
    "Prompt",
    "TextModel",
    "Tokenizer",
    "ToolCall",
    "load_text",
]
