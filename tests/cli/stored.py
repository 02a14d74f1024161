"""A store on disk that nobody runs, and commands that look at it, in this very process."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.unit.store.cuts import PIPELINE
from tests.unit.store.made import MadeStore
from typer.testing import CliRunner, Result

from cutwater.cli.main import app
from cutwater.store.catalog import open_pipeline
from cutwater.store.lease import Lease, Leases
from cutwater.store.local import LocalBackend


class Stored:
    """A store with the pipeline `orders`, and the commands that are given it."""

    def __init__(self, directory: Path) -> None:
        """Make the store."""
        self.directory = directory
        self.backend = LocalBackend(directory)
        # The uuid that the tests of the store use, under a name.
        open_pipeline(self.backend, "orders", lambda: UUID(PIPELINE))
        self.made = MadeStore(self.backend)

    def hold(self, lease: Lease) -> None:
        """Let somebody run the pipeline."""
        Leases(self.backend, PIPELINE).beat(lease)

    def run(self, *arguments: str) -> Result:
        """Give a command and return what it said."""
        return CliRunner().invoke(app, [*arguments, "--store", str(self.directory)])

    def json(self, *arguments: str, exit_code: int = 0) -> Any:  # noqa: ANN401 - any JSON
        """Give a command and return its JSON."""
        result = self.run(*arguments, "--output", "json")
        assert result.exit_code == exit_code, result.output
        return json.loads(result.stdout)
