"""Generates baton/v1/*_pb2.py and .pyi from the protos while a wheel is built.

In the repository the protos are in proto/ of its root. An sdist has a copy.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import grpc_tools
from grpc_tools import protoc
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PROTOS = "baton/v1"  # the public API


class GenerateHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        here = Path(self.root)
        copied = (here / "proto").is_dir()
        repository = here if copied else here.parent.parent
        source = repository / "proto"
        protos = sorted((source / PROTOS).glob("*.proto"))
        if not protos:
            sys.exit(f"{source / PROTOS}: no .proto files, expected the repository or an sdist")
        include = build_data["force_include"]
        if self.target_name == "sdist":
            include.update({str(p): f"proto/{p.relative_to(source)}" for p in protos})
            include[str(repository / "LICENSE")] = "LICENSE"
            return
        self.generated = Path(tempfile.mkdtemp(prefix="baton-protos-"))
        well_known = Path(grpc_tools.__file__).parent / "_proto"
        arguments = ["protoc", f"-I{source}", f"-I{well_known}", f"--python_out={self.generated}",
                     f"--pyi_out={self.generated}", *map(str, protos)]
        if protoc.main(arguments) != 0:
            sys.exit("protoc failed")
        files = [p for p in self.generated.rglob("*") if p.is_file()]
        include.update({str(p): str(p.relative_to(self.generated)) for p in files})

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self.target_name == "wheel":
            shutil.rmtree(self.generated)
