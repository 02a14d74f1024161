r"""Makes text safe to show: control characters that came with data are written out.

A row, a key or the message of a server may carry escape sequences, which a terminal would obey and
a log would keep. They are shown as Python writes them, such as `\x1b`, and so are lone surrogates,
which no stream can encode. All code that prints text from outside uses one of these functions.
"""

import re
from typing import Final

# C0 but for tab and newline, DEL, C1, lone surrogates, and what turns the direction of text.
_UNSAFE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_UNSAFE_IN_LINE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Write out all control characters but tabs and the ends of lines."""
    return _UNSAFE.sub(_escape, text)


def printable_line(text: str) -> str:
    """Write out all control characters, so that the text stays on one line."""
    return _UNSAFE_IN_LINE.sub(_escape, text)


def printable_json(text: str) -> str:
    """Write out the control characters in JSON that `json.dumps` leaves; it means the same."""
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape").decode("ascii")
