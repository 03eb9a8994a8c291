"""A fault campaign: whole runs between real sites and a real strategy, on a network that fails.

Sites answer through the ClientApp's own door, with their own folders on the disk; a site's process
that is killed is a process that is killed. The network and the clock are the campaign's own, so a
run of an hour takes a second. `python -m laboratory.campaign --scenarios 150 --seed 0`.
"""
