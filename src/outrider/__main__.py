"""``python -m outrider``, for launchers that start modules."""

import sys

from outrider.cli import main

sys.exit(main())
