"""The exception tree of Sapwood's lower rooms. Every message is a sentence a user can act on."""


class SapwoodError(Exception):
    """Base of every error that Sapwood raises on purpose."""


class ModelError(SapwoodError):
    """A model cannot be found, fetched or loaded; the message names what is wrong and what is allowed."""


class UnsupportedModel(ModelError):
    """An architecture, tensor type, pre-tokenizer or option that Sapwood does not implement, named."""


class TemplateError(SapwoodError):
    """A chat template refused the conversation, or broke out of its sandbox.

    place: the path of the part of the conversation that is to blame, such as ("messages", 2); () for all of it.
    """

    def __init__(self, sentence: str, place: tuple[str | int, ...] = ()) -> None:
        super().__init__(sentence)
        self.place = place


class TemplateRefusal(TemplateError):
    """A chat template says by itself that it does not take such a conversation."""


class RankLost(SapwoodError):
    """Another process that computes a part of the same model is gone; this one cannot go on without it."""
