"""`python -m stallwatch` is the `stallwatch` command."""

import sys

from stallwatch.cli import main

if __name__ == "__main__":
    sys.exit(main())
