"""How far a piece of work is, in figures."""

from __future__ import annotations

import pytest

from rescue_tui.ui.background import Place
from rescue_tui.ui.checkpoint_words import place_words, slug


@pytest.mark.parametrize(("place", "words"), [
    (Place(), "looking at directories"),
    (Place("scanning", "a", 1 << 30, 2 << 30, 0.1, 0), "50 % of 2.0 GiB"),
    # What was done before the first look says nothing of the rate.
    (Place("scanning", "a", 3 << 29, 2 << 30, 2.0, 1 << 30), "75 % of 2.0 GiB, 256.0 MiB/s, 2 s to go"),
    (Place("scanning", "a", 2 << 30, 2 << 30, 8.0), "100 % of 2.0 GiB, 256.0 MiB/s, 0 s to go"),
])
def test_progress_in_words(place: Place, words: str) -> None:
    assert place_words(place) == words


def test_directory_names_are_plain() -> None:
    assert slug("run-a/step_300", "model.pt") == "run-a-step_300-model.pt"
    assert slug("../..") == "checkpoints"
    assert slug("[/foo]\x1b\udcff x") == "foo-x"
    assert len(slug("N" * 4096)) == 80
