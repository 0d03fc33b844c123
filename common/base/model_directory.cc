#include "common/base/model_directory.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace baton {
namespace {

std::string Environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool IsDirectory(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error);
}

std::string HubCache() {
  if (std::string cache = Environment("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (std::string home = Environment("HF_HOME"); !home.empty()) return home + "/hub";
  std::string caches = Environment("XDG_CACHE_HOME");
  if (caches.empty()) caches = Environment("HOME") + "/.cache";
  return caches + "/huggingface/hub";
}

// The values that huggingface_hub takes as true.
bool IsOffline() {
  const std::string value = absl::AsciiStrToUpper(Environment("HF_HUB_OFFLINE"));
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

// Ids are "name" or "org/name", so that no path leads out of the cache.
bool IsId(const std::string& model) {
  const std::vector<std::string> parts = absl::StrSplit(model, '/');
  if (parts.size() > 2 || absl::StrContains(model, "--") || absl::StrContains(model, "..")) {
    return false;
  }
  return absl::c_all_of(parts, [](const std::string& part) {
    const auto allowed = [](char c) {
      return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
    };
    return !part.empty() && part[0] != '.' && part[0] != '-' && absl::c_all_of(part, allowed);
  });
}

// The commit hash in the file; empty if there is none.
std::string ReadRevision(const std::string& path) {
  std::ifstream file(path);
  std::string revision;
  file >> revision;
  return absl::c_all_of(revision, absl::ascii_isxdigit) ? revision : "";
}

}  // namespace

absl::StatusOr<ModelDirectory> FindModel(const std::string& model) {
  if (IsDirectory(model)) return ModelDirectory{model, ""};
  if (!IsId(model)) return absl::NotFoundError(absl::StrCat("\"", model, "\" is no directory"));
  const std::string cached =
      absl::StrCat(HubCache(), "/models--", absl::StrJoin(absl::StrSplit(model, '/'), "--"));
  const std::string reference = cached + "/refs/main";
  const std::string revision = ReadRevision(reference);
  const std::string snapshot = absl::StrCat(cached, "/snapshots/", revision);
  if (!revision.empty() && IsDirectory(snapshot)) return ModelDirectory{snapshot, model};
  return absl::NotFoundError(absl::StrCat(
      "\"", model, "\" is neither a directory nor a model in the Hugging Face cache: ",
      revision.empty() ? absl::StrCat(reference, " has no revision") : snapshot + " is missing",
      IsOffline() ? "" : absl::StrCat("; to download it: hf download ", model)));
}

}  // namespace baton
