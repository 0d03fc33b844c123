// `baton pull`: downloads a model from the Hugging Face Hub into the local Hugging Face cache.
#ifndef BATON_CLI_PULL_H_
#define BATON_CLI_PULL_H_

#include <ostream>
#include <string>
#include <vector>

#include "cli/hub.h"

namespace baton::cli {

struct PullOptions {
  std::string model;                 // "org/name"
  std::string revision = "main";     // a branch, tag or commit
  std::vector<std::string> include;  // patterns of file names; empty: what Baton reads
  bool json = false;                 // print one JSON object instead of the path
  bool progress = false;             // show a progress bar on stderr
  HubOptions hub;
};

// Writes into HubCache() (common/base/model_directory.h) what the Python package huggingface_hub
// would write, so that both find the other's models: blobs/HASH, snapshots/COMMIT/FILE -> blob and
// refs/REVISION. A file is complete and checked before its blob has its name; the reference is
// written last. A lock on each blob keeps two downloads apart, across both programs.
//
// Prints the snapshot's path. Returns the exit code; an error and its reason are on `err`.
int RunPull(const PullOptions& options, std::ostream& out, std::ostream& err);

// Those of a model's files that are to be downloaded.
std::vector<std::string> ChooseFiles(const std::vector<std::string>& files,
                                     const std::vector<std::string>& include);

}  // namespace baton::cli

#endif  // BATON_CLI_PULL_H_
