"""The golden checkpoint directories, packed as they are kept."""

import tarfile
from pathlib import Path

QUERIES = Path(__file__).parent / "queries"


def unpacked(name: str, into: Path) -> Path:
    """Unpack one below a directory and return where it is."""
    with tarfile.open(QUERIES / f"{name}.tar.xz") as archive:
        # Pythons before 3.11.4 know no filters, and take no argument for one.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(into)
    return into / name
