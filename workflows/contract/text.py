"""Outside text made safe to show: one line, no control, bidi or invisible characters, cut to a length.

Every text that was written by a model, a tool, a caller or a plugin passes here before it enters an event, a title, a
memo or a log line. The character classes are spelled out: `unicodedata` differs between Python versions and would make
a replay differ. Nothing here escapes for HTML; that belongs to the page that shows it.
"""

import re

_BREAKS = re.compile("[ \t-\r\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")
_UNSEEN = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0 and C1 controls
    "\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180e\u3164\uffa0"  # soft hyphen, fillers
    "\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\u206a-\u206f\ufeff"  # zero width, marks, bidi controls
    "\ufff9-\uffff\ud800-\udfff"  # annotations, non-characters, lone surrogates
    "\U000e0000-\U000e0fff"  # tags: text that only a model reads
    "]"
)
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~&$])")
CUT = "…"


def clean_text(text: str, limit: int) -> str:
    """One line of at most `limit` characters; a longer text ends in `…`. White space of any kind becomes one blank."""
    head = text[: 4 * limit + 64]  # enough to fill the limit, whatever is stripped from ordinary text
    line = _UNSEEN.sub("", _BREAKS.sub(" ", head))
    line = _BREAKS.sub(" ", line).strip(" ")
    if len(line) <= limit and len(head) == len(text):
        return line
    return line[: max(limit - 1, 0)].rstrip(" ") + CUT


def escape_markdown(text: str) -> str:
    """For the Temporal UI, which renders summaries and details as Markdown: every mark becomes plain text."""
    return _MARKDOWN.sub(r"\\\1", text)
