"""Which CPUs the components cpu-amx, cpu-avx512 and cpu-avx2 let workers run on, and what these compute there.

A token must not depend on the worker, so all nodes that a component admits have one numerics (docs/design/engine.md,
"One answer"). The nodes are CPUs as Node Feature Discovery labels them."""

import re

from policies import flag, of_kind, role_of, servers

PREFIX = "feature.node.kubernetes.io/cpu-cpuid."
AVX2 = {"AVX", "AVX2", "FMA3"}
AVX512 = AVX2 | {"AVX512F", "AVX512BW", "AVX512DQ", "AVX512VL"}
BF16 = AVX512 | {"AVX512VNNI", "AVX512BF16"}
AMX = {"AMXTILE", "AMXINT8", "AMXBF16"}
NODES = {"Sandy Bridge": {"AVX"}, "Haswell": AVX2, "Alder Lake": AVX2 | {"AVXVNNI"}, "Skylake-SP": AVX512,
         "Ice Lake-SP": AVX512 | {"AVX512VNNI"}, "Cooper Lake": BF16, "Sapphire Rapids": BF16 | AMX, "Zen 3": AVX2, "Zen 4": BF16,
         "a CPU whose flags are not labelled": set()}
# As /proc/cpuinfo names them.
CPUINFO = {"avx": "AVX", "avx2": "AVX2", "fma": "FMA3", "avx512f": "AVX512F", "avx512bw": "AVX512BW", "avx512dq": "AVX512DQ",
           "avx512vl": "AVX512VL", "avx512_vnni": "AVX512VNNI", "avx512_bf16": "AVX512BF16", "avx_vnni": "AVXVNNI",
           "amx_tile": "AMXTILE", "amx_int8": "AMXINT8", "amx_bf16": "AMXBF16"}


def flags_of(cpuinfo):
    """The flags that the text of a /proc/cpuinfo has, as labels; None if it has none, as where the CPU is no x86. Workers use
    AVX2, and all that needs it, only beside F16C, which Node Feature Discovery does not label."""
    line = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    if line is None:
        return None
    words = line[1].split()
    return {label for word, label in CPUINFO.items() if word in words} - (set() if "f16c" in words else {"AVX2"})


def numerics(flags, dtype):
    """What a worker says of its arithmetic there, less the version; None if it does not start."""
    if dtype == "auto":
        dtype = "bfloat16" if BF16 <= flags else "float32"
    if dtype == "bfloat16":
        return None if not BF16 <= flags else "cpu tdpbf16ps" if AMX <= flags else "cpu vdpbf16ps"
    return "cpu fma" if AVX2 <= flags else "cpu portable"


def _holds(term, flags):
    def expression(e):
        has = e["key"].removeprefix(PREFIX) in flags
        return {"In": has and e.get("values") == ["true"], "Exists": has, "DoesNotExist": not has}[e["operator"]]
    # A term without expressions holds for no node.
    return bool(term.get("matchExpressions")) and all(expression(e) for e in term["matchExpressions"])


def affinity(deployment):
    return deployment["spec"]["template"]["spec"].get("affinity", {}).get("nodeAffinity", {})


def admits(deployment, flags):
    required = affinity(deployment).get("requiredDuringSchedulingIgnoredDuringExecution")
    return required is None or any(_holds(term, flags) for term in required["nodeSelectorTerms"])


def preference(deployment, flags):
    """The sum of the weights that a scheduler adds for such a node."""
    return sum(p["weight"] for p in affinity(deployment).get("preferredDuringSchedulingIgnoredDuringExecution", [])
               if _holds(p["preference"], flags))


def dtype_of(resources):
    return next(r["data"]["DTYPE"] for r in of_kind(resources, "ConfigMap") if "DTYPE" in r["data"])


def workers(resources):
    """The Deployments of CPU workers; none if no kind of CPU is asked for."""
    found = [d for _, d, c in servers(resources) if role_of(d) != "router" and flag(c, "device") == "cpu"]
    return found if any(PREFIX in str(affinity(d)) for d in found) else []


def breaches(resources):
    classes, found = set(), []
    for deployment in workers(resources):
        here = {numerics(flags, dtype_of(resources)) for flags in NODES.values() if admits(deployment, flags)}
        if not here or None in here:
            found.append(f"{deployment['metadata']['name']}: no node may run it, or one on which it does not start")
        classes |= here
    if len(classes) > 1:
        found.append(f"workers compute by {sorted(map(str, classes))}, expected one numerics of all nodes that may run them")
    return found
