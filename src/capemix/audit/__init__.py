"""What a release gives away, measured from below: canaries in and out of real runs of the pipeline,
and membership inference on a finished release."""
