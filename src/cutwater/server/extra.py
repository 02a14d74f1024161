"""Checks that the packages of the extra `cutwater[serve]` are installed.

`cutwater.server` imports this module first, before any module that imports one of those packages.
Otherwise `import cutwater.server` would fail with the name of one package, and would not say how to
install them. That is why this module is small and stays separate.
"""

from importlib.util import find_spec
from typing import Final

from cutwater.errors import ConfigError

PARTS: Final = ("fastapi", "prometheus_client", "uvicorn")
"""The packages of the extra, by their import names."""

_MISSING: Final = tuple(part for part in PARTS if find_spec(part) is None)

if _MISSING:
    raise ConfigError(
        "cutwater.server", f"{', '.join(_MISSING)} not found: pip install 'cutwater[serve]'"
    )
