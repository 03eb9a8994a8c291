"""Write the files beside this one, with the code of an older commit: those of runs half done.

In an empty folder, with this script of today::

    git archive 4a05bc9 | tar x
    PYTHONPATH=. python .../tests/site/before/make.py .../tests/site/before
"""

import sys
from pathlib import Path
from shutil import rmtree

import numpy as np

from dpfact_flower.client import DPFactClient
from dpfact_flower.data.site_data import SiteData
from dpfact_flower.data.vocabulary import Vocabulary, joint_digest
from dpfact_flower.server.coordinator import Coordinator
from dpfact_flower.settings import PrivacySettings, RunSettings, SiteSettings, SolverSettings
from dpfact_flower.tensor import SparseTensor
from dpfact_flower.wire.protocol import SiteReply

PRIVACY = {
    "patient": PrivacySettings(epsilon=4.0, delta=1e-5, refine_rounds=1, codes="6x8"),
    "none": PrivacySettings(privacy="none"),
}
HALF = 2


def made_up() -> SiteData:
    """Forty patients, each with some of nine and twelve codes."""
    rng = np.random.default_rng(1)
    counts = rng.poisson(0.15, (40, 9, 12))
    counts[np.arange(40), 0, 0] += 1
    where = np.argwhere(counts)
    tensor = SparseTensor.from_coo(where, counts[tuple(where.T)], counts.shape)
    lists = tuple(
        Vocabulary(name, tuple(f"{name[0].upper()}{i:02d}" for i in range(size)), ("",) * size)
        for name, size in (("procedures", 9), ("diagnoses", 12))
    )
    return SiteData("site-1", tensor, lists)


def main(folder: Path) -> None:
    """Answer the first rounds of a run in each mode."""
    data = made_up()
    data.save(folder / "site-1.npz")
    for mode, privacy in PRIVACY.items():
        server = Coordinator(
            data.tensor.feature_shape, solver=SolverSettings(rank=4, off=0.0), privacy=privacy,
            run=RunSettings(job="before", rounds=4, sites=1, seed=3),
            vocabulary=joint_digest(data.vocabularies), run_dir=folder / mode / "run",
        )  # fmt: skip
        settings = SiteSettings(
            state_dir=str((folder / mode / "state").absolute()), allow_privacy=mode,
            max_epsilon=0.0 if mode == "none" else 4.1,
        )  # fmt: skip
        for number in range(1, HALF + 1):
            client = DPFactClient(data, settings)
            arrays, _, config = client.fit(*server.request(number).to_wire())
            reply = SiteReply.from_wire(arrays, config, server.reply_shapes(number))
            server.close_round(number, [reply], [], bytes_down=1, bytes_up=1, seconds=1.0)
        rmtree(folder / mode / "state")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
