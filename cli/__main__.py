"""`python -m hetero.cli` is `hetero`."""

import sys

from hetero.cli.main import main

sys.exit(main())
