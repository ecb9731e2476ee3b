"""Functions that the tests of farandole.run run on each rank. They import little, because each rank imports them."""

import os
import signal
import sys
import threading

import farandole
import numpy as np


def ranks_and_sum(base, factor=1):
    farandole.init()
    total = farandole.allreduce(np.array([base + factor * farandole.rank()]))[0]
    return farandole.rank(), farandole.size(), int(total)


def folder_of_the_task():
    folder = sys.argv[1]
    return folder, oct(os.stat(folder).st_mode & 0o777), oct(os.stat(os.path.join(folder, "task")).st_mode & 0o77)


def one_raises():
    farandole.init()
    if farandole.rank() == 1:
        raise KeyError("the cause")
    farandole.allreduce(np.ones(1), name="never")


def one_is_killed():
    farandole.init()
    farandole.barrier()
    if farandole.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    farandole.allreduce(np.ones(1), name="never")


class Particular(Exception):
    def __init__(self, one, two):
        super().__init__(one + two)


def raises_what_cannot_be_made_again():
    raise Particular("a", "b")


def exits():
    sys.exit(7)


def returns_a_lock():
    return threading.Lock()
