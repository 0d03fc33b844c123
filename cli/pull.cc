#include "cli/pull.h"

#include <fcntl.h>
#include <fnmatch.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/generate.h"
#include "cli/progress.h"
#include "common/base/exit_code.h"
#include "common/base/model_directory.h"
#include "common/base/status_macros.h"

namespace baton::cli {
namespace {

namespace fs = std::filesystem;

// What Baton reads, and the tokenizer files that transformers wants beside it.
const std::vector<std::string> kNeeded = {"config.json",        "generation_config.json",
                                          "tokenizer*",         "special_tokens_map.json",
                                          "added_tokens.json",  "vocab.json",
                                          "merges.txt",         "chat_template.*",
                                          "model*.safetensors", "model.safetensors.index.json"};

absl::Status FileError(const std::string& what, const fs::path& path,
                       const std::error_code& error) {
  return absl::UnknownError(absl::StrCat(what, " ", path.string(), ": ", error.message()));
}

absl::Status MakeDirectory(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  return error ? FileError("cannot create", path, error) : absl::OkStatus();
}

// The lock of one blob, at the place and of the kind (flock) that huggingface_hub uses.
class BlobLock {
 public:
  static absl::StatusOr<BlobLock> Take(const fs::path& path, std::ostream& err) {
    BATON_RETURN_IF_ERROR(MakeDirectory(path.parent_path()));
    const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) {
      return absl::UnknownError(
          absl::StrCat("cannot open ", path.string(), ": ", std::strerror(errno)));
    }
    BlobLock lock(fd);
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return lock;
    err << "baton pull: another download has the lock " << path.string() << std::endl;
    while (flock(fd, LOCK_EX) != 0) {
      if (errno != EINTR) return absl::UnknownError(absl::StrCat("cannot lock ", path.string()));
    }
    return lock;
  }
  BlobLock(BlobLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  BlobLock& operator=(BlobLock&&) = delete;
  ~BlobLock() {
    if (fd_ >= 0) close(fd_);
  }

 private:
  explicit BlobLock(int fd) : fd_(fd) {}
  int fd_;
};

// Renames a symlink of a temporary name, so that `link` leads to the old or the new blob always.
absl::Status Link(const fs::path& link, const fs::path& blob) {
  BATON_RETURN_IF_ERROR(MakeDirectory(link.parent_path()));
  const fs::path target = fs::relative(blob, link.parent_path());
  const fs::path temporary = absl::StrCat(link.string(), ".", getpid(), ".tmp");
  std::error_code error;
  fs::remove(temporary, error);
  fs::create_symlink(target, temporary, error);
  if (!error) fs::rename(temporary, link, error);
  return error ? FileError("cannot link", link, error) : absl::OkStatus();
}

absl::Status WriteWhole(const fs::path& path, const std::string& text) {
  BATON_RETURN_IF_ERROR(MakeDirectory(path.parent_path()));
  const fs::path temporary = absl::StrCat(path.string(), ".", getpid(), ".tmp");
  std::ofstream file(temporary);
  file << text << std::flush;
  std::error_code error;
  if (!file.good()) return absl::UnknownError(absl::StrCat("cannot write ", temporary.string()));
  fs::rename(temporary, path, error);
  return error ? FileError("cannot rename", temporary, error) : absl::OkStatus();
}

struct Pulled {
  std::string commit;
  fs::path snapshot;
  std::vector<HubFile> files;
  int64_t downloaded_bytes = 0;
};

class Pull {
 public:
  Pull(const PullOptions& options, std::ostream& err)
      : options_(options),
        err_(err),
        hub_(options.hub),
        folder_(HubModelFolder(options.model)),
        cache_(HubCache()) {}

  absl::StatusOr<Pulled> Run() {
    BATON_ASSIGN_OR_RETURN(const HubListing listing, hub_.List(options_.model, options_.revision));
    const std::vector<std::string> names = ChooseFiles(listing.files, options_.include);
    if (names.empty()) {
      return absl::NotFoundError(
          absl::StrCat(options_.model, " has no file that matches ",
                       absl::StrJoin(options_.include.empty() ? kNeeded : options_.include, ", ")));
    }
    Pulled pulled;
    pulled.commit = listing.commit;
    pulled.snapshot = cache_ / folder_ / "snapshots" / listing.commit;
    int64_t missing = 0, all = 0;
    for (const std::string& name : names) {
      BATON_ASSIGN_OR_RETURN(HubFile file, hub_.Head(options_.model, listing.commit, name));
      all += file.bytes;
      if (!fs::exists(Blob(file))) missing += file.bytes;
      pulled.files.push_back(std::move(file));
    }
    BATON_RETURN_IF_ERROR(MakeDirectory(cache_ / folder_ / "blobs"));
    std::error_code error;
    const fs::space_info space = fs::space(cache_, error);
    if (!error && space.available < static_cast<uintmax_t>(missing)) {
      return absl::ResourceExhaustedError(absl::StrCat(cache_.string(), " has ", space.available,
                                                       " bytes left, expected ", missing));
    }
    Progress progress(err_, options_.progress, "MB", missing, Clock::Real(), 1'000'000);
    for (const HubFile& file : pulled.files) {
      BATON_RETURN_IF_ERROR(Fetch(file, &progress, &pulled));
      BATON_RETURN_IF_ERROR(Link(pulled.snapshot / file.name, Blob(file)));
    }
    if (options_.revision != listing.commit) {
      BATON_RETURN_IF_ERROR(
          WriteWhole(cache_ / folder_ / "refs" / options_.revision, listing.commit));
    }
    return pulled;
  }

 private:
  fs::path Blob(const HubFile& file) const { return cache_ / folder_ / "blobs" / file.hash; }

  absl::Status Fetch(const HubFile& file, Progress* progress, Pulled* pulled) {
    const fs::path blob = Blob(file);
    const fs::path partial = blob.string() + ".incomplete";
    BATON_ASSIGN_OR_RETURN(
        const BlobLock lock,
        BlobLock::Take(cache_ / ".locks" / folder_ / (file.hash + ".lock"), err_));
    std::error_code error;
    if (fs::exists(blob, error)) return absl::OkStatus();
    if (const auto have = fs::file_size(partial, error); !error) {
      progress->Advance(static_cast<int64_t>(have), file.name);
    }
    BATON_RETURN_IF_ERROR(
        hub_.Download(options_.model, pulled->commit, file, partial.string(), [&](int64_t bytes) {
          progress->Advance(bytes, file.name);
          if (bytes > 0) pulled->downloaded_bytes += bytes;
        }));
    if (absl::Status status = CheckHash(partial.string(), file); !status.ok()) {
      fs::remove(partial, error);  // it cannot be resumed
      return status;
    }
    fs::rename(partial, blob, error);
    return error ? FileError("cannot rename", partial, error) : absl::OkStatus();
  }

  const PullOptions& options_;
  std::ostream& err_;
  Hub hub_;
  const std::string folder_;
  const fs::path cache_;
};

std::string PullJson(const PullOptions& options, const Pulled& pulled) {
  auto files = nlohmann::ordered_json::array();
  for (const HubFile& file : pulled.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"hash", file.hash}});
  }
  return nlohmann::ordered_json({{"model", options.model},
                                 {"revision", options.revision},
                                 {"commit", pulled.commit},
                                 {"path", pulled.snapshot.string()},
                                 {"downloaded_bytes", pulled.downloaded_bytes},
                                 {"files", files}})
      .dump(2);
}

}  // namespace

std::vector<std::string> ChooseFiles(const std::vector<std::string>& files,
                                     const std::vector<std::string>& include) {
  std::vector<std::string> chosen;
  for (const std::string& file : files) {
    // By default, files of folders are other formats of the same weights.
    if (include.empty() && absl::StrContains(file, '/')) continue;
    if (absl::c_any_of(include.empty() ? kNeeded : include, [&](const std::string& pattern) {
          return fnmatch(pattern.c_str(), file.c_str(), 0) == 0;
        })) {
      chosen.push_back(file);
    }
  }
  return chosen;
}

int RunPull(const PullOptions& options, std::ostream& out, std::ostream& err) {
  absl::StatusOr<Pulled> pulled;
  if (!IsHubModel(options.model)) {
    pulled = absl::InvalidArgumentError(absl::StrCat("\"", options.model, "\": expected ORG/NAME"));
  } else if (!IsHubRevision(options.revision)) {
    pulled = absl::InvalidArgumentError(
        absl::StrCat("\"", options.revision, "\": expected a branch, tag or commit"));
  } else if (!absl::StartsWith(options.hub.endpoint, "http://") &&
             !absl::StartsWith(options.hub.endpoint, "https://")) {
    pulled = absl::InvalidArgumentError(absl::StrCat("HF_ENDPOINT is \"", options.hub.endpoint,
                                                     "\": expected http:// or https://"));
  } else if (IsHubOffline()) {
    pulled = absl::FailedPreconditionError("HF_HUB_OFFLINE is set: expected it unset to download");
  } else {
    pulled = Pull(options, err).Run();
  }
  if (!pulled.ok()) {
    err << "baton pull: " << Describe(pulled.status()) << std::endl;
    return ExitCode(pulled.status());
  }
  out << (options.json ? PullJson(options, *pulled) : pulled->snapshot.string()) << std::endl;
  return kExitOk;
}

}  // namespace baton::cli
