"""``./dev`` itself: a first start in an empty folder, the second one, and what it says when it cannot.

The first start is a real one (a virtual environment, hash-checked installs, an editable install), on a
miniature repository whose one dependency lies beside it, so that no test needs a network.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.long
ROOT = Path(__file__).parents[1]
ENVIRONMENT = {**os.environ, "PIP_NO_INDEX": "1", "PYTHONDONTWRITEBYTECODE": "1"}  # as some images have it

# A build backend of the miniature's own, in place of setuptools: a wheel is a zip with a few files.
BACKEND = """
import os, zipfile

def build_editable(folder, config_settings=None, metadata_directory=None):
    name, info = "holdfast-0.1.0-py3-none-any.whl", "holdfast-0.1.0.dist-info/"
    with zipfile.ZipFile(os.path.join(folder, name), "w") as wheel:
        wheel.writestr("holdfast.pth", os.path.abspath("src"))
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: holdfast\\nVersion: 0.1.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return name
"""


def dev(root: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [root / "dev", *arguments],
        env={**ENVIRONMENT, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def miniature(tmp_path: Path) -> Path:
    """A repository with this ``dev`` and a ``cli`` that tells what it was started with."""
    root = tmp_path / "a clone"
    package = root / "src" / "holdfast"
    package.mkdir(parents=True)
    shutil.copy(ROOT / "dev", root)
    for module in ("java.py", "errors.py"):
        shutil.copy(ROOT / "src" / "holdfast" / module, package)
    (package / "__init__.py").touch()
    (package / "cli.py").write_text(
        "import os, sys, pinned\nprint(pinned.NAME, sys.argv[1:], os.environ['JAVA_HOME'], sys.prefix)\n"
    )
    (package / "state").mkdir()
    (package / "state" / "warm.py").write_text("def warm():\n    print('kernels compiled')\n")
    (root / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
        '[project]\nname = "holdfast"\nversion = "0.1.0"\n'
    )
    (root / "backend.py").write_text(BACKEND)
    made = wheel(tmp_path, "pinned", "1.0", {"pinned.py": "NAME = 'the pinned one'\n"})
    (root / "requirements.lock").write_text(f"pinned @ {made.as_uri()} --hash=sha256:{digest_of(made)}\n")
    (root / "requirements-build.lock").write_text("# nothing\n")
    return root


def wheel(folder: Path, name: str, version: str, files: dict[str, str]) -> Path:
    made = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(made, "w") as archive:
        record = ""
        for file, text in files.items():
            archive.writestr(file, text)
            sums = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
            record += f"{file},sha256={sums},{len(text)}\n"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", record)
    return made


def digest_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@dataclass(frozen=True)
class Started:
    root: Path
    outputs: list[tuple[str, str]]


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Started:
    """A miniature that two first starts at once have set up."""
    root = miniature(tmp_path_factory.mktemp("started"))
    both = [
        subprocess.Popen(
            [root / "dev", "shell", "--rows", "7"],
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    outputs = [one.communicate() for one in both]
    assert [one.returncode for one in both] == [0, 0], outputs
    return Started(root, outputs)


def test_two_first_starts_at_once_set_up_once(started: Started) -> None:
    ((said, one), (also_said, other)) = started.outputs
    for line in ("Making .venv", "Installing the pinned dependencies", "kernels compiled", "Ready."):
        assert (one + other).count(line) == 1
    assert said == also_said
    assert said.startswith("the pinned one ['shell', '--rows', '7'] /")
    assert said.endswith(f"{started.root}/.venv\n")


def test_the_second_start_does_nothing_and_says_nothing(started: Started) -> None:
    stamp = (started.root / ".venv" / "holdfast.stamp").stat()
    second = dev(started.root, "shell", "--rows", "7")
    assert (second.returncode, second.stdout, second.stderr) == (0, started.outputs[0][0], "")
    assert (started.root / ".venv" / "holdfast.stamp").stat() == stamp


def test_what_is_imported_is_compiled_once_whatever_the_environment_says(started: Started) -> None:
    assert list((started.root / ".venv").rglob("pinned.*.pyc"))


def test_a_changed_lock_is_installed_into_the_environment_there_is(started: Started) -> None:
    with (started.root / "requirements.lock").open("a") as lock:
        lock.write("# renewed\n")
    again = dev(started.root, "shell")
    assert again.returncode == 0, again.stderr
    assert "Installing the pinned dependencies" in again.stderr
    assert "Making .venv" not in again.stderr
    assert dev(started.root, "shell").stderr == ""


@pytest.mark.heavy
def test_a_dependency_with_another_hash_is_refused(tmp_path: Path) -> None:
    root = miniature(tmp_path)
    lock = root / "requirements.lock"
    lock.write_text(lock.read_text().split("sha256:")[0] + "sha256:" + "0" * 64 + "\n")
    refused = dev(root, "shell")
    assert refused.returncode != 0
    assert "HASH" in refused.stderr.upper()
    assert not (root / ".venv" / "holdfast.stamp").exists()  # nothing half done counts as done


def commands_without(folder: Path, *missing: str) -> str:
    """A path with what a bare Debian has, short of what is missing."""
    folder.mkdir()
    for name in ("bash", "cat", "cut", "dirname", "env", "flock", "grep", "rm", "sed", "sha256sum", "sh"):
        found = shutil.which(name)
        if found and name not in missing:
            (folder / name).symlink_to(found)
    return str(folder)


def test_without_a_new_enough_python_it_says_so_in_one_line(tmp_path: Path) -> None:
    root = miniature(tmp_path)
    path = commands_without(tmp_path / "bin")
    old = tmp_path / "bin" / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")  # what any check for a newer version gets from an old one
    old.chmod(0o755)
    failed = dev(root, "shell", PATH=path)
    assert failed.returncode == 1
    assert failed.stderr.splitlines() == [
        "[dev] Python 3.11 or newer is needed and none is on the path "
        "(Debian 12 and later: apt-get install python3 python3-venv)."
    ]


def test_an_old_java_home_is_named_in_one_line(started: Started, tmp_path: Path) -> None:
    home = tmp_path / "old"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "java").write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    (home / "bin" / "java").chmod(0o755)
    # The search goes on in the system's own folder, which has a good one: ask for more than any Java is.
    module = started.root / "src" / "holdfast" / "java.py"
    text = module.read_text()
    module.write_text(text.replace("LEAST = 17", "LEAST = 1000"))
    failed = dev(started.root, "shell", JAVA_HOME=str(home))
    module.write_text(text)
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert len(failed.stderr.splitlines()) == 1
    assert f"{home}/bin/java is Java 11" in failed.stderr


def test_help_lists_every_command() -> None:
    for arguments in ([], ["help"], ["--help"]):
        shown = dev(ROOT, *arguments)
        assert shown.returncode == 0
        assert [line.split()[1] for line in shown.stdout.splitlines()] == [
            *(
                "demo",
                "test",
                "test",
                "test",
                "test",
                "bench",
                "cluster",
                "sim",
                "sim",
                "search",
                "docs",
                "shell",
                "sql",
            ),
            "help",
        ]


def test_an_unknown_command_or_benchmark_is_refused_with_what_there_is() -> None:
    unknown = dev(ROOT, "dance")
    assert unknown.returncode == 1
    assert "There is no ./dev dance." in unknown.stderr
    unknown = dev(ROOT, "bench", "dance")
    assert unknown.returncode == 1
    assert "aggregate" in unknown.stderr


def test_bench_lists_each_benchmark_with_its_question() -> None:
    listed = dict(line.split(maxsplit=1) for line in dev(ROOT, "bench").stdout.splitlines())
    files = {file.stem for file in (ROOT / "benchmarks").glob("*.py")} - {"common"}
    assert listed.keys() == files
    assert {"aggregate", "latency", "memory"} <= files


def test_test_runs_every_check_and_fails_if_any_does(started: Started) -> None:
    """The tools are stand-ins that note what they were asked; the first and the third fail."""
    site = subprocess.run(
        [started.root / ".venv/bin/python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    for tool, code in [("ruff", "sys.argv[1] == 'check'"), ("mypy", "1"), ("pytest", "0")]:
        Path(site, f"{tool}.py").write_text(f"import sys\nprint({tool!r}, *sys.argv[1:])\nsys.exit({code})\n")
    done = dev(started.root, "test", "-k", "one two")
    assert done.stdout.splitlines() == ["ruff check .", "ruff format --check .", "pytest -n auto -k one two", "mypy"]
    assert done.returncode == 1
    assert done.stderr == "[dev] Failed: ruff check, mypy\n"


@pytest.mark.heavy
def test_another_spark_has_an_environment_of_its_own_and_all_else_as_it_is_pinned(tmp_path: Path) -> None:
    root = miniature(tmp_path)
    said = (
        "import os, sys, pinned, pyspark\n"
        "print(pinned.NAME, pyspark.__version__, sys.argv[1:], os.environ['PYSPARK_PYTHON'] == sys.executable)\n"
    )
    pins = {}
    for version in ("4.1.9", "4.3.0"):
        files = {"pyspark.py": f"__version__ = '{version}'\n", "pytest.py": said}
        digest = digest_of(wheel(tmp_path, "pyspark", version, files))
        pins[version] = f"pyspark=={version} \\\n    --hash=sha256:{digest}\n    # via holdfast\n"
    lock, other = root / "requirements.lock", root / "requirements-spark-4.1.lock"
    first = lock.read_text()
    lock.write_text(f"# of everything\n{pins['4.3.0']}{first}")
    other.write_text(pins["4.1.9"])
    done = dev(root, "test", "--spark", "4.1", "-k", "one", PIP_FIND_LINKS=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "the pinned one 4.1.9 ['-n', 'auto', '-k', 'one'] True\n"
    assert "Making .venv-4.1 with" in done.stderr
    assert not (root / ".venv").exists()
    refused = dev(root, "test", "--spark", "4.0")
    assert refused.returncode == 1
    assert "There is no lock for Spark '4.0'" in refused.stderr
    other.write_text(pins["4.1.9"].split("sha256:")[0] + "sha256:" + "0" * 64 + "\n")
    refused = dev(root, "test", "--spark", "4.1", PIP_FIND_LINKS=str(tmp_path), PIP_FORCE_REINSTALL="1")
    assert refused.returncode != 0
    assert "HASH" in refused.stderr.upper()


@pytest.mark.parametrize("lock", sorted(ROOT.glob("requirements-spark-*.lock")), ids=lambda lock: lock.stem)
def test_a_lock_of_another_spark_is_one_pin_of_that_spark(lock: Path) -> None:
    version = lock.stem.rpartition("-")[2]
    pins = [line for line in lock.read_text().splitlines() if not line.startswith(("#", " "))]
    assert len(pins) == 1
    assert pins[0].startswith(f"pyspark=={version}.")
    assert f"pyspark=={version}." not in (ROOT / "requirements.lock").read_text()


def test_ci_runs_the_tests() -> None:
    run = (ROOT / ".ci" / "run").read_text()
    commands = [line for line in run.splitlines() if line.startswith("timeout")]
    assert commands[:3] == [
        "timeout 2400 ./dev test",
        "timeout 2400 ./dev test --drivers",
        "timeout 600 ./dev test --services",
    ]
    (search,) = commands[3:]
    assert search.startswith("timeout 900 ./dev search --minutes 8 || echo "), "told, and no gate"
    for script in (ROOT / "dev", ROOT / ".ci" / "run"):
        assert os.access(script, os.X_OK)
        subprocess.run(["bash", "-n", script], check=True)
