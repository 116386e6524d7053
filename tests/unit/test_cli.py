"""The command: what it prints, what it refuses, what it starts; a sweep's failures do not hide each other."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator import cli, tracking
from orchestrator.analysis.results import write_summary
from orchestrator.analysis.summary import summarize
from orchestrator.config.overrides import quoted
from orchestrator.measuring import execute
from orchestrator.measuring.store import ServerFacts, Store
from orchestrator.paths import conf_dir
from orchestrator.planning import hardware, preflight
from orchestrator.planning.plan import Plan
from orchestrator.schema import Experiment
from tests import synthetic
from tests.record_factory import record

COMPARISON = ["suite=smoke_2", "name=one", '+arms.plain=["drafter=none"]', '+arms.ngram=["drafter=ngram"]']
HEAVY = ("torch", "mlflow", "docker", "transformers", "llvmlite", "scipy", "matplotlib")

Run = Callable[[Experiment, Plan, Path], int]


@pytest.fixture(autouse=True)
def _a_laptop(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hardware, "gpus", lambda: hardware.Gpus())


def started(monkeypatch: pytest.MonkeyPatch, run: Run) -> list[tuple[Experiment, Plan, Path]]:
    """Runs ``run`` in place of a measurement; returns what it is given."""
    calls: list[tuple[Experiment, Plan, Path]] = []

    def recorded(experiment: Experiment, plan: Plan, directory: Path, nodes: object) -> int:
        calls.append((experiment, plan, directory))
        return run(experiment, plan, directory)

    monkeypatch.setattr(execute, "run", recorded)
    return calls


def never(experiment: Experiment, plan: Plan, directory: Path) -> int:
    raise AssertionError("nothing may be started")


def test_without_arguments_it_says_what_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    told = capsys.readouterr().err
    for file in (conf_dir() / "experiment").glob("*.yaml"):
        assert f"python -m orchestrator +experiment={file.stem} " in told


def test_help_lists_every_group_and_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--help"]) == 0
    told = capsys.readouterr().out
    for file in conf_dir().glob("*/*.yaml"):
        assert re.search(rf"^ +{file.parent.name} .*\b{file.stem}\b", told, re.M) or f"    {file.stem} " in told


def test_a_plan_starts_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started(monkeypatch, never)
    assert cli.main([*COMPARISON, "suite.repeats=2", "action=plan"]) == 0
    told = capsys.readouterr()
    assert "preset=embedded" in told.err, "the preset is said aloud"
    rows = [line.split()[:3] for line in told.out.split("trials, in the order")[1].splitlines()[2:6]]
    assert rows == [["1", "plain", "1"], ["2", "ngram", "1"], ["2", "ngram", "2"], ["3", "plain", "2"]]
    assert "3 server starts, 4 trials, 8 requests and 8 to warm up" in told.out
    assert len(re.findall(r"-m runners\.engine .*--port FREE_PORT", told.out)) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_plan_knows_what_is_measured_already(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def measure_first(experiment: Experiment, plan: Plan, directory: Path) -> int:
        store = Store(directory, Path(experiment.output) / "index")
        _, file = store.open_session(0, "plain")
        file.append(record(trial_key=plan.trials[0].key))
        facts = {"session_index": 0, "arm": "plain", "command": [], "identity": {}, "started": 1.0, "ready_s": 1.0}
        store.finish(plan.trials[0].key, file, 1, ServerFacts.model_validate({**facts, "peak_memory_bytes": None}))
        file.close()
        return 0

    started(monkeypatch, measure_first)
    assert cli.main([*COMPARISON, "suite.repeats=2"]) == 0
    before = sorted(tmp_path.rglob("*"))
    capsys.readouterr()
    assert cli.main([*COMPARISON, "suite.repeats=2", "action=plan"]) == 0
    assert "1 of 4 trials are measured already and not measured again. Left: 2 server" in capsys.readouterr().out
    assert cli.main([*COMPARISON, "suite.repeats=2", "action=plan", "reuse=false"]) == 0
    assert "measured already" not in capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before


def test_a_plan_names_arms_that_cannot_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["+experiment=dspine_vs_dflash2", "preset=gpu", "action=plan"]) == 0
    assert "arm dspine cannot run: drafter=dspine: no image with the vendor's code" in capsys.readouterr().out


def test_a_plan_is_made_without_torch_mlflow_or_docker(tmp_path: Path) -> None:
    script = (
        "import sys; from orchestrator.cli import main; code = main(sys.argv[1:]);"
        f"print('HEAVY', [name for name in {HEAVY} if name in sys.modules]); sys.exit(code)"
    )
    for arguments in (["--help"], ["+experiment=embedded_drafters", "preset=embedded", "action=plan"]):
        done = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(Path(cli.__file__).parent.parent)},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == "HEAVY []"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["+experiment=dspin"], "error: +experiment=dspin: there is no experiment 'dspin'\n"),
        (["--multrun", "+experiment=x"], "error: unrecognized arguments: --multrun\n"),
        (["--config-dir", "nowhere", "+experiment=x"], "error: --config-dir: there is no folder nowhere\n"),
        (
            [*COMPARISON, "runner=process", "runner.command=[no-sglang]"],
            "there is no program no-sglang on this machine",
        ),
        (
            ["-m", *COMPARISON, "drafter.block_size=4,many"],
            "error: drafter.block_size=many: drafter.block_size: 'many'",
        ),
        (["-m", *COMPARISON, "runner=embedded,docker"], "error: runner=embedded,docker: a sweep over runners needs"),
        ([*COMPARISON, "target=hf_folder", "target.path=/no/folder"], "error: the baseline cannot run"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_starts(
    arguments: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    started(monkeypatch, never)
    assert cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert told in error
    assert "Traceback" not in error
    assert list(tmp_path.iterdir()) == [], "not even a folder"


def test_hydra_full_error_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(ValueError, match="there is no experiment") as caught:
        cli.main(["+experiment=dspin"])
    assert caught.value.__cause__ is not None, "Hydra's own error is kept"


def test_a_comparison_runs_in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = started(monkeypatch, lambda experiment, plan, directory: 0)
    assert cli.main([*COMPARISON, "seed=3"]) == 0
    assert cli.main([*COMPARISON, "seed=3"]) == 0
    (experiment, plan, first), (_, again, second) = calls
    assert first.parent == second.parent == tmp_path / "runs" / "one"
    assert first != second
    assert experiment.sweep is None
    assert experiment.command_line == ("preset=embedded", *COMPARISON, "seed=3")
    assert {arm.seed for arm in experiment.configs.values()} == {3}
    assert plan == again, "equal content, equal keys"
    assert json.loads((first / "outcome.json").read_text())["code"] == 0
    assert not list(first.glob("*.log")), "Hydra leaves no log file"


@pytest.mark.parametrize("code", [1, 130])
def test_the_exit_code_of_a_run_is_the_command_s(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    started(monkeypatch, lambda experiment, plan, directory: code)
    assert cli.main(COMPARISON) == code


def test_a_failed_comparison_does_not_hide_the_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(experiment: Experiment, plan: Plan, directory: Path) -> int:
        block = experiment.configs["ngram"].drafter.block_size
        if block == 4:
            raise RuntimeError("a bug")
        return int(block == 6)

    calls = started(monkeypatch, run)
    assert cli.main(["-m", *COMPARISON, "drafter.block_size=4,6,8"]) == 1
    assert [experiment.configs["ngram"].drafter.block_size for experiment, _, _ in calls] == [4, 6, 8]
    folders = [directory for _, _, directory in calls]
    assert {folder.parent for folder in folders} == {folders[0].parent}
    assert {experiment.sweep for experiment, _, _ in calls} == {folders[0].parent.name}
    assert folders[0].parent.parent == tmp_path / "runs" / "one"
    plain = {next(trial.key for trial in plan.trials if trial.arm == "plain") for _, plan, _ in calls}
    assert len(plain) == 3, "the plain arm is measured again in every comparison"
    told = capsys.readouterr()
    assert "1 of 3 comparisons went well" in told.out
    assert re.search(r"failed: .*drafter.block_size=4: RuntimeError: a bug", told.out)
    assert re.search(r"failed: .*drafter.block_size=6: ended with exit code 1", told.out)


def test_a_signal_ends_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = started(monkeypatch, lambda experiment, plan, directory: 130)
    assert cli.main(["-m", *COMPARISON, "drafter.block_size=4,6"]) == 130
    assert len(calls) == 1


def test_allowed_gaps_leave_an_arm_out_of_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = started(monkeypatch, lambda experiment, plan, directory: 0)
    gap = [*COMPARISON, '+arms.eagle=["drafter=eagle3"]']
    assert cli.main(gap) == 2
    assert cli.main([*gap, "allow_missing_arms=true"]) == 0
    ((_, plan, _),) = calls
    assert {session.arm.name for session in plan.sessions} == {"plain", "ngram"}
    assert plan.missing["eagle"].startswith("drafter=eagle3: the embedded engine does not have it")


def test_a_folder_of_one_s_own_groups(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = started(monkeypatch, lambda experiment, plan, directory: 0)
    (tmp_path / "own" / "load").mkdir(parents=True)
    two = (conf_dir() / "load" / "single.yaml").read_text().replace("single", "two").replace("[1]", "[2]")
    (tmp_path / "own" / "load" / "two.yaml").write_text(two)
    (tmp_path / "own").rename(tmp_path / "it's, my own")
    assert cli.main(["--config-dir", "it's, my own", *COMPARISON, "load=two"]) == 0
    assert calls[0][0].configs["plain"].load.concurrency == (2,)


@pytest.mark.parametrize("name", ["it's", "a b, c=[1]", "ends\\"])
def test_results_may_lie_in_a_folder_of_any_name(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = started(monkeypatch, lambda experiment, plan, directory: 0)
    output = f"output={quoted(name)}"
    assert cli.main([*COMPARISON, output]) == 0
    assert cli.main(["-m", *COMPARISON, output, "seed=1,2"]) == 0
    assert [directory.relative_to(tmp_path / name / "one").parts[-1] for _, _, directory in calls[1:]] == ["0", "1"]
    assert calls[0][2].parent == tmp_path / name / "one"


def test_hydra_shows_its_config(capfd: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*COMPARISON, "--cfg", "job"]) == 0
    assert "name: one" in capfd.readouterr().out


def test_it_works_from_another_folder_and_from_a_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """conf_dir() finds conf/ inside the package (a wheel), else beside it (a checkout)."""
    from orchestrator import paths

    package = tmp_path / "site" / "orchestrator"
    for folder in (package.parent / "conf", package / "conf"):
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text("")
        monkeypatch.setattr(paths, "_PACKAGE", package)
        assert paths.conf_dir() == folder
    monkeypatch.setattr(paths, "_PACKAGE", tmp_path / "nothing")
    with pytest.raises(FileNotFoundError, match="incomplete"):
        paths.conf_dir()


def test_torch_is_looked_for_before_the_embedded_engine_is_started(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started(monkeypatch, never)
    monkeypatch.setattr(preflight, "find_spec", lambda name: None)
    assert cli.main(COMPARISON) == 2
    assert "pip install" in capsys.readouterr().err


def told_mlflow(monkeypatch: pytest.MonkeyPatch, failure: str | None = None) -> list[tuple[str, Path, str]]:
    """Runs in place of MLflow; returns what it is told."""
    calls: list[tuple[str, Path, str]] = []
    for name in ("replay", "log_sweep"):

        def tell(directory: Path, uri: str, name: str = name) -> str:
            calls.append((name, directory, uri))
            if failure is not None:
                raise tracking.TrackingFailure(failure)
            return "at its address"

        monkeypatch.setattr(tracking, name, tell)
    return calls


def ended(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "summary.json").write_text("{}")
    return directory


def test_a_run_or_a_sweep_is_logged_again(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started(monkeypatch, never)
    calls = told_mlflow(monkeypatch)
    run, sweep = ended(tmp_path / "run"), ended(tmp_path / "sweep" / "0").parent
    assert cli.main(["action=log", f"run_dir={run}"]) == 0
    assert cli.main(["action=log", f"run_dir={sweep}", "tracking.uri=http://127.0.0.1:9"]) == 0
    assert cli.main([*COMPARISON, "action=log", "run_dir=run"]) == 0
    assert calls == [
        ("replay", run, "sqlite:///mlflow.db"),
        ("replay", sweep, "http://127.0.0.1:9"),
        ("replay", Path("run"), "sqlite:///mlflow.db"),
    ]
    told = capsys.readouterr()
    assert told.out == "Browse:  at its address\n" * 3
    assert told.err == "", "no preset is decided: nothing is served"
    assert sorted(tmp_path.iterdir()) == [run, sweep], "nothing is written"


def test_an_outage_while_logging_again_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    told_mlflow(monkeypatch, "MLflow did not take it")
    assert cli.main(["action=log", f"run_dir={ended(tmp_path / 'run')}"]) == 1
    assert capsys.readouterr().err == "error: MLflow did not take it\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["action=log"], "run_dir: action=log needs the directory of a run or of a sweep\n  allowed: {known}\n"),
        (
            ["action=log", "run_dir=runs/one/2026-01-02_ac"],
            "run_dir: there is no folder runs/one/2026-01-02_ac\n  allowed: {known}\n"
            "  nearest: runs/one/2026-01-02_ab\n",
        ),
        (["action=log", "run_dir=runs/index"], "run_dir: runs/index holds no summary.json: it is no run that ended"),
        (["action=log", "output=elsewhere"], "sweep\n  hint: no run has ended under output=elsewhere\n"),
        (["action=log", "run_dir=runs", "tracking=none"], "tracking=none: leaves action=log nothing to log to\n"),
        (["action=log", "rundir=runs"], "rundir=runs: there is no key 'rundir'"),
        (["-m", "action=log", "run_dir=a,b"], "-m: action=log takes one run_dir"),
        ([*COMPARISON, "run_dir=runs"], "run_dir: belongs to action=log; action=run does not use it"),
    ],
)
def test_what_cannot_be_logged_is_refused(
    arguments: list[str],
    told: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    started(monkeypatch, never)
    calls = told_mlflow(monkeypatch)
    ended(tmp_path / "runs" / "one" / "2026-01-02_ab")
    ended(tmp_path / "runs" / "two" / "sweep-2026-01-03_cd" / "0")
    (tmp_path / "runs" / "two" / "2026-01-04_ended_early").mkdir()
    (tmp_path / "runs" / "index").mkdir()
    known = "runs/two/sweep-2026-01-03_cd, runs/one/2026-01-02_ab"
    assert cli.main(arguments) == 2
    assert told.format(known=known) in capsys.readouterr().err
    assert calls == []


@pytest.mark.parametrize("failure", [None, "MLflow did not take it"])
def test_a_sweep_ends_with_its_summary_in_mlflow(
    failure: str | None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(experiment: Experiment, plan: Plan, directory: Path) -> int:
        directory.mkdir(parents=True, exist_ok=True)
        found = summarize(synthetic.records(), synthetic.facts())
        config = {"command_line": list(experiment.command_line)}
        write_summary(found.model_copy(update={"config": config}), directory / "summary.json")
        return 0

    measured = started(monkeypatch, run)
    calls = told_mlflow(monkeypatch, failure)
    sweep = ["-m", *COMPARISON, "drafter.block_size=4,6"]
    assert cli.main([*sweep, "tracking=none"]) == 0
    assert calls == []
    assert cli.main([*sweep, "tracking.uri=sqlite:///other.db"]) == (0 if failure is None else 1)
    assert [(name, uri) for name, _, uri in calls] == [("log_sweep", "sqlite:///other.db")]
    assert Path.cwd() / calls[0][1] == Path.cwd() / measured[-1][2].parent
    told = capsys.readouterr()
    assert "2 of 2 comparisons went well" in told.out, "an outage of MLflow is no failure of a comparison"
    (folder,) = {directory.parent for _, _, directory in measured[2:]}
    assert (folder / "multirun.yaml").is_file()
    page = (folder / "sweep.md").read_text()
    for block in (4, 6):
        assert f"\ndrafter.block_size={block}\n" in told.out
        assert f"| drafter.block_size={block} | dspine |" in page
    assert "none is formed across comparisons" in told.out and "none is formed across comparisons" in page
    assert (failure or "at its address") in told.out + told.err


def test_what_the_configuration_makes_unfair_is_refused_before_anything_is_started(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unfair = [*COMPARISON[:-1], '+arms.ngram=["drafter=ngram","target.dtype=bfloat16"]']
    started(monkeypatch, never)
    assert cli.main(unfair) == 2
    told = capsys.readouterr().err
    assert "target.dtype: differs between the arms" in told and "allow=[unfair_precision]" in told
    assert cli.main([*unfair, "allow=[unfair_precison]"]) == 2
    assert "nearest: unfair_precision" in capsys.readouterr().err
    calls = started(monkeypatch, lambda experiment, plan, directory: 0)
    assert cli.main([*unfair, "allow=[unfair_precision]"]) == 0
    assert [experiment.allow for experiment, _, _ in calls] == [("unfair_precision",)]


def test_a_refused_comparison_has_an_exit_code_of_its_own_and_is_told_in_a_sweep(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started(monkeypatch, lambda experiment, plan, directory: 3)
    assert cli.main(COMPARISON) == 3
    assert cli.main(["-m", *COMPARISON, "drafter.block_size=4"]) == 1
    assert "drafter.block_size=4: measured, and the comparison is refused" in capsys.readouterr().out


def test_a_log_in_an_old_encoding_costs_signs_and_no_result(tmp_path: Path) -> None:
    arguments = [*COMPARISON, "action=plan", "preset=embedded", "description='a ± …'"]
    env = {"PYTHONPATH": str(conf_dir().parent), "PATH": "/usr/bin:/bin", "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "orchestrator", *arguments]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, check=False)
    assert b"a ? ?" in done.stdout
    assert done.returncode == 0 and b"Traceback" not in done.stderr


def test_a_working_directory_that_was_removed_is_told(tmp_path: Path) -> None:
    place = tmp_path / "gone"
    place.mkdir()
    script = f"cd {place} && rmdir {place} && exec {sys.executable} -m orchestrator action=plan"
    env = {"PYTHONPATH": str(conf_dir().parent), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(["/bin/sh", "-c", script], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "the working directory is not there any more" in done.stderr
