"""The store of a stopped pipeline, and commands on it that run in the process of the test."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

from tests.unit.store.checkpoint_writer import CheckpointWriter
from tests.unit.store.cuts import PIPELINE
from typer.testing import CliRunner, Result

from cutwater.cli.main import app
from cutwater.store.backends.location import backend_at
from cutwater.store.records.catalog import open_pipeline
from cutwater.store.records.lease import Lease, Leases


class OfflineStore:
    """A store with the pipeline `orders`, and the commands that read it."""

    def __init__(self, directory: Path, address: str | None = None) -> None:
        """Create the store in a directory, or at an address if there is one."""
        self.directory = directory
        self.address = address
        self.backend = backend_at(address or directory)
        # The uuid that the tests of the store use, under a name.
        open_pipeline(self.backend, "orders", lambda: UUID(PIPELINE))
        self.writer = CheckpointWriter(self.backend)

    def hold(self, lease: Lease) -> None:
        """Record that another process runs the pipeline."""
        Leases(self.backend, PIPELINE).beat(lease)

    def run(self, *arguments: str) -> Result:
        """Run a command and return its result."""
        return CliRunner().invoke(app, [*arguments, "--store", self.address or str(self.directory)])

    def json(self, *arguments: str, exit_code: int = 0) -> Any:  # noqa: ANN401 - any JSON
        """Run a command and return its JSON."""
        result = self.run(*arguments, "--output", "json")
        assert result.exit_code == exit_code, result.output
        return json.loads(result.stdout)
