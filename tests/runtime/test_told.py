"""Flower's log, read in place of a person."""

from dpfact_flower.runtime.serve import MEASURING_LINE
from dpfact_flower.runtime.told import Listener

LOG = f"""\
INFO :      Starting Flower Simulation
WARNING :   Since flwr 1.32, default simulated SuperNodes changed from 10 to 2.
INFO :      [ROUND 1/4]
INFO :      [ROUND 3/4]
WARNING :   round 3: node 5: no reply within 600 s
INFO :      ServerApp-side Evaluate Metrics:
INFO :      {MEASURING_LINE}
(ClientAppActor pid=31969) WARNING :   Manually terminating ClientAppActor
"""


def test_rounds_are_told_of_and_warnings_shown_and_noise_is_not():
    told, shown = [], []
    listener = Listener(lambda *progress: told.append(progress), shown.append)
    for line in LOG.splitlines(keepends=True):
        listener(line)
    assert told == [("rounds", 0.0), ("rounds", 0.5), ("rounds", 1.0), ("measuring", 0.0)]
    assert shown == ["WARNING :   round 3: node 5: no reply within 600 s"]
    shown.clear()
    listener.show_all()  # the run has failed
    assert shown == LOG.splitlines()


def test_of_a_long_log_the_end_is_kept():
    shown = []
    listener = Listener(lambda *_: None, shown.append)
    for number in range(1000):
        listener(f"{number}\n")
    listener.show_all()
    assert shown == [str(number) for number in range(800, 1000)]
