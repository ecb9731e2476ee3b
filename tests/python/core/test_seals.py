"""The numbers of sealed messages."""

import pytest
from farandole import errors
from farandole.world import MessageNumbers


def test_a_number_is_accepted_once_and_in_any_order():
    numbers = MessageNumbers()
    for number in (2, 1, 4, 3):
        numbers.accept(number, 0)
    numbers.accept(2, 1)
    for number in (1, 2, 3, 4):
        with pytest.raises(errors.AuthenticationError, match=f"message {number} of rank 0 has arrived before"):
            numbers.accept(number, 0)


def test_numbers_far_behind_are_refused_and_forgotten():
    numbers = MessageNumbers()
    window = MessageNumbers._WINDOW
    for number in range(1, 4 * window):
        numbers.accept(number, 0)
    assert len(numbers._seen[0][1]) <= 2 * window + 1
    with pytest.raises(errors.AuthenticationError):
        numbers.accept(1, 0)


def test_a_sender_counts_from_one():
    numbers = MessageNumbers()
    assert [numbers.next_number() for _ in range(3)] == [1, 2, 3]
