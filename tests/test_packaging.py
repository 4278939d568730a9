"""Claims about pyproject.toml: an installation brings the dependencies, and no module that could hide another's."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BUILD = "from setuptools import build_meta as b; b.build_editable('.')"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """What `pip install -e .` installs, as a zip file."""
    pytest.importorskip("setuptools", minversion="64")
    folder = tmp_path_factory.mktemp("project")
    for name in (*ROOT.glob("*.py"), *(ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE"))):
        shutil.copy(name, folder)
    for room in (path.parent for path in ROOT.glob("*/__init__.py")):  # with the folders below it
        shutil.copytree(room, folder / room.name, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "-c", BUILD], cwd=folder, capture_output=True, check=True)
    [path] = folder.glob("*.whl")
    return zipfile.ZipFile(path)


def test_an_installation_brings_the_dependencies_and_no_module(wheel):
    top = {name.partition("/")[0] for name in wheel.namelist()}
    assert not [name for name in top if not name.startswith(("scalerl-", "__editable__"))]
    (metadata,) = (name for name in wheel.namelist() if name.endswith("/METADATA"))
    needed = wheel.read(metadata).decode()
    assert "Requires-Dist: math-verify" in needed and "Provides-Extra: test" in needed


def test_a_foreign_project_beside_an_installation_finds_its_own_data_folder(wheel, tmp_path):
    wheel.extractall(tmp_path / "site")
    (tmp_path / "foreign" / "data").mkdir(parents=True)  # as many projects have it, without __init__.py
    (tmp_path / "foreign" / "data" / "utils.py").write_text("def load():\n    return 'the foreign one'\n")
    program = f"import site; site.addsitedir({str(tmp_path / 'site')!r}); from data.utils import load; print(load())"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path / "foreign", capture_output=True, text=True)
    assert done.stdout == "the foreign one\n", done.stderr
