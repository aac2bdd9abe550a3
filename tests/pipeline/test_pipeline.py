"""The whole way through the command line: what a release writes, where, and what it keeps to itself."""

import json
import stat

import polars as pl
import pytest

from svysynth.cli.main import main
from svysynth.privacy.ledger import show

MECHANISM = 'mechanism = "fbs"                  # fbs | fbp | laplace\n'
SECRET = ("alpha", "bound", "seed", "r_hat", "calibration", "trial")


def run(*arguments):
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    return caught.value.code or 0


@pytest.fixture(scope="module")
def released(paper_demo):
    assert run("release", paper_demo / "doctorates.toml", "--out", paper_demo / "release") == 0
    return paper_demo / "release"


def test_the_two_folders(released):
    public = {path.name for path in (released / "public").iterdir()}
    files = {f"microdata-{number}.{ending}" for number in (1, 2, 3) for ending in ("parquet", "csv")}
    assert public == files | {"tables.csv", "tables.xlsx", "report.html", "manifest.json", "SHA256SUMS"}
    internal = {path.name for path in (released / "internal").iterdir()}
    pages = {"report.html", "direct-tables.csv", "run.json", "verdict.json"}
    assert internal == {"diagnostics.json", "records.parquet", "calibration.csv"} | pages
    assert stat.S_IMODE((released / "internal").stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in (released / "internal").iterdir()} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (released / "public").iterdir()} == {0o644}


def test_the_manifest_says_what_is_promised(released):
    text = (released / "public/manifest.json").read_text()
    manifest = json.loads(text)
    guarantee = manifest["guarantee"]
    assert guarantee["kind"] == "asymptotic"
    assert guarantee["epsilon_blanked"] == 2 * guarantee["largest_bound"] * guarantee["datasets"] == 10.8
    assert guarantee["epsilon_changed"] == 21.6
    assert (manifest["format"], manifest["warning"]) == (3, None)
    assert manifest["ledger"]["entry"] == 2


def test_the_words_of_another_guarantee_are_nowhere(released):
    for path in (released / "public").iterdir():
        if path.suffix in (".json", ".html", ".csv"):
            text = path.read_text().lower()
            assert "ε-dp" not in text
            assert "pure" not in text


def test_nothing_internal_is_public(released):
    """The manifest states the target and never what was found; no public file names an internal thing."""
    manifest = json.loads((released / "public/manifest.json").read_text())
    found = json.loads((released / "internal/diagnostics.json").read_text())["largest_bound"]
    assert manifest["guarantee"]["largest_bound"] == pytest.approx(1.8, rel=1e-15)
    assert str(found) not in (released / "public/manifest.json").read_text()
    for path in (released / "public").glob("*.parquet"):
        columns = pl.read_parquet(path).columns
        assert columns == ["id", "field", "gender", "salary", "weight", "weight_unsmoothed"]
    header = (released / "public/tables.csv").read_text().splitlines()[0]
    assert not any(word in header for word in SECRET)


def test_tables_follow_from_the_microdata(released):
    """The population total is the same in every file, and the mean count of a field is the table's."""
    tables = pl.read_csv(released / "public/tables.csv")
    files = [pl.read_parquet(path) for path in sorted((released / "public").glob("*.parquet"))]
    for field in ("Engineering", "Health"):
        counts = [file.filter(pl.col("field") == field)["weight"].sum() for file in files]
        found = tables.filter(
            (pl.col("field") == field) & (pl.col("gender") == "All") & (pl.col("statistic") == "count")
        )
        assert found["estimate"].item() == pytest.approx(sum(counts) / 3)


def test_an_existing_folder_is_not_touched(released, capsys):
    before = sorted(path.name for path in released.parent.iterdir())
    assert run("release", released.parent / "doctorates.toml", "--out", released) == 1
    assert "exists already" in capsys.readouterr().err
    assert sorted(path.name for path in released.parent.iterdir()) == before


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("population_total = 125199", "# ", "survey.population_total"),
        *(
            (f'{MECHANISM}guarantee = "asymptotic"', f'mechanism = "{name}"\nguarantee = "{promise}"', message)
            for name, promise, message in (
                ("laplace", "global", "privacy.bounds"),
                ("laplace-paper", "none", "is for comparison only, has no guarantee"),
            )
        ),
        ('guarantee = "asymptotic"', "", "'privacy.guarantee' is required"),
        ('budget = "doctorates"', "", "privacy.budget"),
        ('budget = "doctorates"', 'budget = "others"', "ledger open"),
        ("epsilon = 10.8", "epsilon = 2000.0", "has less left"),
        ("epsilon = 10.8", "epsilon = 0.01", "privacy.epsilon"),
        ("datasets = 3", "datasets = 500", "privacy.datasets"),
    ],
)
def test_what_cannot_be_released_leaves_nothing_behind(paper_demo, tmp_path, capsys, old, new, message):
    text = (paper_demo / "doctorates.toml").read_text().replace('"doctorates.csv"', f'"{paper_demo}/doctorates.csv"')
    text = text.replace("datasets = 3", f'datasets = 3\nledger = "{paper_demo}/ledger.sqlite"')
    assert old in text
    before = show(paper_demo / "ledger.sqlite")
    (tmp_path / "s.toml").write_text(text.replace(old, new).replace('"fbs"', '"fbp"'))
    capsys.readouterr()
    assert run("release", tmp_path / "s.toml", "--out", tmp_path / "out") == 1
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["s.toml"]
    assert show(paper_demo / "ledger.sqlite") == before


def test_a_global_guarantee_needs_public_bounds_and_is_refused_before_the_data_are_read(paper_demo, tmp_path, capsys):
    text = (paper_demo / "doctorates.toml").read_text().replace('"doctorates.csv"', '"not-there.csv"')
    for mechanism in ("fbs", "fbp"):
        (tmp_path / "s.toml").write_text(
            text.replace('"fbs"', f'"{mechanism}"').replace('guarantee = "asymptotic"', 'guarantee = "global"')
        )
        assert run("release", tmp_path / "s.toml", "--out", tmp_path / "r", "--seed", 1) == 1
        assert "'privacy.bounds' is required" in capsys.readouterr().err
