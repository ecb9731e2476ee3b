"""What all tests in Python have in common."""

import signal

# A shell that starts the tests in the background makes them ignore SIGINT, and so would the programs that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
