"""Changed code: what a step is (`identity`) and how a cut maps into other steps (`mapping`).

See docs/adr/0015-changed-code-is-mapped-by-name.md.
"""
