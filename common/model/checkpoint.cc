#include "common/model/checkpoint.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/file.h"
#include "common/base/status_macros.h"
#include "common/gguf/documents.h"
#include "common/json/json.h"
#include "common/model/fingerprint.h"
#include "common/model/gguf_tensors.h"
#include "common/model/safetensors.h"

namespace baton::model {
namespace {

constexpr size_t kMaxIndexBytes = size_t{64} << 20;
constexpr size_t kMaxShards = 4096;
constexpr uint64_t kSampleBytes = 64;

// {"metadata": anything, "weight_map": {"tensor": "file", ..}}
class IndexReader : public json::Visitor {
 public:
  absl::Status OnScalar(json::Path path, json::Scalar&& scalar) override {
    if (path.empty() || path[0].key != "weight_map") return OutsideMap(path);
    if (path.size() != 2 || scalar.kind != json::Scalar::Kind::kString) {
      return absl::InvalidArgumentError(absl::StrCat(json::PathText(path), ": found ",
                                                     json::ScalarText(scalar).substr(0, 80),
                                                     ", expected a file name"));
    }
    BATON_RETURN_IF_ERROR(CheckFileName(path, scalar.text));
    file_of_.emplace(path[1].key, scalar.text);
    return absl::OkStatus();
  }
  absl::Status OnBegin(json::Path path, bool is_array) override {
    const bool is_map = path.size() == 1 && path[0].key == "weight_map";
    if (is_map && !is_array) found_map_ = true;
    if (path.empty() && !is_array) return absl::OkStatus();
    if (is_map && !is_array) return absl::OkStatus();
    if (!path.empty() && path[0].key != "weight_map") return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(json::PathText(path), ": found ",
                                                   is_array ? "a list" : "an object",
                                                   ", expected {\"weight_map\": {tensor: file}}"));
  }
  bool found_map() const { return found_map_; }
  const std::map<std::string, std::string>& file_of() const { return file_of_; }

 private:
  static absl::Status OutsideMap(json::Path path) {
    if (!path.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError("the document: expected an object");
  }
  // A path would let a downloaded index read any file of the machine.
  static absl::Status CheckFileName(json::Path path, const std::string& name) {
    const bool plain = !name.empty() && name[0] != '.' && name.find('/') == std::string::npos &&
                       name.find('\0') == std::string::npos && absl::EndsWith(name, ".safetensors");
    if (plain) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(json::PathText(path), ": found ", json::Quoted(name),
                     ", expected the plain name of a .safetensors file in the same directory"));
  }

  bool found_map_ = false;
  std::map<std::string, std::string> file_of_;
};

}  // namespace

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& model_dir) {
  Checkpoint checkpoint;
  if (gguf::IsGguf(model_dir)) {
    checkpoint.path_ = model_dir;
    BATON_ASSIGN_OR_RETURN(checkpoint.files_, OpenGgufTensors(model_dir));
    for (const auto& file : checkpoint.files_) checkpoint.AddTensorsOf(*file);
    return checkpoint;
  }
  const std::string single = absl::StrCat(model_dir, "/model.safetensors");
  const std::string index = absl::StrCat(single, ".index.json");
  if (FileExists(single)) {
    checkpoint.path_ = single;
    BATON_ASSIGN_OR_RETURN(auto file, OpenSafetensors(single));
    checkpoint.AddTensorsOf(*file);
    checkpoint.files_.push_back(std::move(file));
  } else if (FileExists(index)) {
    checkpoint.path_ = index;
    BATON_RETURN_IF_ERROR(checkpoint.OpenShards(model_dir));
  } else {
    return absl::NotFoundError(
        absl::StrCat(model_dir,
                     ": found neither model.safetensors nor model.safetensors.index.json, expected "
                     "one (other weight formats are not read)"));
  }
  return checkpoint;
}

absl::Status Checkpoint::OpenShards(const std::string& model_dir) {
  BATON_ASSIGN_OR_RETURN(const std::string text, ReadFile(path_, kMaxIndexBytes));
  IndexReader index;
  BATON_RETURN_IF_ERROR(json::Visit(text, path_, index));
  if (!index.found_map()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": weight_map: found nothing, expected an object"));
  }
  std::map<std::string, const TensorFile*> opened;
  for (const auto& [tensor, name] : index.file_of()) {
    if (opened.count(name) > 0) continue;
    if (opened.size() == kMaxShards) {
      return absl::InvalidArgumentError(
          absl::StrCat(path_, ": weight_map: found more than ", kMaxShards, " files"));
    }
    auto file = OpenSafetensors(absl::StrCat(model_dir, "/", name));
    if (!file.ok()) return Annotate(file.status(), absl::StrCat(path_, ": weight_map"));
    opened[name] = file->get();
    files_.push_back(*std::move(file));
  }
  std::sort(files_.begin(), files_.end(),
            [](const auto& a, const auto& b) { return a->path() < b->path(); });
  // Both ways: the index has each header's tensor with this file, and no others.
  for (const auto& [name, file] : opened) {
    for (const TensorEntry& entry : file->tensors()) {
      const auto found = index.file_of().find(entry.name);
      if (found == index.file_of().end() || found->second != name) {
        return absl::InvalidArgumentError(
            absl::StrCat(path_, ": weight_map: found ",
                         found == index.file_of().end() ? "nothing" : json::Quoted(found->second),
                         " for ", json::Quoted(entry.name), ", expected ", json::Quoted(name),
                         ", whose header has the tensor"));
      }
    }
    AddTensorsOf(*file);
  }
  for (const auto& [tensor, name] : index.file_of()) {
    if (Find(tensor) != nullptr) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": weight_map: found ", json::Quoted(name), " for ",
                     json::Quoted(tensor), ", expected it in that file's header"));
  }
  return absl::OkStatus();
}

void Checkpoint::AddTensorsOf(const TensorFile& file) {
  for (const TensorEntry& entry : file.tensors()) tensors_[entry.name] = {&file, &entry};
}

const StoredTensor* Checkpoint::Find(absl::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

bool Checkpoint::is_gguf() const { return gguf::IsGguf(path_); }

uint64_t Checkpoint::Fingerprint() const {
  FingerprintBuilder fingerprint;
  for (const auto& file : files_) {
    const std::string& path = file->path();
    if (!is_gguf()) fingerprint.AddText(path.substr(path.rfind('/') + 1));
    for (const TensorEntry& entry : file->tensors()) {
      fingerprint.AddText(entry.name);
      fingerprint.AddText(entry.dtype);
      fingerprint.AddNumber(entry.shape.size());
      for (uint64_t extent : entry.shape) fingerprint.AddNumber(extent);
      fingerprint.AddNumber(file->bytes_before() + entry.begin);
      fingerprint.AddNumber(file->bytes_before() + entry.end);
      const absl::string_view bytes = file->Bytes(entry);
      fingerprint.AddText(bytes.substr(0, kSampleBytes));
      fingerprint.AddText(bytes.substr(bytes.size() / 2, kSampleBytes));
      fingerprint.AddText(bytes.substr(bytes.size() - std::min(bytes.size(), kSampleBytes)));
    }
  }
  return fingerprint.Take();
}

uint64_t Checkpoint::size_bytes() const {
  uint64_t total = 0;
  for (const auto& [name, tensor] : tensors_) total += tensor.entry->end - tensor.entry->begin;
  return total;
}

}  // namespace baton::model
