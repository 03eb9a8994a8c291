"""A fault campaign: complete runs with real sites and a real strategy on an unreliable network.

Sites answer through the ClientApp, with their own folders on disk. Processes are really killed. The
network and the clock are simulated, so a run of an hour takes a second. Run it with `python -m
laboratory.campaign --scenarios 150 --seed 0`.
"""
