"""Deterministic sources: the same offset always gives the same rows.

For demos, tests and benchmarks; a pipeline can read any source that Spark can read.
"""

from cutwater.sources.nexmark import Market, nexmark, nexmark_rows
from cutwater.sources.sequence import sequence, sequence_rows

__all__ = ["Market", "nexmark", "nexmark_rows", "sequence", "sequence_rows"]
