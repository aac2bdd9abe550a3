"""`python -m svysynth` is the same as `svysynth`."""

from svysynth.cli.main import main

main()
