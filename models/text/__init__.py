"""Text of a model: tokens, chat template, stop set, thinking tags. Knows nothing of weights or requests."""

from hetero.models.text.decoding import IncrementalDecoder
from hetero.models.text.load import load_text
from hetero.models.text.model import Prompt, TextModel
from hetero.models.text.template import ChatTemplate
from hetero.models.text.thinking import ThinkingSplitter
from hetero.models.text.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "IncrementalDecoder",
    "Prompt",
    "TextModel",
    "ThinkingSplitter",
    "Tokenizer",
    "load_text",
]
