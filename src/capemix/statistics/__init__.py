"""What records add to private sums: rows, counts, moments, histograms, gradients."""
