"""Static checks of what the constructs deploy; `make synth` runs all, the tests each for itself."""
