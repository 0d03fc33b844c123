"""Builds the sdist, the wheel from the sdist and the wheel from the tree, and installs the first
wheel into OUT/site without its dependencies, for the other tests. Needs no network.

    build_wheel.py OUT
"""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

PACKAGE = Path(__file__).parents[3] / "client/python"
GENERATED = {f"baton/v1/{name}_pb2.{suffix}" for name in ("inference", "admin")
             for suffix in ("py", "pyi")}


def build(out, *what):
    command = [sys.executable, "-m", "build", "--no-isolation", *what, "--outdir", out, PACKAGE]
    subprocess.run(command, check=True)
    (wheel,) = out.glob("*.whl")
    return wheel


def files(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith("baton/")]
        return {name: archive.read(name) for name in names}


def main():
    out = Path(sys.argv[1])
    shutil.rmtree(out, ignore_errors=True)
    wheel = build(out / "dist")  # the sdist, and the wheel from it
    found = files(wheel)
    missing = {"baton/py.typed", *GENERATED} - set(found)
    if missing:
        sys.exit(f"{wheel} lacks {', '.join(sorted(missing))}")
    if files(build(out / "tree", "--wheel")) != found:
        sys.exit("the wheel of the sdist differs from the wheel of the tree")
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index",
                    "--disable-pip-version-check", "--target", out / "site", wheel], check=True)


if __name__ == "__main__":
    main()
