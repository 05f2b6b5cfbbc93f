"""`python -m truestep`: the command line of the Python it is asked of, also where no script was installed."""

from truestep.cli import main

main()
