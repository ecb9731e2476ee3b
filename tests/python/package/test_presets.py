"""Configures every preset of CMakePresets.json in a fresh folder: each finds its packages and sets its options."""

import json
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PRESETS = json.loads((ROOT / "CMakePresets.json").read_text())
NAMES = [preset["name"] for preset in PRESETS["configurePresets"] if not preset.get("hidden")]
# Debian's clang-tidy brings clang with a version in its name; tests/fuzz/run.sh installs the name without it.
CLANG = shutil.which("clang++") or shutil.which("clang++-14")
OPTIONS = {"fuzz": [f"-DCMAKE_CXX_COMPILER={CLANG}", f"-DCMAKE_C_COMPILER={str(CLANG).replace('++', '')}"]}


@pytest.fixture(scope="module")
def configured(tmp_path_factory):
    """{preset: (exit code, output, its cache)}, of all presets at once."""
    folder = tmp_path_factory.mktemp("presets")

    def configure(name):
        command = ["cmake", "--preset", name, "-B", str(folder / name), *OPTIONS.get(name, [])]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        cache = folder / name / "CMakeCache.txt"
        return done.returncode, done.stdout, cache.read_text() if cache.exists() else ""

    with ThreadPoolExecutor() as pool:
        return dict(zip(NAMES, pool.map(configure, NAMES)))


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_configures_without_warnings(configured, name):
    code, printed, _ = configured[name]
    assert code == 0, printed
    assert "CMake Warning" not in printed and "not used by the project" not in printed, printed


@pytest.mark.parametrize("name", NAMES)
def test_every_option_of_a_preset_is_an_option_of_the_project(configured, name):
    presets = {preset["name"]: preset for preset in PRESETS["configurePresets"]}
    wanted, preset = {}, presets[name]
    while preset:
        wanted = {**preset.get("cacheVariables", {}), **wanted}
        preset = presets.get(preset.get("inherits"))
    declared = set(re.findall(r"(?:option|set)\((FARANDOLE_\w+)", (ROOT / "cmake" / "options.cmake").read_text()))
    assert {option for option in wanted if option.startswith("FARANDOLE_")} <= declared
    cache = dict(re.findall(r"^(\w+):\w+=(.*)$", configured[name][2], re.M))
    compilers = {"CMAKE_C_COMPILER", "CMAKE_CXX_COMPILER"}  # the cache has their paths
    assert {option: cache[option] for option in wanted if option not in compilers} == {
        option: value for option, value in wanted.items() if option not in compilers
    }


def test_build_and_test_presets_name_configurations():
    for kind in ("buildPresets", "testPresets"):
        assert {preset["configurePreset"] for preset in PRESETS[kind]} <= set(NAMES)
    assert {preset["name"] for preset in PRESETS["buildPresets"]} == set(NAMES)
