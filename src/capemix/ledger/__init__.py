"""What releases of the same data cost together, counted before each exists."""

from __future__ import annotations

from capemix.ledger.chain import Head
from capemix.ledger.filter import Account, Limit, Way
from capemix.ledger.ledger import Ledger, Lineage, default_path

__all__ = ["Account", "Head", "Ledger", "Limit", "Lineage", "Way", "default_path"]
