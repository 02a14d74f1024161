"""The check that upholds a numbered promise of PROTOCOL.md, also under `python -O`.

Use `invariant` for what must be true whatever the outside does; use `ProtocolViolation` for an
event that should not have come. `assert` is only for narrowing types.
"""

from cutwater.errors import InvariantBroken


def invariant(condition: bool, number: str, reason: str) -> None:
    """Raise unless the condition holds.

    Args:
        condition: What must be true.
        number: The promise in PROTOCOL.md, `I1` to `I12`.
        reason: What contradicts it, for the person who reads the report.

    Raises:
        InvariantBroken: If the condition is false.
    """
    if not condition:
        raise InvariantBroken(number, reason)
