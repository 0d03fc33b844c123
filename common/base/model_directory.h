// Finds the directory of the model that --model names.
#ifndef BATON_COMMON_BASE_MODEL_DIRECTORY_H_
#define BATON_COMMON_BASE_MODEL_DIRECTORY_H_

#include <string>

#include "absl/status/statusor.h"

namespace baton {

struct ModelDirectory {
  std::string path;
  std::string id;  // "org/name" if it is in the Hugging Face cache, else empty
};

// `model` is a directory, or the id of a model on the Hugging Face Hub, whose newest downloaded
// revision is in the local cache: models--ORG--NAME/snapshots/REVISION, where refs/main has the
// revision (the layout of the Python package huggingface_hub). The cache is $HF_HUB_CACHE, else
// $HF_HOME/hub, else huggingface/hub in $XDG_CACHE_HOME or ~/.cache. Nothing is downloaded.
//
// NOT_FOUND, with all that was searched, if there is neither. Without HF_HUB_OFFLINE the message
// has the command that downloads the model.
absl::StatusOr<ModelDirectory> FindModel(const std::string& model);

}  // namespace baton

#endif  // BATON_COMMON_BASE_MODEL_DIRECTORY_H_
