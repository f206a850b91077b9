"""The command line: light to start, one sentence for a mistake, honest about the time that is left."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import report_data
import torch
import toy as toys
from hypothesis import given
from hypothesis import strategies as st

import growbench
from growbench import cli, console, folders, launch, plugins
from growbench.launch import _request
from growbench.launch._request import Request
from growbench.store import Store
from growbench.study import shipped

ROOT = Path(__file__).parents[1]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def growbench_(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """The command in this process: its exit code, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["growbench", *arguments])
        with pytest.raises(SystemExit) as exit_:
            cli.main()
        captured = capsys.readouterr()
        code = exit_.value.code
        return code if isinstance(code, int) else 0, captured.out, captured.err

    return run


def event(kind: str = "finished", **fields: Any) -> Any:
    given = {"kind": kind, "stage": "0" * 24, "label": "train", "text": "", "done": 1, "total": 2}
    return SimpleNamespace(**given | {"tokens_done": 0, "tokens_total": 100} | fields)


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["list", "--json"], ["--version"]])
def test_it_answers_without_the_heavy_packages(arguments: list[str]) -> None:
    code = (
        "import sys; from growbench.cli import main\n"
        f"sys.argv = ['growbench', *{arguments}]\n"
        "try: main()\n"
        "finally:\n"
        "    heavy = {'torch', 'lightning', 'numpy', 'pandas', 'scipy', 'jinja2'} & set(sys.modules)\n"
        "    assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_list_shows_all_plugins_and_studies_with_their_origin(growbench_: Run) -> None:
    code, out, _ = growbench_("list", "--json")
    listed = json.loads(out)
    assert code == 0
    assert [row["name"] for row in listed["strategies"]] == list(plugins.discover("strategy"))
    assert [row["name"] for row in listed["tasks"]] == list(plugins.discover("task"))
    assert [row["name"] for row in listed["studies"]] == shipped()
    assert all(row["origin"] == "built-in" for rows in listed.values() for row in rows)
    code, text, _ = growbench_("list")
    assert all(row["name"] in text and row["about"] in text for rows in listed.values() for row in rows)


def test_list_shows_a_broken_plugin_with_its_error_and_takes_no_markup_from_it(growbench_: Run, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("class Mine(:\n")
    (tmp_path / "loud.py").write_text('class Loud:\n    """[bold red]Loud[/]."""\n')
    code, out, _ = growbench_("list", "--plugin", str(tmp_path))
    assert code == 0
    assert "cannot be read: line 1: invalid syntax" in out
    assert "[bold red]Loud[/]." in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["rnu"], "growbench: No such command 'rnu'. Did you mean 'run'?"),
        (["run", "--sedes", "3"], "growbench: No such option: --sedes (Possible options: --devices, --seeds)"),
        (["plan", "qiuck"], "growbench: unknown study 'qiuck': did you mean quick? (or give the path of a study file)"),
        (["plan", "--seeds", "0"], "growbench: quick: seeds: must be greater than or equal to 1, not 0"),
        (
            ["run", "--accelerator", "tpu"],
            "growbench: quick: device.accelerator: unknown value 'tpu': did you mean cpu?",
        ),
        (["plan", "--devices", "0"], "growbench: quick: device.devices: must be greater than or equal to 1, not 0"),
        (
            ["plan", "--devices", "1000"],
            "growbench: quick: device.devices: a batch of 16 sequences cannot be shared equally by 1000: give a number",
        ),
        (
            ["run", "--device-strategy", "fsdp"],
            "growbench: quick: device.strategy: fsdp splits every weight over the devices, and growth and frozen parts",
        ),
        (
            ["plan", "--precision", "bf16"],
            "growbench: quick: train.precision: unknown value 'bf16': did you mean bf16-mixed?",
        ),
        (
            ["run", "--checkpoint-every", "-1"],
            "growbench: a stage is kept every 0 seconds (at each step) or more, not -1",
        ),
        (
            ["run", "--stage-timeout", "0"],
            "growbench: a stage may be silent for more than 0 seconds, not 0: leave it out for ever",
        ),
        (
            ["list", "--plugin", "no.py"],
            "growbench: there is no plugin file or folder no.py: check the path given with",
        ),
        (["report", "nowhere"], "growbench: there is no folder nowhere: give the --out folder of a run"),
        (["status", "nowhere"], "growbench: there is no folder nowhere: give the --out folder of a run"),
        (["data", "fetch", "pycode"], "growbench: the task 'pycode' has nothing to fetch: it needs no download"),
        (["data", "fetch", "pycod"], "growbench: unknown task 'pycod': did you mean pycode?"),
    ],
)
def test_a_mistake_is_one_sentence_on_stderr(growbench_: Run, arguments: list[str], sentence: str) -> None:
    code, out, err = growbench_(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(sentence)
    assert err.count("\n") == 1


def test_a_traceback_comes_with_debug_only(growbench_: Run) -> None:
    code, _, err = growbench_("plan", "qiuck", "--debug")
    assert code == 2
    assert err.startswith("Traceback")
    assert err.endswith("growbench: unknown study 'qiuck': did you mean quick? (or give the path of a study file)\n")


def test_an_interrupt_ends_with_130_and_no_traceback(growbench_: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(plugins, "discover", interrupted)
    assert growbench_("list") == (130, "", "")


def test_no_command_shows_the_help_and_the_version_is_the_package_s(growbench_: Run) -> None:
    assert growbench_() == growbench_("--help")
    assert growbench_("--version") == (0, f"{growbench.__version__}\n", "")


@given(
    speed=st.floats(min_value=1, max_value=1e6),
    cached=st.integers(0, 10**6),
    trained=st.integers(1, 10**6),
    remaining=st.integers(0, 10**6),
)
def test_the_time_left_is_the_remaining_tokens_at_the_measured_speed(
    speed: float, cached: int, trained: int, remaining: int
) -> None:
    seconds = 0.0
    clock = console.Clock(now=lambda: seconds)
    total = cached + trained + remaining
    assert clock.left(event("cached", tokens_done=cached, tokens_total=total)) == ""
    seconds = trained / speed
    left = clock.left(event(tokens_done=cached + trained, tokens_total=total))
    number, unit = left.removeprefix("about ").removesuffix(" left").split()
    expected = remaining / speed
    assert float(number) == pytest.approx(expected / (60 if unit == "min" else 1), abs=0.5 + 1e-6, rel=1e-6)


def test_a_log_gets_every_failure_the_end_and_the_rest_at_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    seconds = 0.0
    with console._lines(every=10, now=lambda: seconds) as show:
        for done, kind in enumerate(["finished", "finished", "failed", "finished", "finished"], start=1):
            show(event(kind, done=done, total=5, tokens_done=done, tokens_total=5, text="NaN" * (kind == "failed")))
            seconds += 1
    lines = capsys.readouterr().err.splitlines()
    assert [line[:5] for line in lines] == ["[1/5]", "[3/5]", "[5/5]"]
    assert lines[1].startswith("[3/5] failed train: NaN")


def folder_of(version: str, study: str, fingerprint: str) -> dict[str, Any]:
    return {"growbench": version, "study": study, "tasks": [{"name": "pycode", "fingerprint": fingerprint}]}


def test_folders_of_one_study_merge_and_others_are_refused() -> None:
    three, five = (folder_of("0.1.0", f"study: quick\nseeds: {n}\n", "a") for n in (3, 5))
    assert folders.merged([three, five]) == five
    with pytest.raises(ValueError, match=r"results of growbench 0\.1\.0 and 0\.2\.0 do not compare"):
        folders.merged([three, folder_of("0.2.0", three["study"], "a")])
    with pytest.raises(ValueError, match="a task's data differ"):
        folders.merged([three, folder_of("0.1.1", three["study"], "b")])
    with pytest.raises(ValueError, match="different studies"):
        folders.merged([three, folder_of("0.1.1", "study: mine\nseeds: 3\n", "a")])


def test_fresh_seeds_merge_where_both_folders_were_tuned_alike() -> None:
    first, fresh = (folder_of("0.1.0", f"study: quick\nseeds: 3\nfirst_seed: {n}\n", "a") for n in (0, 3))
    assert folders.merged([first, fresh]) == first
    settings = [{"learning_rate": rate, "weight_decay": None, "warmup": None} for rate in (0.01, 0.02)]
    one, alike, other, more = (
        {"tuned": {"chosen": {"pycode": dict(zip(("t/scratch", "t/zero_pad"), own, strict=False))}}}
        for own in (settings, settings, settings[::-1], settings[:1])
    )
    assert folders.merged([first | one, fresh | alike]) == first | one
    assert folders.merged([first | one, fresh | more]) == first | one  # an arm tuned in one of them alone
    with pytest.raises(ValueError, match=r"^tuning chose differently for t/scratch \(pycode\) in the folders: write"):
        folders.merged([first | one, fresh | other])


def test_folders_that_merge_have_the_seeds_of_all() -> None:
    first, fresh = (folder_of("0.1.0", f"study: quick\nseeds: 2\nfirst_seed: {n}\n", "a") for n in (0, 2))
    assert folders.merged([first | {"seeds": [0, 1]}, fresh | {"seeds": [2, 3]}])["seeds"] == [0, 1, 2, 3]


Tables = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame]


def of_seed(seed: int) -> Tables:
    results, curves, stages = report_data.tables()
    measured = curves[["arm", "task", "seed", "budget", "tokens", "stage"]].drop_duplicates()
    diagnostics = measured.assign(when="end", quantity="effective_rank", value=7.0)
    results, curves, stages, diagnostics = (
        frame[frame["seed"] == seed].reset_index(drop=True) for frame in (results, curves, stages, diagnostics)
    )
    return results, curves, stages, diagnostics


def test_a_row_of_two_folders_counts_once_and_one_that_differs_is_refused() -> None:
    zero, one = of_seed(0), of_seed(1)
    both = folders.joined([zero, one])
    assert [len(frame) for frame in both] == [len(a) + len(b) for a, b in zip(zero, one, strict=True)]
    slower = (zero[0].assign(wall_s=9.0), zero[1], zero[2].assign(wall_s=9.0), zero[3])
    for frame, expected in zip(folders.joined([zero, slower]), zero, strict=True):
        pd.testing.assert_frame_equal(frame, expected)
    changed = zero[0].copy()
    last = changed.index[changed["status"] == "ok"][-1]
    changed.loc[last, "loss"] += 1e-6
    said = rf"the folders disagree on {re.escape(changed['arm'][last])} of seed 0 \({changed['task'][last]}, "
    with pytest.raises(ValueError, match=said):
        folders.joined([zero, (changed, *zero[1:])])


@pytest.mark.parametrize("status", ["failed", "blocked"])
@pytest.mark.parametrize("turned", [False, True])
def test_a_row_that_failed_in_one_folder_gives_way_to_the_other_s(status: str, turned: bool) -> None:
    good = of_seed(0)
    ok = good[0][good[0]["status"] == "ok"].iloc[0]
    results, curves, stages, diagnostics = (frame.copy() for frame in good)
    arm = (results["arm"] == ok["arm"]) & (results["task"] == ok["task"])
    failed: dict[str, Any] = {"status": status, "reason": "no luck", "loss": 5.5}
    for column, value in failed.items():
        results.loc[arm, column] = value
    for frame in (curves, diagnostics):
        frame["stage"] = frame["stage"].mask((frame["arm"] == ok["arm"]) & (frame["task"] == ok["task"]), "an old one")
    stages.loc[0, ["status", "reason"]] = ["failed", "no luck"]
    both: list[Tables] = [good, (results, curves, stages, diagnostics)]
    joined = folders.joined(both[::-1] if turned else both)
    keys = (
        folders.ROW,
        [*folders.RUN, "kind", "tokens", "budget"],
        ["stage"],
        [*folders.RUN, "tokens", "budget", "stage"],
    )
    for frame, expected, key in zip(joined, good, keys, strict=True):
        one, other = (f.sort_values(key, ignore_index=True) for f in (frame, expected))
        pd.testing.assert_frame_equal(one, other)


@pytest.mark.parametrize(
    "arguments",
    [["run", "--out", ""], ["plan", "--out", " "], ["report", ""], ["report", "x", "--out", ""], ["status", ""],
     ["list", "--plugin", ""], ["new", "strategy", "my_method", "--out", ""]],
)  # fmt: skip
def test_an_empty_path_is_not_the_current_folder(growbench_: Run, arguments: list[str]) -> None:
    code, out, err = growbench_(*arguments)
    assert (code, out) == (2, "")
    assert err.endswith("a path is empty, which would be the current folder: write . for that\n")


TOY = """
study: toy
about: Two sizes of next to nothing.
tasks: [pycode]
seeds: 2
ladders:
  transformer:
    - {layers: 1, residual: 8, heads: 1, key: 8, value: 8, ffn: 16}
    - {layers: 1, residual: 16, heads: 2, key: 8, value: 8, ffn: 32}
strategies: [scratch, zero_pad]
budget: {tokens: 4096, split: [0.5], points: [0.75, 1.0], cooldown: 0.125}
train: {context: 16, batch: 8, learning_rate: 0.01, eval_every: 1024, eval_tokens: 512}
"""

GIVEN = '''
from growbench.maps import clone
from growbench.strategy import Strategy


class Given(Strategy):
    """All units <b>cloned</b>, from a file outside the repository."""

    def widen(self, axis, old, new, rng):
        return clone(axis, old, new)
'''

LOUD = (
    "print('imported')\n"
    + GIVEN.replace("class Given", "class Loud")
    + """
    def supports(self, source, target):
        print("asked")
        return ""
"""
)

FAILS = (
    GIVEN.replace("class Given", "class Fails")
    + """
    def grow(self, state, shape, probe, rng):
        raise RuntimeError("no such luck")
"""
)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    (tmp_path / "toy.yaml").write_text(TOY)
    (tmp_path / "given.py").write_text(GIVEN)
    (tmp_path / "fails.py").write_text(FAILS)
    return tmp_path


def test_a_run_writes_its_report_and_the_next_one_has_nothing_to_do(growbench_: Run, toy: Path) -> None:
    out, page = toy / "out", toy / "out" / "report.html"
    arguments = ["run", str(toy / "toy.yaml"), "--out", str(out), "--workers", "1", "--seeds", "1"]
    arguments += ["--plugin", str(toy / "given.py")]
    code, planned, _ = growbench_("plan", *arguments[1:4], *arguments[6:], "--json")
    assert (code, json.loads(planned)["cached"]) == (0, 0)
    code, first, progress = growbench_(*arguments)
    assert code == 0
    counted, narrowed, path = first.splitlines()
    assert (counted, path) == (f"{len(json.loads(planned)['stages'])} stages done, 0 were there.", str(page))
    assert "without --only, --seeds and --first-seed" in narrowed
    assert "finished" in progress
    text = page.read_text()
    assert "All units &lt;b&gt;cloned&lt;/b&gt;, from a file outside the repository." in text
    assert "<b>cloned" not in text
    code, again, _ = growbench_(*arguments)
    assert (code, again.splitlines()[0].startswith("Nothing was left to do: all ")) == (0, True)
    code, status, _ = growbench_("status", str(out), "--json")
    assert (code, json.loads(status)["failed"], json.loads(status)["problems"]) == (0, 0, [])
    other = toy / "other.html"
    assert growbench_("report", str(out), "--out", str(other)) == (0, f"{other}\n", "")
    assert other.read_text() == page.read_text()


TUNED = TOY + "tuning: {trials: 2, tokens: 1024, learning_rate: [0.001, 0.1]}\n"


def test_a_tuned_study_is_tuned_first_once_and_says_so(growbench_: Run, toy: Path) -> None:
    study, out = toy / "tuned.yaml", toy / "out"
    study.write_text(TUNED)
    chosen = [str(study), "--out", str(out), "--only", "zero_pad"]
    words = ["--seeds", "1", "--first-seed", "3"]

    def planned(*more: str) -> Any:
        return json.loads(growbench_("plan", *chosen, *words, *more, "--json")[1])

    before = planned()
    assert (before["tuning"]["cached"], before["tuning"]["stages"]) == (0, 2 * 4 + 2 * 3)
    assert before["notes"][0].startswith("tuning is not done")
    code, _, progress = growbench_("run", *chosen, *words, "--workers", "1")
    assert code == 0
    assert f"[{2 * 4}/{2 * 4}] finished" in progress
    digest = json.loads((out / "plan.json").read_text())["tuned"]["digest"]
    results = pd.read_parquet(out / "results.parquet")
    assert results["tuned"].all()
    assert set(results["seed"]) == {3}

    after = planned()
    assert after["tuning"]["cached"] == after["tuning"]["stages"]
    assert after["cached"] == len(after["stages"])
    assert after["flops_left"] == after["tuning"]["flops_left"] == 0
    stages = {path: path.stat().st_mtime_ns for path in out.rglob("stages/*")}
    code, again, _ = growbench_("run", *chosen, *words, "--workers", "1")
    assert (code, again.startswith("Nothing was left to do: all ")) == (0, True)
    code, text, _ = growbench_("tune", *chosen, "--json")
    said = json.loads(text)
    assert (code, said["digest"]) == (0, digest)
    assert {row["learning_rate"] for row in said["chosen"]} == set(results["learning_rate"])
    assert said["flops"] >= after["tuning"]["flops"]  # which does not foresee what the growth itself takes
    assert {path: path.stat().st_mtime_ns for path in out.rglob("stages/*")} == stages

    assert "tuning" not in planned("--untuned")
    assert planned("--untuned")["notes"][0].endswith("no verdict rests on an untuned study")
    code, _, _ = growbench_("run", *chosen[:1], *words, "--only", "scratch@0", "--out", str(toy / "plain"), "--untuned")
    assert code == 0
    assert not pd.read_parquet(toy / "plain" / "results.parquet")["tuned"].any()
    assert not (toy / "plain" / "tuning").exists()


def test_what_cannot_be_tuned_into_a_folder_is_said_first(growbench_: Run, toy: Path) -> None:
    study = toy / "tuned.yaml"
    study.write_text(TUNED)
    code, out, err = growbench_("run", str(study), "--out", str(toy))
    assert (code, out) == (2, "")
    assert err.startswith(f"growbench: {toy} holds fails.py and no study of growbench: give a new or an empty folder")
    assert not (toy / "tuning").exists()
    code, _, err = growbench_("tune", str(toy / "toy.yaml"))
    assert (code, err) == (
        2,
        "growbench: the study toy has no tuning: give it one, as in the study claims-small\n",
    )
    code, _, err = growbench_("tune", str(study), "--out", str(toy / "new"), "--only", "zero_q")
    assert (code, err.startswith("growbench: no arm matches 'zero_q': the arms are ")) == (2, True)


def test_a_failing_arm_is_reported_and_the_others_go_on(growbench_: Run, toy: Path) -> None:
    out = toy / "out"
    arguments = ["run", str(toy / "toy.yaml"), "--out", str(out), "--workers", "1", "--seeds", "1"]
    code, text, err = growbench_(*arguments, "--plugin", str(toy / "fails.py"), "--json")
    summary = json.loads(text)
    assert (code, summary["failed"], summary["interrupted"]) == (1, 1, False)
    assert "no such luck" in err
    assert "no such luck" in Path(summary["report"]).read_text()
    assert "no such luck" in growbench_("status", str(out))[1]


def test_what_a_plugin_prints_is_not_in_the_result(growbench_: Run, toy: Path) -> None:
    (toy / "loud.py").write_text(LOUD)
    code, out, err = growbench_("plan", str(toy / "toy.yaml"), "--plugin", str(toy / "loud.py"), "--json")
    assert (code, json.loads(out)["study"]) == (0, "toy")
    assert {"imported", "asked"} <= set(err.split())


# --- what stages train on ---------------------------------------------------------------------------------------------


@pytest.fixture
def toy_study(tmp_path: Path) -> list[str]:
    """The words that name a toy study, and its folder of results."""
    path = tmp_path / "toy.yaml"
    path.write_text(toys.study(tmp_path, strategies=["continue"]).to_yaml(), encoding="utf-8")
    return [str(path), "--out", str(tmp_path / "out")]


def test_what_stages_train_on_is_given_with_the_command(
    growbench_: Run, toy_study: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[float | None] = []
    launched = launch.run

    def watched(plan: Any, out: Path, launcher: Any, *more: Any, **given: Any) -> Any:
        kept.append(given["limits"].keep_every)
        return launched(plan, out, launcher, *more, **given)

    monkeypatch.setattr(_request, "run", watched)
    chosen = ["--precision", "64-true", "--deterministic", "--no-compile", "--devices", "2", "--device-strategy", "ddp"]
    code, _, err = growbench_("run", *toy_study, *chosen, "--workers", "1", "--checkpoint-every", "0.5")
    assert code == 0, err
    assert kept == [0.5]
    assert json.loads((tmp_path / "out" / "run.json").read_text())["device"] == "2 x cpu"
    trained = [record for record in Store(tmp_path / "out").records().values() if record.kind == "train"]
    assert trained
    for record in trained:
        assert record.identity["train"]["precision"] == "64-true"
        assert record.identity["train"]["deterministic"]
        assert "compile" not in record.identity["train"]
        assert record.environment["devices"] == 2
    request = Request.read(tmp_path / "out")
    assert request is not None
    assert (request.limits.keep_every, request.study.device.devices) == (0.5, 2)
    told = json.loads(growbench_("plan", *toy_study, *chosen, "--json")[1])
    assert told["cached"] == len(told["stages"])
    told = json.loads(growbench_("plan", *toy_study, "--json")[1])
    assert "train: precision changed" in {row["why"] for row in told["stages"]}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_run_on_devices_that_are_not_there_says_so_and_the_check_of_coordinates_needs_none(
    growbench_: Run, toy_study: list[str]
) -> None:
    code, out, err = growbench_("run", *toy_study, "--accelerator", "cuda", "--workers", "1")
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == (
        "growbench: a stage needs 1 CUDA device and this machine has 0: give --devices 1 or --accelerator cpu, "
        "or run it where they are with --launcher"
    )
    planned = json.loads(growbench_("plan", *toy_study, "--json")[1])["stages"]
    on_cuda = json.loads(growbench_("plan", *toy_study, "--accelerator", "cuda", "--json")[1])["stages"]
    shared = {row["stage"] for row in planned} & {row["stage"] for row in on_cuda}
    assert {row["kind"] for row in planned if row["stage"] in shared} == {"coordinates"}
