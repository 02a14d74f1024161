"""Where a running pipeline answers: the address of its API, for whoever finds it by its store.

It is written by the process that holds the lease and names that lease's nonce, so that an address
which a dead process has left behind is recognised. Nothing depends on it; it holds no secret, only
the name of the file that has one.
"""

from typing import Final

import msgspec

from cutwater.errors import Corrupt, NewerFormat, NotFound
from cutwater.ids import PipelineId
from cutwater.store.backends.backend import Backend
from cutwater.store.paths import PipelinePaths
from cutwater.store.records.envelope import RecordKind, decode, encode


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where a process answers.

    Attributes:
        holder: The nonce of its lease.
        url: Its API and dashboard, without any secret.
        host: The machine on which that address means something, if it is a loopback address.
        token_file: Where the token for changes is, on that machine; None if it came otherwise.
    """

    holder: str
    url: str
    host: str
    token_file: str | None = None


def _same(value: Address) -> Address:
    return value


ADDRESS: Final = RecordKind("address", _same, msgspec.json.Decoder(Address), _same)


class Addresses:
    """The address of one pipeline."""

    def __init__(self, backend: Backend, pipeline: PipelineId) -> None:
        """Read and write in this store."""
        self._backend = backend
        self._path = PipelinePaths(pipeline).address

    def tell(self, address: Address) -> None:
        """Say where this process answers, in place of whatever was said before.

        Raises:
            StoreError: If that could not be written.
        """
        self._backend.put(self._path, encode(ADDRESS, self._path, address))

    def of(self, holder: str) -> Address | None:
        """Return where the process with that lease answers; None if nobody can say.

        Raises:
            Unavailable: If the store does not answer.
        """
        try:
            found = decode(ADDRESS, self._path, self._backend.read(self._path))
        except (NotFound, Corrupt, NewerFormat):
            return None
        return found if found.holder == holder else None
