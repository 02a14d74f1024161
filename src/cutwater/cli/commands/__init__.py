"""One module per command of `cutwater`; `cli.main` collects them.

Options that several commands share are in `cli.options`.
"""
