"""The tokenizers that the tests of chat templates have."""

from tests.runtime.text.chat.conftest import with_control_tokens

__all__ = ["with_control_tokens"]
