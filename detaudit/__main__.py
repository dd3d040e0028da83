"""`python -m detaudit` is the console script `detaudit`."""

import sys

from detaudit.cli import main

if __name__ == "__main__":
    sys.exit(main())
