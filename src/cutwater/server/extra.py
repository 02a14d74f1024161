"""Whether the packages of the extra `cutwater[serve]` are there; says so before one is missed.

The package imports this module first. Without it, an `import cutwater.server` would end with the
name of one of those packages, and say nothing about how to get them.
"""

from importlib.util import find_spec
from typing import Final

from cutwater.errors import ConfigError

PARTS: Final = ("fastapi", "prometheus_client", "uvicorn")
"""What the extra installs, by the names that are imported."""

_MISSING: Final = tuple(part for part in PARTS if find_spec(part) is None)

if _MISSING:
    raise ConfigError(
        "cutwater.server", f"{', '.join(_MISSING)} not found: pip install 'cutwater[serve]'"
    )
