"""Options and where they come from: `options` validates them, `settings` resolves them.

Precedence: defaults, `cutwater.toml`, environment, command line.
"""
