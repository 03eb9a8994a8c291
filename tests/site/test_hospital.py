"""The hospital's own file of settings."""

import pytest

from dpfact_flower.errors import SettingsError
from dpfact_flower.site.hospital import read_site_settings

WHOLE = 'site = "north"\ndata-path = "/d/n.npz"\nstate-dir = "/d/state"\nmax-epsilon = 4.0\n'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (WHOLE + "max-epsilom = 9.0", "max-epsilom"),
        (WHOLE + "partition-id = 1\nnum-partitions = 2", "partition-id"),
        (WHOLE.replace('"/d/n.npz"', '"n.npz"'), "data-path must be set, to an absolute path"),
        ('site = "north"', "data-path must be set, to an absolute path"),
        (WHOLE + "[more]\nx = 1", "more"),
        (WHOLE + 'max-rank = "x"', "max-rank"),
        ("site = ", "not readable as TOML"),
        (None, r"north\.toml: No such file"),
    ],
)
def test_what_is_not_whole_or_not_a_setting_is_refused(tmp_path, text, says):
    path = tmp_path / "north.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SettingsError, match=says):
        read_site_settings(path)
