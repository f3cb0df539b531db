"""Private sums: what a record adds, who takes part, with how much noise."""
