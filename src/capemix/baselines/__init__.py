"""What the method is compared with. Central and conventional DP-CDA and DP-Mix are plans of
`capemix.plan` (docs/theory/method.md); here is what releases every record by itself, and all
their noises.
"""

from __future__ import annotations

from capemix.baselines.noise import Baseline, Noise, noise_of
from capemix.baselines.recordwise import release_records

__all__ = ["Baseline", "Noise", "noise_of", "release_records"]
