"""Randomness that a resumed run repeats: every draw is named by run seed, query, strategy and place in it.

Python's own `hash` is salted anew in every process and is never used.
"""

import random
from dataclasses import dataclass
from hashlib import blake2b


@dataclass(frozen=True, slots=True)
class Seed:
    """A name from which draws are made."""

    name: str = ""

    def of(self, *parts: object) -> "Seed":
        """The seed of a part: `seed.of("tourrank", 3)`."""
        return Seed("\x1f".join([self.name, *map(str, parts)]))

    def random(self) -> random.Random:
        """A fresh generator, always the same for the same name."""
        return random.Random(int.from_bytes(blake2b(self.name.encode(), digest_size=8).digest(), "big"))

    def shuffled(self, docs: tuple[int, ...]) -> tuple[int, ...]:
        """The candidates in another order: never the given one, where there are two or more."""
        rng = self.random()
        order = tuple(rng.sample(docs, len(docs)))
        return order if order != docs or len(docs) < 2 else (*docs[1:], docs[0])
