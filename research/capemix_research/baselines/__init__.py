"""What the method is compared with. Central and conventional DP-CDA and DP-Mix are plans of
`capemix.methods.mixing` (docs/theory/method.md); here is what releases every record by itself, and
the noise of all of them.
"""

from __future__ import annotations

from capemix_research.baselines.noise import Baseline, Noise, noise_of
from capemix_research.baselines.plan import Projection, RecordMethod, RecordPlan, make_record_plan
from capemix_research.baselines.recordwise import baseline_of, release_records

__all__ = [
    "Baseline",
    "Noise",
    "Projection",
    "RecordMethod",
    "RecordPlan",
    "baseline_of",
    "make_record_plan",
    "noise_of",
    "release_records",
]
