"""``python -m capemix_research`` is ``capemix-research``."""

from capemix_research.cli import main

main()
