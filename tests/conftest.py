"""Set before any test module imports torch: its OpenMP threads must sleep when idle, as `hetero.engine` has it."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
