"""What becomes of a checkpoint in changed code, for people and for programs.

`cutwater plan --against` shows it before anything runs, and `cutwater run` when it starts.
"""

from collections.abc import Iterator
from typing import Final

from cutwater.protocol.evolution.mapping import Change, Fate

_WORDS: Final = {
    Fate.KEPT: "goes on where it stood",
    Fate.MOVED: "goes on from what other steps were",
    Fate.NEW: "begins without a past",
    Fate.MERGED: "is part of other steps now",
    Fate.DROPPED: "is gone, and its past with it",
}


def change_lines(change: Change) -> Iterator[str]:
    """Give one line for each step, for what is worth knowing of it, and for what is against it."""
    for one in change.fates:
        yield f"step {one.step} {_WORDS[one.fate]}"
        yield from (f"  {note}" for note in one.notes)
    for refusal in change.refusals:
        yield f"refused: {refusal}"


def change_json(change: Change) -> dict[str, object]:
    """Return the same as JSON values.

    Fields: `checkpoint`; `steps`, each with `name`, `fate` (kept, moved, new, merged, dropped),
    `notes` and `rebuilt`, whether its query begins at other offsets; `refusals`, each with
    `subject`, `reason` and `next_step`; `possible`.
    """
    return {
        "checkpoint": change.cut.checkpoint_id,
        "possible": not change.refusals,
        "steps": [
            {
                "name": one.step,
                "fate": one.fate.value,
                "notes": list(one.notes),
                "rebuilt": one.step in change.queries,
            }
            for one in change.fates
        ],
        "refusals": [
            {"subject": one.subject, "reason": one.reason, "next_step": one.next_step}
            for one in change.refusals
        ],
    }
