"""The one error of the radix bookkeeping: it marks a mistake of the program, never one of a user."""


class BooksError(AssertionError):
    """The books do not balance, or a call would unbalance them; the sentence says what was found."""
