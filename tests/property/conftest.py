"""How long properties may search: long enough to find what a change breaks, short enough to run with every change.

No deadline and no complaint about slowness: the machine may be busy, and that is no defect of the code.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("suite", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
