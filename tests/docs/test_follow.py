"""`make follow`, on a page of its own: what it runs, leaves out, and takes for a failure."""

import os

import pytest

from tests.docs import follow

PAGE = """Text

    export COLOUR=blue
    D=PATH/TO/there
    cat $D/file > copied      # as it lies there
    sudo touch /srv/never
    dpfact data eicu PATH/TO/nowhere --out data/eicu
    dpfact run --data data/eicu --out runs/eicu
    dpfact report runs/eicu

```python
import os
print("noise that is no answer")
colour, there = os.environ["COLOUR"], open("copied").read()
```

```python
assert (colour, there) == ("blue", "so")
```
"""


@pytest.fixture
def followed(tmp_path, monkeypatch):
    """What became of a page's text in a folder."""
    home = tmp_path / "home"
    (home / "there").mkdir(parents=True)
    (home / "there" / "file").write_text("so")
    monkeypatch.setattr(follow, "ROOT", tmp_path)
    monkeypatch.setattr("tests.docs.pages.ROOT", tmp_path)

    def go(text: str) -> follow.Page:
        (tmp_path / "page.md").write_text(text)
        return follow.follow(tmp_path / "page.md", home, dict(os.environ))

    return go


def test_a_page_is_one_shell_and_one_python_and_says_what_was_left_out(followed):
    page = followed(PAGE)
    assert page.failed == []
    assert page.run == 5
    assert [(unit.text.split()[0], reason) for unit, reason in page.left_out] == [
        ("sudo", follow.LEFT_OUT[0][1]), ("dpfact", "no nowhere at hand"),
        ("dpfact", "what it reads was left out"), ("dpfact", "what it reads was left out"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("$D/file", "$D/another", "exit code 1"),
        ('"blue"', '"red"', "AssertionError"),
        ("import os\n", "import os\nos._exit(3)\n", "has ended"),
    ],
)
def test_what_goes_wrong_is_noticed(followed, old, new, said):
    page = followed(PAGE.replace(old, new, 1))
    assert said in page.failed[0][1]


def test_every_rule_leaves_something_out():
    texts = [unit.text for path in follow.PATHS for unit in follow.units(path) if not unit.python]
    for sign, reason in follow.LEFT_OUT:
        assert any(follow.re.search(sign, text) for text in texts), reason
    named = {page for page in follow.GIVEN if not (follow.ROOT / page).is_file()}
    assert not named
