// How fast are the CUDA engine's parts on the GPU that is there, and how far from what the GPU can
// do? Prints a line of JSON for each figure; scripts/gpu-check runs it and makes tables.
//
//   gpu_bench --part=models|ceilings|kernels|steps|prefill|checkpoint [
//            --models=NAME,…] [--group=NAME]
//             [--only=TEXT] [--scratch=DIR] [--once|--dry] [--tiny]
//
// --part=models prints the models' configs alone; the other parts but ceilings print them first,
// too. --part=checkpoint writes the models to --scratch and leaves them there. --group chooses one
// group of kernels (kGroups), and --only the kernels whose "<kernel> <case> " contains the text.
// --once launches each kernel once and times none, for profilers. --dry launches none and needs no
// memory for them. --scratch is the folder for checkpoints, which are written one at a time, 15 GB
// for the largest. --tiny uses tiny shapes, for tests. The program exits with 77 where there is no
// GPU.
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "benchmarks/gpu/ceilings.h"
#include "benchmarks/gpu/kernel_cases.h"
#include "benchmarks/gpu/model_cases.h"
#include "benchmarks/gpu/open_device.h"
#include "benchmarks/gpu/random_checkpoint.h"
#include "common/base/status_macros.h"

namespace baton::gpu_bench {
namespace {

constexpr int kNoGpu = 77;
constexpr size_t kDryBytes = size_t{14} << 30;  // of the smallest GPU, a T4

struct Group {
  absl::string_view name;
  void (*time)(KernelBench& bench);
};
constexpr Group kGroups[] = {
    {"attention", TimeAttention},
    {"products", TimeProducts},
    {"quantized", TimeQuantizedProducts},
    {"gated", TimeGatedProducts},
    {"normed", TimeNormedProducts},
    {"experts", TimeExperts},
    {"passes", TimePasses},
    {"sampling", TimeSampling},
    {"blocks", TimeBlockCopies},
    {"recurrence", TimeRecurrences},
};

struct Options {
  std::string part;
  std::string group;                // empty: all
  std::vector<std::string> models;  // empty: all
  std::string filter;
  std::string scratch = "/tmp";
  Mode mode = Mode::kMeasure;
  bool tiny = IsEmulated();
};

absl::StatusOr<Options> Parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    absl::string_view text = argv[i];
    if (absl::ConsumePrefix(&text, "--part=")) {
      options.part = std::string(text);
    } else if (absl::ConsumePrefix(&text, "--models=")) {
      options.models = absl::StrSplit(text, ',', absl::SkipEmpty());
    } else if (absl::ConsumePrefix(&text, "--group=")) {
      options.group = std::string(text);
    } else if (absl::ConsumePrefix(&text, "--only=")) {
      options.filter = std::string(text);
    } else if (absl::ConsumePrefix(&text, "--scratch=")) {
      options.scratch = std::string(text);
    } else if (text == "--once") {
      options.mode = Mode::kOnce;
    } else if (text == "--dry") {
      options.mode = Mode::kDry;
      options.tiny = false;
    } else if (text == "--tiny") {
      options.tiny = true;
    } else {
      return absl::InvalidArgumentError(absl::StrCat(text, ": no such option; see main.cc"));
    }
  }
  return options;
}

absl::Status ChooseModels(const std::vector<std::string>& wanted, Grid& grid) {
  if (wanted.empty()) return absl::OkStatus();
  std::vector<std::string> names;
  size_t chosen = 0;
  for (std::vector<ModelShape>* const models : {&grid.models, &grid.kernel_models}) {
    for (const ModelShape& model : *models) names.push_back(model.name);
    std::erase_if(*models, [&](const ModelShape& model) {
      return std::find(wanted.begin(), wanted.end(), model.name) == wanted.end();
    });
    chosen += models->size();
  }
  if (chosen != wanted.size()) {
    return absl::InvalidArgumentError(absl::StrCat("--models: ", absl::StrJoin(wanted, ","),
                                                   " given, expected some of ",
                                                   absl::StrJoin(names, ",")));
  }
  return absl::OkStatus();
}

absl::Status RunKernels(const Grid& grid, const Options& options) {
  BATON_ASSIGN_OR_RETURN(const auto device, BenchDevice::Open(grid, options.mode));
  KernelBench bench = {*device, grid, options.filter};
  bool found = options.group.empty();
  for (const Group& group : kGroups) {
    if (!options.group.empty() && group.name != options.group) continue;
    group.time(bench);
    found = true;
  }
  if (!found) {
    return absl::InvalidArgumentError(
        absl::StrCat("--group=", options.group, " given, expected one of main.cc's"));
  }
  return absl::OkStatus();
}

absl::Status RunCeilings(const Grid& grid) {
  BATON_ASSIGN_OR_RETURN(const auto device, BenchDevice::Open(grid, Mode::kMeasure));
  MeasureCeilings(*device, grid);
  return absl::OkStatus();
}

absl::Status LeaveCheckpoint(const ModelShape& model, const std::string& scratch) {
  BATON_ASSIGN_OR_RETURN(const auto checkpoint, RandomCheckpoint::Write(model, scratch));
  checkpoint->Keep();
  std::printf("{\"part\": \"checkpoint\", \"what\": \"%s\", \"folder\": \"%s\"}\n",
              model.name.c_str(), checkpoint->folder().c_str());
  return absl::OkStatus();
}

absl::Status Run(const Options& options, size_t free_bytes) {
  Grid grid = options.tiny ? Grid::Tiny() : Grid::Full(free_bytes);
  if (options.mode == Mode::kDry && options.part != "kernels") {
    return absl::InvalidArgumentError("--dry is of --part=kernels");
  }
  if (options.part != "kernels") grid.kernel_models.clear();
  BATON_RETURN_IF_ERROR(ChooseModels(options.models, grid));
  if (options.part == "ceilings") return RunCeilings(grid);
  // The models' configs, for comparisons with other engines.
  for (const ModelShape& model : grid.models) {
    std::printf("{\"part\": \"models\", \"what\": \"%s\", \"config\": %s}\n", model.name.c_str(),
                ConfigJson(model).c_str());
  }
  if (options.part == "models") return absl::OkStatus();
  if (options.part == "kernels") return RunKernels(grid, options);
  for (const ModelShape& model : grid.models) {
    if (options.part == "steps") {
      BATON_RETURN_IF_ERROR(TimeSteps(grid, model, options.scratch));
    } else if (options.part == "prefill") {
      BATON_RETURN_IF_ERROR(TimePrefill(grid, model, options.scratch));
    } else if (options.part == "checkpoint") {
      BATON_RETURN_IF_ERROR(LeaveCheckpoint(model, options.scratch));
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("--part=", options.part,
                       " given, expected models, ceilings, kernels, steps, prefill or checkpoint"));
    }
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  const auto fail = [](const absl::Status& status) {
    std::fprintf(stderr, "gpu_bench: %s\n", status.ToString().c_str());
    return 1;
  };
  const absl::StatusOr<Options> options = Parse(argc, argv);
  if (!options.ok()) return fail(options.status());
  size_t free_bytes = 0;
  {
    const absl::StatusOr<OpenedDevice> opened = OpenDevice();
    if (absl::IsNotFound(opened.status())) {
      std::printf("gpu_bench: skipped: %s\n", opened.status().ToString().c_str());
      return kNoGpu;
    }
    if (!opened.ok()) return fail(opened.status());
    free_bytes = options->mode == Mode::kDry ? kDryBytes : opened->runtime->properties().free_bytes;
  }
  const absl::Status status = Run(*options, free_bytes);
  return status.ok() ? 0 : fail(status);
}

}  // namespace
}  // namespace baton::gpu_bench

int main(int argc, char** argv) { return baton::gpu_bench::Main(argc, argv); }
