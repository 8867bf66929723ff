"""What heads of fleet up to November 2026 start by these names, see fleet/ops/background.py."""
