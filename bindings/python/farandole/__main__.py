"""`python -m farandole` is the command `farandole`."""

from .launcher import main

main()
