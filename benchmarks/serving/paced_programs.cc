#include "benchmarks/serving/paced_programs.h"

#include <filesystem>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/serving/cluster_flags.h"

namespace baton::benchmarks {

std::unique_ptr<testing::ModelDir> PacedPrograms(const std::string& bin_dir,
                                                 const std::string& prefix) {
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::filesystem::path bin = bin_dir.empty() ? own : std::filesystem::absolute(bin_dir);
  auto dir = std::make_unique<testing::ModelDir>();
  for (const auto& [name, program] :
       {std::pair<std::string, std::string>("baton-router", "baton-router"),
        {"baton-grammar", "baton-grammar"},
        {"baton-prefill-worker", prefix + "-prefill-worker"},
        {"baton-decode-worker", prefix + "-decode-worker"}}) {
    if (!std::filesystem::exists(bin / program)) {
      Die(absl::NotFoundError(absl::StrCat((bin / program).string(), " is not built")));
    }
    std::filesystem::create_symlink(bin / program, std::filesystem::path(dir->path()) / name);
  }
  return dir;
}

}  // namespace baton::benchmarks
