#include "cli/bench/output.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace baton::cli {
namespace {

absl::Status WriteFile(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  return file.good() ? absl::OkStatus()
                     : absl::UnknownError(absl::StrCat("cannot write ", path.string()));
}

}  // namespace

absl::Status Write(const OutputOptions& options, const BenchOutput& output, std::ostream& out) {
  out << (options.json ? output.json + "\n" : output.lines) << std::flush;
  absl::Status written = absl::OkStatus();
  if (options.save_result) {
    const std::filesystem::path directory = options.result_dir;
    std::error_code error;
    if (!directory.empty()) std::filesystem::create_directories(directory, error);
    const std::string& name =
        options.result_filename.empty() ? output.filename : options.result_filename;
    written.Update(WriteFile(directory / name, output.json + "\n"));
  }
  if (!options.plot.empty()) written.Update(WriteFile(options.plot, output.svg));
  return written;
}

std::string BenchDate() {
  return absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::LocalTimeZone());
}

}  // namespace baton::cli
