"""For all suites: hypothesis takes the time that a busy machine needs."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("fleet", deadline=None)
settings.load_profile("fleet")
