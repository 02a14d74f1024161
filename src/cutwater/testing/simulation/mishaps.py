"""What happens to single requests between a process and the store.

A write whose caller got no answer may still arrive, seconds later, from a process that has died
since. A delete may be acknowledged and lost, or happen long after. A listing may break off. The
protocol must cope with each of them, whichever object it concerns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cutwater.testing.simulation.world import World

LATE_WRITE: Final = "late write"
LATE_DELETE: Final = "late delete"
LOST_DELETE: Final = "lost delete"
FAILED_LISTING: Final = "failed listing"
RESPONSE_LOST: Final = "response lost"

KINDS: Final = (LATE_WRITE, LATE_DELETE, LOST_DELETE, FAILED_LISTING, RESPONSE_LOST)


@dataclass(frozen=True, slots=True)
class _Underway:
    at_ms: int
    arrive: Callable[[], None]


class RequestFaults:
    """The faults of single requests in one run; fills `store.Mishaps`."""

    def __init__(self, world: "World", enabled: set[str]) -> None:
        self._world = world
        self._enabled = enabled
        self._underway: list[_Underway] = []

    def _happens(self, kind: str, chance: float) -> bool:
        world = self._world
        possible = kind in self._enabled and not world.healing
        return possible and world.rng.random() < chance

    def _later(self, arrive: Callable[[], None]) -> None:
        rng = self._world.rng
        delay_ms = rng.randint(5, rng.choice((20, 200, 1500)))
        self._underway.append(_Underway(self._world.now_ms + delay_ms, arrive))

    def write_hangs(self, name: str, data: bytes, *, create: bool, failed: bool) -> bool:
        # The log is rarely written, and a late entry there matters most.
        chance = 0.05 if "/log/" in name else 0.001
        hangs = self._happens(LATE_WRITE, 0.3 if failed else chance)
        if hangs:
            self._later(lambda: self._write(name, data, create=create))
        return failed or hangs

    def delete_astray(self, name: str) -> bool:
        if self._happens(LOST_DELETE, 0.05):
            self._world.faults.count(LOST_DELETE)
            self._world.manifest_left |= "/manifests/" in name
            return True
        if self._happens(LATE_DELETE, 0.2):
            self._later(lambda: self._delete(name))
            self._world.manifest_left |= "/manifests/" in name
            return True
        return False

    def listing_fails(self) -> bool:
        fails = self._happens(FAILED_LISTING, 0.02)
        if fails:
            self._world.faults.count(FAILED_LISTING)
        return fails

    def arrive(self) -> None:
        """Carry out the delayed requests that are due."""
        due = [request for request in self._underway if request.at_ms <= self._world.now_ms]
        if due:
            self._underway = [request for request in self._underway if request not in due]
        for request in due:
            request.arrive()

    def _write(self, name: str, data: bytes, *, create: bool) -> None:
        world = self._world
        if create and name in world.store.by_name:
            return
        world.store.by_name[name] = data
        world.faults.count(LATE_WRITE)
        kind = (
            name.split("/")[2] if name.startswith("pipelines/") else name.split("/", maxsplit=1)[0]
        )
        world.history.counts[f"late writes: {kind}"] += 1
        world.trace(None, "store", f"{name} arrives late")
        world.checkers.written(name, data)

    def response_lost(self, name: str) -> bool:
        world = self._world
        records = ("/log/", "/attempts/", "/committed/", "/manifests/")
        chance = 0.15 if any(part in name for part in records) else 0.005
        if not self._happens(RESPONSE_LOST, chance):
            return False
        world.faults.count(RESPONSE_LOST)
        if world.rng.random() < 0.3:
            world.reach_again(out_of_reach_ms=world.rng.randint(10, 200))
        return True

    def _delete(self, name: str) -> None:
        if self._world.store.by_name.pop(name, None) is not None:
            self._world.faults.count(LATE_DELETE)
            self._world.trace(None, "store", f"{name} is deleted late")
