"""`python -m svysynth` is the same as `svysynth`."""

from svysynth.cli import main

main()
