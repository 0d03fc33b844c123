#include "common/base/model_directory.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
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

bool IsFile(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_regular_file(path, error);
}

// A part of an id or of a revision.
bool IsPart(absl::string_view part) {
  const auto allowed = [](char c) {
    return absl::ascii_isalnum(c) || c == '-' || c == '_' || c == '.';
  };
  return !part.empty() && part[0] != '.' && part[0] != '-' && absl::c_all_of(part, allowed);
}

// A name in the Hugging Face cache.
struct HubName {
  std::string model;  // "org/name", "name"
  std::string file;   // "/FILE.gguf"; empty: the name is the model's
};

// Nullopt if the text is none.
std::optional<HubName> HubNameOf(const std::string& text, bool names_gguf) {
  HubName name = {text, ""};
  if (names_gguf) {  // ORG/NAME/FILE: the third part on is the file's
    const std::vector<absl::string_view> parts = absl::StrSplit(text, absl::MaxSplits('/', 2));
    const auto stays_inside = [](absl::string_view part) {
      return !part.empty() && part[0] != '.';
    };
    if (parts.size() < 3 || !absl::c_all_of(absl::StrSplit(parts[2], '/'), stays_inside)) {
      return std::nullopt;
    }
    name = {absl::StrCat(parts[0], "/", parts[1]), absl::StrCat("/", parts[2])};
  }
  if (!IsHubModel(name.model)) return std::nullopt;
  return name;
}

// The commit hash in the file; empty if there is none.
std::string ReadRevision(const std::string& path) {
  std::ifstream file(path);
  std::string revision;
  file >> revision;
  return absl::c_all_of(revision, absl::ascii_isxdigit) ? revision : "";
}

}  // namespace

std::string HubHome() {
  if (std::string home = Environment("HF_HOME"); !home.empty()) return home;
  std::string caches = Environment("XDG_CACHE_HOME");
  if (caches.empty()) caches = Environment("HOME") + "/.cache";
  return caches + "/huggingface";
}

std::string HubCache() {
  if (std::string cache = Environment("HF_HUB_CACHE"); !cache.empty()) return cache;
  return HubHome() + "/hub";
}

// The values that huggingface_hub takes as true.
bool IsHubOffline() {
  const std::string value = absl::AsciiStrToUpper(Environment("HF_HUB_OFFLINE"));
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

bool IsHubModel(const std::string& model) {
  const std::vector<std::string> parts = absl::StrSplit(model, '/');
  return parts.size() <= 2 && !absl::StrContains(model, "--") && !absl::StrContains(model, "..") &&
         absl::c_all_of(parts, IsPart);
}

bool IsHubRevision(const std::string& revision) {
  return !absl::StrContains(revision, "..") &&
         absl::c_all_of(absl::StrSplit(revision, '/'), IsPart);
}

std::string HubModelFolder(const std::string& model) {
  return absl::StrCat("models--", absl::StrReplaceAll(model, {{"/", "--"}}));
}

absl::StatusOr<ModelDirectory> FindModel(const std::string& model) {
  if (IsDirectory(model)) return ModelDirectory{model, ""};
  const bool names_gguf = absl::EndsWithIgnoreCase(model, ".gguf");
  if (IsFile(model)) {
    if (names_gguf) return ModelDirectory{model, ""};
    return absl::NotFoundError(absl::StrCat(
        "\"", model, "\" is a file, expected a directory or a file whose name ends in .gguf"));
  }
  const char* const kind = names_gguf ? "file" : "directory";
  const std::optional<HubName> name = HubNameOf(model, names_gguf);
  if (!name) return absl::NotFoundError(absl::StrCat("\"", model, "\" is no ", kind));
  const std::string cached = absl::StrCat(HubCache(), "/", HubModelFolder(name->model));
  const std::string reference = cached + "/refs/main";
  const std::string revision = ReadRevision(reference);
  const std::string path = absl::StrCat(cached, "/snapshots/", revision, name->file);
  if (!revision.empty() && (names_gguf ? IsFile(path) : IsDirectory(path))) {
    return ModelDirectory{path, model};
  }
  const std::string include =
      names_gguf ? absl::StrCat(" --include '", name->file.substr(1), "'") : "";
  return absl::NotFoundError(absl::StrCat(
      "\"", model, "\" is neither a ", kind, " nor a ", names_gguf ? "GGUF file" : "model",
      " in the Hugging Face cache: ",
      revision.empty() ? absl::StrCat(reference, " has no revision") : path + " is missing",
      IsHubOffline() ? "" : absl::StrCat("; to download it: baton pull ", name->model, include)));
}

}  // namespace baton
