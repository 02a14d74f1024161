"""Prunes a store on disk in children that are killed, one at every change of the store.

Run as a program with a directory to work in; it needs no Spark. For every point it makes the same
store, lets a child run `cutwater checkpoints prune --yes` until it kills itself right before or
right after the change, and looks at what is left. It prints one JSON object.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from tests.cli.offline_store import OfflineStore
from tests.unit.store.cuts import PIPELINE

from cutwater.ids import CheckpointId
from cutwater.protocol.cut import CheckpointKind
from cutwater.store.backends.local import LocalBackend
from cutwater.store.maintenance.inspect import Inspector
from cutwater.store.paths import PipelinePaths
from cutwater.store.pipeline_store import PipelineStore

PRUNE = ("checkpoints", "prune", "orders", "--keep", "1", "--savepoint", "1", "--yes")
CHANGES = ("create", "put", "put_file", "delete")


class Fate:
    """Counts changes of the store, and ends this process at one of them."""

    def __init__(self, dies_at: int | None = None, *, after: bool = False) -> None:
        self.changes = 0
        self._dies_at = dies_at
        self._after = after

    def watch(self) -> None:
        """Count all changes that this process makes from now on."""
        for name in CHANGES:
            setattr(LocalBackend, name, self._watched(getattr(LocalBackend, name)))

    def _watched(self, change: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(change)
        def watched(*given: Any) -> Any:  # noqa: ANN401
            self.changes += 1
            is_last = self.changes == self._dies_at
            if is_last and not self._after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = change(*given)
            if is_last:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return watched


def make(directory: Path) -> OfflineStore:
    """A damaged savepoint, two checkpoints, what a failed attempt has left."""
    found = OfflineStore(directory)
    writer = found.writer
    writer.decide(1, CheckpointKind.SAVEPOINT, name="damaged")
    writer.backend.put(writer.paths.manifest(CheckpointId(1)), b"damaged")
    writer.decide(2, in_flight=True)
    writer.decide(3)
    writer.attempt(4)
    writer.blob("left behind")
    return found


def prune_in_child(directory: Path, fate: Fate) -> int:
    """Prune in a child; return the signal that ended it, or minus its exit code."""
    child = os.fork()
    if child == 0:
        fate.watch()
        stored = OfflineStore.__new__(OfflineStore)
        stored.directory, stored.address = directory, None
        result = stored.run(*PRUNE)
        (directory / "changes").write_text(str(fate.changes))
        os._exit(result.exit_code)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)


def look(directory: Path) -> dict[str, Any]:
    """What the store holds: checkpoints that are whole, and everything there is."""
    backend = LocalBackend(directory)
    store, paths = PipelineStore.of(backend, PIPELINE), PipelinePaths(PIPELINE)
    inspector = Inspector(store)
    views = [checkpoint for checkpoint in inspector.checkpoints() if checkpoint.cut is not None]
    return {
        "sound": [view.id for view in views if not inspector.damages(view)],
        "manifests": list(store.manifests.ids()),
        "objects": [*backend.list(paths.blobs), *backend.list(paths.staged_files)],
    }


def main(directory: Path) -> None:
    """Kill a prune at every change; say what was left by each, and by the prune after it."""
    template = directory / "template"
    # Looking warms everything up that a child would have to import.
    assert make(template).run("checkpoints", "list", "orders").exit_code == 0
    undisturbed = directory / "undisturbed"
    shutil.copytree(template, undisturbed)
    assert prune_in_child(undisturbed, Fate()) == 0
    points = int((undisturbed / "changes").read_text())
    runs = []
    for point in range(points + 1):
        work = directory / str(point)
        shutil.copytree(template, work)
        # Right before a change nothing differs from right after the one before it.
        fate = Fate(point, after=True) if point else Fate(1)
        ended = prune_in_child(work, fate)
        left = look(work)
        finished = prune_in_child(work, Fate())
        runs.append([ended, left, finished, look(work)])
        shutil.rmtree(work)
    found = {"before": look(template), "whole": look(undisturbed), "runs": runs}
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
