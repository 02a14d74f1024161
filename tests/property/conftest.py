"""How long and how randomly the property tests search.

`ci`, the default, runs the same examples every time. `CUTWATER_HYPOTHESIS=quick` runs fewer and
shorter ones, for `make quick`. `CUTWATER_HYPOTHESIS=thorough` searches new and longer ones for
minutes; what it finds is kept in .hypothesis and tried first the next time.
"""

import os

from hypothesis import settings

settings.register_profile(
    "ci",
    # That of all tests.
    parent=settings.get_profile("cutwater"),
    max_examples=200,
    stateful_step_count=100,
)
settings.register_profile(
    "quick",
    parent=settings.get_profile("cutwater"),
    max_examples=40,
    stateful_step_count=50,
)
settings.register_profile(
    "thorough",
    deadline=None,
    max_examples=1_500,
    stateful_step_count=150,
    print_blob=True,
)
settings.load_profile(os.environ.get("CUTWATER_HYPOTHESIS", "ci"))
