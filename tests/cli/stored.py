"""A store on disk that nobody runs, and commands that look at it, in this very process."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.unit.store.cuts import PIPELINE
from tests.unit.store.made import MadeStore
from typer.testing import CliRunner, Result

from cutwater.cli.main import app
from cutwater.store.backends.location import backend_at
from cutwater.store.records.catalog import open_pipeline
from cutwater.store.records.lease import Lease, Leases


class Stored:
    """A store with the pipeline `orders`, and the commands that are given it."""

    def __init__(self, directory: Path, address: str | None = None) -> None:
        """Make the store, in a directory unless it has another address."""
        self.directory = directory
        self.address = address
        self.backend = backend_at(address or directory)
        # The uuid that the tests of the store use, under a name.
        open_pipeline(self.backend, "orders", lambda: UUID(PIPELINE))
        self.made = MadeStore(self.backend)

    def hold(self, lease: Lease) -> None:
        """Let somebody run the pipeline."""
        Leases(self.backend, PIPELINE).beat(lease)

    def run(self, *arguments: str) -> Result:
        """Give a command and return what it said."""
        return CliRunner().invoke(app, [*arguments, "--store", self.address or str(self.directory)])

    def json(self, *arguments: str, exit_code: int = 0) -> Any:  # noqa: ANN401 - any JSON
        """Give a command and return its JSON."""
        result = self.run(*arguments, "--output", "json")
        assert result.exit_code == exit_code, result.output
        return json.loads(result.stdout)
