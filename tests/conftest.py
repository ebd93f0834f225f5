"""What must be so before any test module is imported.

torch's OpenMP threads sleep when idle, as `hetero.engine` has it. And Ctrl-C works in the commands that tests start,
also where the tests themselves were started in the background, which a shell does with SIGINT ignored.
"""

import os
import signal

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
signal.signal(signal.SIGINT, signal.default_int_handler)
