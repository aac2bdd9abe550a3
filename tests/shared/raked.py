"""The part of a spec that rakes weights to public totals."""


def raked(**totals):
    """A margin for each column, with the totals of its levels."""
    margins = (
        f'[[survey.calibration.margins]]\nby = "{column}"\ntotals = {{ {_listed(own)} }}\n'
        for column, own in totals.items()
    )
    return "\n".join(['[survey.calibration]\nmethod = "rake"\n', *margins])


def _listed(totals):
    return ", ".join(f"{level} = {total}" for level, total in totals.items())
