"""Deterministic sources: the same offset always gives the same rows.

For demos, tests and benchmarks; a pipeline's own sources are whatever Spark can read.
"""

from cutwater.sources.nexmark import Market, nexmark, nexmark_rows
from cutwater.sources.sequence import sequence, sequence_rows

__all__ = ["Market", "nexmark", "nexmark_rows", "sequence", "sequence_rows"]
