"""Every named mutation of the protocol is noticed within 500 seeds.

A mutation that is not found means the simulator is too kind: improve it, do not delete the
mutation. `python -m cutwater.testing.simulation --list-sabotages` says what each does.
"""

import json
import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from itertools import chain
from pathlib import Path

import pytest

from cutwater.testing.simulation.campaign import Outcome, first_wrong
from cutwater.testing.simulation.sabotage.registry import load

SEEDS = range(500)
KNOWN = json.loads((Path(__file__).parent / "detecting_seeds.json").read_text())
"""A seed that noticed each mutation before (scripts/detecting_seeds.py); it is tried first."""

REQUIRED = {
    "last-committed",
    "end-of-input-always-aligned",
    "default-open-limit",
    "commit-callback-frees-room",
    "cancel-behind-data",
    "hold-an-unaligned-barrier",
    "prepare-since-last-prepare",
    "repeat-only-the-newest-commit",
    "recover-from-the-highest-id",
    "prune-after-rewind",
    "skip-by-existence",
    "recording-stops-at-the-snapshot",
    "positions-from-latest-offset",
    "forward-at-once",
    "empty-events",
    "single-step-restart",
    "fall-back-silently",
    "commit-at-unaligned-cuts",
    "no-tick-after-restore",
    "skip-the-hold",
    "drop-an-in-flight-range",
    "compare-no-ids",
    "accept-an-unknown-step",
    "commit-before-the-decision",
    "reuse-an-id",
    # One for each defect that was found at the edges: sinks, listings, Spark's semantics.
    "an-upsert-rewrites-foreign-rows",
    "a-failed-listing-is-empty",
    "a-partial-listing-is-whole",
    "a-lost-commit-goes-unnoticed",
    "staged-rows-deleted-by-the-commit",
    "input-watermarks-forgotten",
    "a-missing-channel-file-is-skipped",
    "a-stopped-query-is-finished",
    "one-transaction-for-any-backlog",
    "targets-compared-by-name",
    "names-by-content-alone",
    "a-late-entry-is-forgotten",
    # Of the driver: stops, requests, and a store that takes no more writes.
    "a-failed-savepoint-stops-all-the-same",
    "a-failed-stop-is-not-resumed",
    "finish-without-the-last-commit",
    "requests-answered-when-they-start",
    "any-attempt-serves-a-request",
    "an-aborted-checkpoint-is-decided",
    "a-full-store-takes-the-decision",
    "a-full-store-has-the-record",
    "a-full-store-takes-the-manifest",
}


@pytest.fixture(scope="module")
def found() -> Mapping[str, Outcome | None]:
    names = list(load())
    with ProcessPoolExecutor(os.cpu_count() or 1) as pool:
        outcomes = pool.map(first_wrong, names, map(_seeds, names))
        return dict(zip(names, outcomes, strict=True))


def _seeds(name: str) -> list[int]:
    return list(chain([KNOWN[name]] if name in KNOWN else [], SEEDS))


def test_all_mutations_that_must_be_tried_are_there() -> None:
    assert set(load()) >= REQUIRED


def test_every_mutation_says_which_rule_it_breaks_and_how() -> None:
    assert [
        sabotage.name for sabotage in load().values() if not (sabotage.rule and sabotage.does)
    ] == []


@pytest.mark.parametrize("name", sorted(load()))
def test_a_mutation_of_the_protocol_is_noticed(
    name: str, found: Mapping[str, Outcome | None]
) -> None:
    assert found[name] is not None, f"{name} survives {len(SEEDS)} seeds: the simulator is too kind"


def test_the_protocol_is_whole_again_after_a_mutation() -> None:
    sabotage = load()["skip-the-hold"]
    owner, attribute, _ = sabotage.patches()[0]
    before = getattr(owner, attribute)

    with sabotage.applied():
        during = getattr(owner, attribute)

    assert during is not before
    assert getattr(owner, attribute) is before
