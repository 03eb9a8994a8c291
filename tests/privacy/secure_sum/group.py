"""All sites of a job and an honest server, step by step, for the tests of secure sums."""

from dataclasses import replace

import numpy as np

from dpfact_flower.privacy.secure_sum import keys, server, site
from dpfact_flower.privacy.secure_sum.keys import Question, Terms
from dpfact_flower.privacy.secure_sum.masks import LOW

COUNT = 500


class Group:
    """H sites with pinned keys, or `signing` ones; `states` is what each has on its disk."""

    def __init__(self, sites, colluding=0, dropouts=0, *, job="job", count=COUNT, signing=None):
        names = sorted(f"site-{number:02d}" for number in range(sites))
        self.signing = signing or {n: keys.read_signing_key(keys.new_signing_key()) for n in names}
        self.peers = {n: keys.read_public_key(keys.public_text(self.signing[n])) for n in names}
        self.terms = Terms(job, "settings", tuple(names), colluding, dropouts)
        self.jobs = {n: site.join(self.terms, n, self.signing[n], self.peers) for n in names}
        self.members = tuple(job.member for job in self.jobs.values())
        rng = np.random.default_rng(sites)
        self.vectors = {n: rng.integers(-(2**40), 2**40, count) for n in names}
        self.states = dict.fromkeys(names)
        self.drawn = dict.fromkeys(names, 0)

    @property
    def names(self):
        return list(self.jobs)

    def question(self, *, without=(), **changes):
        members = tuple(member for member in self.members if member.site not in without)
        return replace(Question(1, b"request", 1, 4, members), **changes)

    def ask(self, name, question=None):
        """Return a site's answer to the server's question."""

        def draw():
            self.drawn[name] += 1
            return self.vectors[name]

        job, question = self.jobs[name], question or self.question()
        allowed = site.check_question(job, self.states[name], question, self.peers)
        self.states[name] = site.answer(allowed, draw)
        return site.masked(job, self.states[name])

    def ask_all(self, question=None):
        question = question or self.question()
        return {name: self.ask(name, question) for name in question.sites}

    def open(self, name, answers):
        """Return a site's opening of the attempt to which these answers belong."""
        context = next(iter(answers.values())).context
        sealed = server.sealed_for(name, answers)
        self.states[name] = site.opened(self.jobs[name], self.states[name], context, sealed)
        return self.states[name].opening

    def sum(self, question, answers, openers):
        openings = {name: self.open(name, answers) for name in openers}
        return server.unmasked(self.terms, question, answers, openings)

    def exact(self, names):
        return sum(self.vectors[name] for name in names)


def close(found, exact, sites):
    """Return whether two sums are equal except for the bits that are not sent."""
    return bool(np.abs(found - exact).max() <= sites << (LOW - 1))


def looks_uniform(raw):
    """Return whether bytes, bits and neighbours look like those of a uniform vector."""
    counts = np.bincount(np.frombuffer(raw, np.uint8), minlength=256)
    expected = len(raw) / 256
    chi_squared = float(((counts - expected) ** 2 / expected).sum())
    bits = np.unpackbits(np.frombuffer(raw, np.uint8)) - 0.5
    return bool(
        abs(chi_squared - 255) < 6 * np.sqrt(2 * 255)
        and abs(bits.mean()) < 6 * 0.5 / np.sqrt(len(bits))
        and abs((bits[:-32] * bits[32:]).mean()) < 6 * 0.25 / np.sqrt(len(bits))
    )
