"""One file a strategy: a frozen record of its settings and sizes, its rounds, and a bound on what it can ask for.

A new strategy is its file and its name here. The settings, the decode modes that go with it, plans and the simulation
are derived from this union.
"""

from typing import Annotated, get_args

from pydantic import Field

from tasks.schedule.strategies.blitz import Blitz
from tasks.schedule.strategies.jointrank import JointRank
from tasks.schedule.strategies.pairwise import Pairwise
from tasks.schedule.strategies.pointwise import Pointwise
from tasks.schedule.strategies.setwise import Setwise
from tasks.schedule.strategies.single import Single
from tasks.schedule.strategies.sliding import Sliding
from tasks.schedule.strategies.tdpart import TDPart
from tasks.schedule.strategies.tourrank import TourRank

AnyStrategy = Pointwise | Single | Sliding | TDPart | Setwise | TourRank | JointRank | Blitz | Pairwise
TaggedStrategy = Annotated[AnyStrategy, Field(discriminator="name")]
STRATEGIES: dict[str, type[AnyStrategy]] = {kind().name: kind for kind in get_args(AnyStrategy)}
