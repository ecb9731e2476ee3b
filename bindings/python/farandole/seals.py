"""The numbers of sealed messages: a recorded message that comes again has a number that was there before."""

import threading

from . import errors


class MessageNumbers:
    """Numbers the messages of a group. A receiver accepts each number of a sender once."""

    _WINDOW = 1 << 14  # numbers; calls of several threads may arrive in another order than they were made

    def __init__(self):
        self._lock = threading.Lock()
        self._sent = 0
        self._seen = {}  # by sender: the largest number, and those of the window

    def next_number(self):
        with self._lock:
            self._sent += 1
            return self._sent

    def accept(self, number, sender):
        """AuthenticationError if a message of this number has arrived before."""
        with self._lock:
            largest, seen = self._seen.setdefault(sender, (0, set()))
            if number in seen or number <= largest - self._WINDOW:
                raise errors.AuthenticationError(
                    f"message {number} of rank {sender} has arrived before: something on the way repeats messages"
                )
            seen.add(number)
            if number > largest:
                if len(seen) > 2 * self._WINDOW:
                    seen = {one for one in seen if one > number - self._WINDOW}
                self._seen[sender] = (number, seen)
