"""Shows that each rule of tree_test.py can be broken, and is then reported. Run by --self-test."""

import tempfile
from pathlib import Path

import tree_test


def guarded(path, body=""):
    guard = "BATON_" + path.replace("/", "_").replace(".", "_").upper() + "_"
    return f"#ifndef {guard}\n#define {guard}\n{body}\n#endif  // {guard}\n"


CLEAN = {
    "common/base/check.h": guarded("common/base/check.h", "// a /metrics page\n"),
    "common/base/rpc/server.h": guarded("common/base/rpc/server.h",
                                        '#include <grpcpp/grpcpp.h>\n'
                                        '#include "common/base/check.h"'),
    "common/kv/block_pool.h": guarded("common/kv/block_pool.h",
                                      '#include "absl/status/status.h"\n'
                                      '#include "common/base/check.h"\n'
                                      'int huge_page_bytes; const char* kText = "page";'),
    "common/kv/CMakeLists.txt": "baton_library(baton_kv\n SRCS a.cc\n DEPS baton_base)",
    "common/backend/cpu/matmul.cc": '#include "oneapi/dnnl/dnnl.hpp"\n',
    "common/telemetry/metrics.cc": "#include <prometheus/registry.h>\n",
    "common/worker/card.cc": '#include "common/kv/block_pool.h"\n'
                             '#include "baton/internal/v1/worker.grpc.pb.h"\n',
    "router/policy.cc": '#include "common/kv/block_pool.h"\n#include <prometheus/registry.h>\n',
    "decode_worker/loop.cc": '#include "common/worker/card.h"\n#include "common/engine/step.h"\n',
    "cli/up.cc": '#include "client/cpp/client.h"\n#include "common/base/rpc/server.h"\n',
    "tests/common/kv/block_pool_test.cc": '#include "router/policy.h"\n',
    "tests/cluster/kill_test.cc": '#include "decode_worker/loop.h"\n'
                                  "std::mt19937 random(TestSeed());  // no std::random_device\n",
    "tests/testing/seed.h": guarded("tests/testing/seed.h", "std::random_device device;"),
    "tests/testing/seed.py": "import random\n" "random.Random(os." "urandom(4))\n",
    "tests/cluster/kill_test.py": "self.random = seed.generator(self.id())\nself.random.choice(random.Random(3))\n",
    "proto/baton/v1/inference.proto": "message A { int32 block = 1; }\n",
    "scripts/run": "#!/bin/sh\n",
}
EXECUTABLE = {"scripts/run"}

# What is put into the clean tree: what the report must say of it. Each breaks one rule, once.
BREACHES = [
    ("common/kv/a.cc", '#include "common/backend/backend.h"\n', "kv includes backend"),
    ("common/kv/a.cc", '\n#include  "common/base/rpc/server.h"\n', "common/kv/a.cc:2: kv includes"),
    ("common/base/a.cc", '#include "common/base/rpc/server.h"\n', "base includes base/rpc"),
    ("common/base/a.cc", '#include "common/kv/block_pool.h"\n', "may include only nothing else"),
    ("common/tokenizer/a.cc", '#include "common/model/config.h"\n', "tokenizer includes model"),
    ("common/telemetry/a.cc", '#include "common/kv/block_pool.h"\n', "telemetry includes kv"),
    ("common/model/a.cc", '#include "common/kv/block_pool.h"\n', "model includes kv"),
    ("common/engine/a.cc", '#include "common/transfer/t.h"\n', "engine includes transfer"),
    ("common/transfer/a.cc", '#include "common/engine/step.h"\n', "transfer includes engine"),
    ("common/worker/a.cc", '#include "common/grammar/g.h"\n', "worker includes grammar"),
    ("router/a.cc", '#include "common/backend/backend.h"\n', "router includes backend"),
    ("router/a.cc", '#include "decode_worker/loop.h"\n', "router includes decode_worker"),
    ("router/a.cc", '#include "common/worker/card.h"\n', "router includes worker"),
    ("prefill_worker/a.cc", '#include "router/policy.h"\n', "prefill_worker includes router"),
    ("prefill_worker/a.cc", '#include "decode_worker/loop.h"\n', "includes decode_worker"),
    ("prefill_worker/a.cc", '#include "common/tokenizer/t.h"\n', "includes tokenizer"),
    ("client/cpp/a.cc", '#include "cli/up.h"\n', "client includes cli"),
    ("cli/a.cc", '#include "common/kv/block_pool.h"\n', "cli includes kv"),
    ("cli/a.cc", '#include "tests/testing/fake.h"\n', "cli includes tests"),
    ("common/engine/a.cc", "#include <grpcpp/grpcpp.h>\n", "includes gRPC"),
    ("common/kv/a.cc", "#include <google/protobuf/message.h>\n", "includes gRPC and Protobuf"),
    ("common/model/a.cc", "#include <dnnl.hpp>\n", "includes oneDNN"),
    ("common/backend/a.cc", '#include "oneapi/dnnl/dnnl.hpp"\n', "includes oneDNN"),
    ("common/engine/a.cc", "#include <prometheus/counter.h>\n", "includes prometheus-cpp"),
    ("cli/a.cc", "#include <prometheus/counter.h>\n", "includes prometheus-cpp"),
    ("common/backend/a.cc", "#include <cuda_runtime.h>\n", "includes CUDA"),
    ("router/a.cc", "#include <cublas_v2.h>\n", "includes CUDA"),
    ("common/engine/a.cc", "#include <nccl.h>\n", "includes NCCL"),
    ("common/kv/a.cc", '#include "block_pool.h"\n', "expected the path from the root"),
    ("common/kv/a.cc", '#include "../kv/block_pool.h"\n', "expected the path from the root"),
    ("common/framework/a.cc", "", "is in no room"),
    ("common/engine/CMakeLists.txt", "baton_library(baton_engine\n  SRCS a.cc\n  DEPS baton_proto)",
     "engine links baton_proto"),
    ("router/CMakeLists.txt", "baton_binary(baton_router SRCS a.cc DEPS baton_backend_cpu)",
     "router links baton_backend_cpu"),
    ("tests/common/kv/gone_test.cc", "", "expected common/kv/gone.cc"),
    ("tests/common/block_pool_test.cc", "", "expected common/block_pool.cc"),
    ("common/kv/a.cc", "\n" * 501, "has 501 lines"),
    ("cli/a.py", "\n" * 501, "has 501 lines"),
    ("common/kv/a.h", guarded("kv/a.h"), "expected: BATON_COMMON_KV_A_H_"),
    ("common/kv/a.h", "#pragma once\n", "expected: BATON_COMMON_KV_A_H_"),
    ("common/kv/a.h", "", "expected: BATON_COMMON_KV_A_H_"),
    ("tests/testing/a.h", guarded("tests/testing/b.h"), "expected: BATON_TESTS_TESTING_A_H_"),
    ("common/kv/a.h", guarded("common/kv/a.h").replace("#endif  // ", "#endif // "), "ends with"),
    ("common/kv/block_manager.cc", "", 'is named "manager"'),
    ("common/kv/utils.cc", "", 'is named "util"'),
    ("tests/testing/helpers/a.cc", "", 'is named "helper"'),
    ("router/relay_impl.cc", "", 'is named "impl"'),
    ("tests/cluster/a_test.cc", "\nstd::mt19937 random(std::random_device{}());\n",
     "a_test.cc:2: draws by std::random_device, expected a seed from tests/testing/seed.h"),
    ("tests/router/a.h", guarded("tests/router/a.h", "absl::BitGen random;"), "draws by absl::BitGen"),
    ("tests/cluster/a_test.cc", "int dice = rand() % 6;\n", "draws by rand"),
    ("tests/cluster/a_test.cc", "UnitTest::GetInstance()->random_seed();\n", "draws by random_seed"),
    ("tests/cli/a_test.py", "\nid = random" ".choice(ids)\n",
     "a_test.py:2: draws by random" "., expected a seed from tests/testing/seed.py"),
    ("tests/cli/a_test.py", "generator = random" ".Random()\n", "draws by random" "."),
    ("tests/cli/a_test.py", "weights = os" ".urandom(10)\n", "draws by os" ".urandom"),
    ("tests/cli/a_test.py", "name = uuid" ".uuid4()\n", "draws by uuid" ".uuid4"),
    ("scripts/walk.py", "#!/usr/bin/env python3\n", "expected an executable file"),
    ("tests/cli/a_test.py", "#!/usr/bin/env python3\n", "expected an executable file"),
]

# Exceptions that no longer hold: check, list, what the report must say.
STALE = [
    (tree_test.check_mirror, {"tests/common/kv/block_pool_test.cc": "r"}, "but mirrors a file"),
    (tree_test.check_mirror, {"tests/common/kv/gone_test.cc": "r"}, "does not exist"),
    (tree_test.check_length, {"router/policy.cc": "r"}, "but has 2 lines"),
    (tree_test.check_length, {"router/gone.cc": "r"}, "does not exist"),
]

# A folder with sub-rooms beside the clean tree's files.
SUBROOMS = {"router": {"api": {"routing", "options.h"}, "routing": {"options.h"},
                       "options.h": set()}}
SUBROOM_TREE = {
    **CLEAN,
    "router/options.h": guarded("router/options.h"),
    "router/options.cc": '#include "router/options.h"\n',
    "router/main.cc": '#include "router/api/service.h"\n#include "router/policy.h"\n',
    "router/routing/choice.cc": '#include "router/options.h"\n#include "common/kv/block_pool.h"\n',
    "router/api/service.cc": '#include "router/api/service.h"\n'
                             '#include "router/routing/choice.h"\n',
}
# What is put into that tree: what the report must say of it.
SUBROOM_BREACHES = [
    ("router/routing/a.cc", '\n#include "router/api/service.h"\n',
     "router/routing/a.cc:2: sub-room routing includes router/api/service.h"),
    ("router/routing/deep/a.cc", '#include "router/api/service.h"\n', "may include only options.h"),
    ("router/api/a.cc", '#include "router/policy.h"\n', "sub-room api includes router/policy.h"),
    ("router/options.cc", '#include "router/routing/choice.h"\n', "may include only nothing else"),
    ("router/fleet/a.cc", "", "is in no sub-room of router"),
]
# Tables that do not hold: what the report must say of them.
SUBROOM_TABLES = [
    ({"api": {"routing"}, "routing": {"api"}, "options.h": set()}, "has a circle of sub-rooms"),
    ({"api": {"routing", "options.h"}, "routing": {"options.h", "fleet"}, "options.h": set()},
     "fleet, which is no sub-room"),
    ({**SUBROOMS["router"], "fleet": set()}, "router/fleet: is listed in SUBROOMS, but does not"),
]


def write(root, tree):
    for path, text in tree.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text, encoding="utf-8")
        if path in EXECUTABLE:
            (root / path).chmod(0o755)


def report_of(tree):
    """All that is reported of a tree; this repository's own exceptions do not count."""
    own_lists = {tree_test.check_subrooms, tree_test.check_mirror, tree_test.check_length}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root, tree)
        found = tree_test.breaches(root, [c for c in tree_test.CHECKS if c not in own_lists])
        for check in own_lists:
            found += [f"{place}: {what}" for place, what in check(root, {})]
        return found


def report_with(check, data, tree):
    """What one check reports of a tree, with this list or table in place of the repository's."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), tree)
        return [f"{place}: {what}" for place, what in check(Path(folder), data)]


def run():
    wrong = [f"the clean tree: {line}" for line in report_of(CLEAN)
             + report_with(tree_test.check_subrooms, SUBROOMS, SUBROOM_TREE)]
    for path, text, expected in BREACHES:
        found = report_of({**CLEAN, path: text})
        if len(found) != 1 or expected not in found[0] or not found[0].startswith(path):
            wrong.append(f"{path} with {text[:60]!r}: expected \"{expected}\", reported {found}")
    lists = [(check, exceptions, CLEAN, expected) for check, exceptions, expected in STALE]
    lists += [(tree_test.check_subrooms, SUBROOMS, {**SUBROOM_TREE, path: text}, expected)
              for path, text, expected in SUBROOM_BREACHES]
    lists += [(tree_test.check_subrooms, {"router": table}, SUBROOM_TREE, expected)
              for table, expected in SUBROOM_TABLES]
    for check, data, tree, expected in lists:
        found = report_with(check, data, tree)
        if sum(expected in line for line in found) != 1 or (tree is CLEAN and len(found) != 1):
            wrong.append(f"{check.__name__} {data}: expected {expected!r}, reported {found}")
    print("\n".join(wrong) if wrong else f"{len(BREACHES) + len(lists)} breaches, all reported")
    return 1 if wrong else 0
