// Finds the directory or the GGUF file of the model that --model names.
#ifndef BATON_COMMON_BASE_MODEL_DIRECTORY_H_
#define BATON_COMMON_BASE_MODEL_DIRECTORY_H_

#include <string>

#include "absl/status/statusor.h"

namespace baton {

struct ModelDirectory {
  std::string path;
  std::string id;  // what `model` was if it is in the Hugging Face cache, else empty
};

// `model` is a directory, a file whose name ends in .gguf, the id of a model on the Hugging Face
// Hub (ORG/NAME), or a GGUF file of such a model (ORG/NAME/FILE.gguf, where FILE may have folders).
// The newest downloaded revision of the latter two is in the local cache:
// models--ORG--NAME/snapshots/REVISION, where refs/main has the revision (the layout of the Python
// package huggingface_hub). The cache is $HF_HUB_CACHE, else $HF_HOME/hub, else huggingface/hub in
// $XDG_CACHE_HOME or ~/.cache. Nothing is downloaded; `baton pull` does that.
//
// NOT_FOUND, with all that was searched, if there is none. Without HF_HUB_OFFLINE the message has
// the command that downloads the model.
absl::StatusOr<ModelDirectory> FindModel(const std::string& model);

// For `baton pull`: the directory of Hugging Face's files, and the cache, which is in it unless
// $HF_HUB_CACHE is set.
std::string HubHome();
std::string HubCache();
bool IsHubOffline();  // HF_HUB_OFFLINE is set to what huggingface_hub takes as true
// Whether the text is an id "name" or "org/name", and a revision; no path made of them leads out of
// the cache.
bool IsHubModel(const std::string& model);
bool IsHubRevision(const std::string& revision);
// "models--ORG--NAME", in HubCache(). REQUIRES: IsHubModel(model).
std::string HubModelFolder(const std::string& model);

}  // namespace baton

#endif  // BATON_COMMON_BASE_MODEL_DIRECTORY_H_
