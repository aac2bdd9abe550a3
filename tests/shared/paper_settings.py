"""The demo's spec with the paper's mechanism, for tests of what that mechanism does."""

import re

PAPER = 'guarantee = "asymptotic"\nepsilon = 10.8\ndatasets = 3\n'


def with_paper_settings(text: str) -> str:
    """A spec whose lines from the guarantee to the budget are the paper's: ε = 10.8 for three files, no bounds."""
    changed, times = re.subn(r'^guarantee = "global".*?(?=^budget = )', PAPER, text, flags=re.DOTALL | re.MULTILINE)
    assert times == 1
    return changed
