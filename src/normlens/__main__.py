"""``python -m normlens`` is the command ``normlens``."""

import sys

from normlens.cli import main

if __name__ == "__main__":
    sys.exit(main())
