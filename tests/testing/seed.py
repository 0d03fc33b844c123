"""The seed of randomised tests in Python, and the only place in them that draws one from the system.

It is the environment variable BATON_TEST_SEED, or else a new one for each process, which prints it: see seed.h.
"""

import os
import random
import sys

VARIABLE = "BATON_TEST_SEED"


def _first_seed():
    text = os.environ.get(VARIABLE)
    if text is None:
        return int.from_bytes(os.urandom(4), "little")
    if not text.isascii() or not text.isdecimal() or int(text) >= 2**32:
        sys.exit(f'{VARIABLE} is "{text}", expected a number below 2^32')
    return int(text)


SEED = _first_seed()
os.environ[VARIABLE] = str(SEED)  # processes that a test starts inherit it
print(f"[   SEED   ] {VARIABLE}={SEED}", flush=True)


def generator(name):
    """For one test, or one part of it: what it draws depends on the seed and the name alone."""
    return random.Random(f"{SEED} {name}")
