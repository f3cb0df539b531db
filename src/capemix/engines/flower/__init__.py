"""Flower as the engine: messages travel by it, and nothing else does. Needs ``capemix[flower]``."""
