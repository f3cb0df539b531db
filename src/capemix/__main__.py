"""``python -m capemix`` is ``capemix``."""

from capemix.cli import main

main()
