"""Which files of a table are joined next: neighbours, until they are large."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby

from normlens.corpus.runs.shards import File

MIB = 1 << 20
#: Files that are joined at least, unless they are large enough.
FILES = 256


@dataclass(frozen=True)
class Sizes:
    """How large files become, and how many small ones may lie about meanwhile.

    A file is closed once it has `size` bytes, and one with half of that is left as it is. Where
    tables are small, so many files that are alike (`files`) are joined before that.
    """

    size: int = 256 * MIB
    files: int = field(default_factory=lambda: FILES)

    def __post_init__(self) -> None:
        if self.size < 2 or self.files < 2:
            raise ValueError("a file is joined of two others at least")

    @classmethod
    def of(cls, megabytes: float) -> Sizes | None:
        """Sizes for files of about so many MB; None for 0, which leaves files as they are."""
        return cls(max(2, round(megabytes * MIB))) if megabytes else None

    @property
    def large(self) -> int:
        """Bytes from which a file is left as it is."""
        return self.size // 2


@dataclass(frozen=True, order=True)
class Piece:
    """A file with a table's rows of the shards `first` to `last`."""

    first: int
    last: int
    file: File = field(compare=False)

    @property
    def bytes(self) -> int:
        return self.file.bytes

    @property
    def shards(self) -> int:
        return self.last - self.first + 1

    def holds_fewer(self, than: int) -> bool:
        return self.shards < than


class SmallFiles:
    """The files of one table that may still be joined, in the order of their shards."""

    def __init__(self, sizes: Sizes, pieces: Iterable[Piece] = ()):
        self.sizes = sizes
        self._pieces: list[Piece] = []
        self._looked_at = 0  # how many there were when nothing was to be joined
        for piece in pieces:
            self.add(piece)

    def __len__(self) -> int:
        return len(self._pieces)

    def add(self, piece: Piece) -> None:
        """Count a new file in, unless it is large already."""
        if piece.bytes < self.sizes.large:
            insort(self._pieces, piece)

    def remove(self, pieces: Iterable[Piece]) -> None:
        """Leave files out: others have replaced them, or they cannot be read."""
        gone = set(pieces)
        self._pieces = [piece for piece in self._pieces if piece not in gone]
        self._looked_at = 0

    def due(self, *, rest: bool = False) -> list[Piece]:
        """Find neighbours to join now; with `rest` any two, and none if there are none.

        Files are joined with files that hold about as many shards, so that a row is written a few
        times and not once for every new neighbour.
        """
        if not rest and len(self._pieces) < self._looked_at + self.sizes.files // 16:
            return []  # looking costs more than it could find
        for stretch in self._stretches():
            if len(stretch) > 1 and (rest or sum(p.bytes for p in stretch) >= self.sizes.size):
                return stretch
        for some, alike in self._neighbours():
            if alike >= self.sizes.files:
                return some
        self._looked_at = len(self._pieces)
        return []

    def _stretches(self) -> Iterator[list[Piece]]:
        """The files in groups without a gap between their shards."""
        stretch: list[Piece] = []
        for piece in self._pieces:
            if stretch and stretch[-1].last + 1 != piece.first:
                yield stretch
                stretch = []
            stretch.append(piece)
        yield stretch

    def _neighbours(self) -> Iterator[tuple[list[Piece], int]]:
        """Neighbours that hold few shards, then those that hold more; and how many are alike.

        Files are alike that hold from nⁱ to nⁱ⁺¹ shards, where n is how many are joined.
        """
        most = max((piece.shards for piece in self._pieces), default=0)
        least, limit = 1, self.sizes.files
        while least <= most:
            for stretch in self._stretches():
                for fits, some in groupby(stretch, partial(Piece.holds_fewer, than=limit)):
                    if fits:
                        listed = list(some)
                        yield listed, sum(piece.shards >= least for piece in listed)
            least, limit = limit, limit * self.sizes.files
