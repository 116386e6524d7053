"""The wheel holds all that a run needs, and works from any folder without the repository beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=clean, text=True, capture_output=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT)
    (found,) = out.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python of a fresh environment with the wheel in it; dependencies are those of the environment of the tests."""
    home = tmp_path_factory.mktemp("venv")
    run(sys.executable, "-m", "venv", "--without-pip", home)
    python = home / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip())
    # Path lines of a .pth file inside this folder are not followed, so an editable install there stays invisible.
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    return python


def tracked(folder: str) -> list[str]:
    return run("git", "ls-files", folder).split()


def test_holds_the_configuration_the_experiments_and_the_drafters(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = [f"orchestrator/{path}" for folder in ("conf", "experiments") for path in tracked(folder)]
    expected += tracked("orchestrator") + tracked("runners")
    assert len(expected) > 60
    assert [name for name in expected if name not in names] == []
    assert {Path(name).parts[0] for name in names if "dist-info" not in name} == {"orchestrator", "runners"}
    assert {Path(name).name for name in names if "/licenses/" in name} == {"LICENSE", "NOTICE"}


def test_is_what_runs(installed: Path, tmp_path: Path) -> None:
    told = run(
        installed,
        "-c",
        "import orchestrator, runners; from orchestrator.paths import conf_dir, local_path;"
        "print(orchestrator.__file__, runners.__file__, conf_dir(), local_path('package:runners/engine'), sep='\\n')",
        cwd=tmp_path,
    )
    site = installed.parents[1] / "lib"
    assert all(Path(line).is_relative_to(site) for line in told.split()), told


def test_plans_from_another_folder_and_writes_nothing(installed: Path, tmp_path: Path) -> None:
    plan = run(installed, "-m", "orchestrator", "action=plan", "+experiment=dspine_vs_dflash2", cwd=tmp_path)
    for arm in ("plain", "dflash2", "dspine"):
        assert arm in plan
    assert list(tmp_path.iterdir()) == []


def test_knows_the_published_figures_and_the_suites(installed: Path, tmp_path: Path) -> None:
    told = run(
        installed,
        "-c",
        "from orchestrator.analysis.published import load;"
        "from runners.engine.training.overlap import SuiteFilter, suite_texts;"
        "from runners.engine.training.prompts import prompts;"
        "print(len(load('dspine_vs_dflash2')), SuiteFilter().overlaps(suite_texts()[0]), len(prompts(0, 10)))",
        cwd=tmp_path,
    )
    published, overlaps, made = told.split()
    assert int(published) >= 1
    assert (overlaps, made) == ("True", "10")
