// GGUF files that tests write, whole or broken on purpose.
#ifndef BATON_TESTS_TESTING_GGUF_BYTES_H_
#define BATON_TESTS_TESTING_GGUF_BYTES_H_

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace baton::testing {

template <class T>
std::string LittleEndian(T value) {  // of this little-endian machine
  std::string bytes(sizeof(T), '\0');
  std::memcpy(bytes.data(), &value, sizeof(T));
  return bytes;
}

inline std::string GgufText(const std::string& text) {
  return LittleEndian(uint64_t{text.size()}) + text;
}

class GgufBytes {
 public:
  static constexpr uint64_t kAlignment = 32;

  GgufBytes& AddRaw(const std::string& key, uint32_t type, const std::string& value) {
    metadata_ += GgufText(key) + LittleEndian(type) + value;
    ++metadata_count_;
    return *this;
  }
  GgufBytes& Add(const std::string& key, uint32_t value) {
    return AddRaw(key, 4, LittleEndian(value));
  }
  GgufBytes& Add(const std::string& key, int64_t value) {
    return AddRaw(key, 11, LittleEndian(value));
  }
  GgufBytes& Add(const std::string& key, float value) {
    return AddRaw(key, 6, LittleEndian(value));
  }
  GgufBytes& Add(const std::string& key, bool value) {
    return AddRaw(key, 7, std::string(1, value ? 1 : 0));
  }
  GgufBytes& Add(const std::string& key, const std::string& value) {
    return AddRaw(key, 8, GgufText(value));
  }
  GgufBytes& Add(const std::string& key, const char* value) { return Add(key, std::string(value)); }
  GgufBytes& Add(const std::string& key, const std::vector<std::string>& values) {
    std::string list = LittleEndian(uint32_t{8}) + LittleEndian(uint64_t{values.size()});
    for (const std::string& value : values) list += GgufText(value);
    return AddRaw(key, 9, list);
  }
  GgufBytes& Add(const std::string& key, const std::vector<int32_t>& values) {
    return AddNumbers(key, 5, values);
  }
  GgufBytes& Add(const std::string& key, const std::vector<bool>& values) {
    return AddNumbers(key, 7, std::vector<uint8_t>(values.begin(), values.end()));
  }
  GgufBytes& Add(const std::string& key, const std::vector<float>& values) {
    return AddNumbers(key, 6, values);
  }

  GgufBytes& AddTensor(const std::string& name, const std::vector<uint64_t>& extents, uint32_t type,
                       const std::string& data) {
    tensors_ += GgufText(name) + LittleEndian(static_cast<uint32_t>(extents.size()));
    for (const uint64_t extent : extents) tensors_ += LittleEndian(extent);
    tensors_ += LittleEndian(type) + LittleEndian(uint64_t{data_.size()});
    data_ += data;
    data_.resize((data_.size() + kAlignment - 1) / kAlignment * kAlignment);
    ++tensor_count_;
    return *this;
  }

  // Before the tensors' bytes.
  std::string Header(uint32_t version = 3) const {
    return "GGUF" + LittleEndian(version) + LittleEndian(tensor_count_) +
           LittleEndian(metadata_count_) + metadata_ + tensors_;
  }
  std::string Bytes(uint32_t version = 3) const {
    std::string bytes = Header(version);
    if (tensor_count_ > 0) bytes.resize((bytes.size() + kAlignment - 1) / kAlignment * kAlignment);
    return bytes + data_;
  }

 private:
  template <class T>
  GgufBytes& AddNumbers(const std::string& key, uint32_t type, const std::vector<T>& values) {
    std::string list = LittleEndian(type) + LittleEndian(uint64_t{values.size()});
    for (const T value : values) list += LittleEndian(value);
    return AddRaw(key, 9, list);
  }

  std::string metadata_, tensors_, data_;
  uint64_t metadata_count_ = 0, tensor_count_ = 0;
};

// The smallest model: one layer of llama, float32 weights that are all zero, no tokenizer. `down`:
// the type and bytes of blk.0.ffn_down.weight, [8, 256], instead.
inline GgufBytes TinyGguf(uint32_t down_type = 0, const std::string& down = std::string(8192, 0)) {
  constexpr uint32_t kWidth = 8, kFfn = 256, kVocab = 10, kHeads = 2, kF32 = 0;
  GgufBytes bytes;
  bytes.Add("general.architecture", "llama")
      .Add("llama.context_length", 64u)
      .Add("llama.embedding_length", kWidth)
      .Add("llama.block_count", 1u)
      .Add("llama.feed_forward_length", kFfn)
      .Add("llama.attention.head_count", kHeads)
      .Add("llama.attention.head_count_kv", 1u)
      .Add("llama.attention.layer_norm_rms_epsilon", 1e-5f)
      .Add("tokenizer.ggml.eos_token_id", 2u);
  const auto add = [&](const std::string& name, std::vector<uint64_t> extents) {
    uint64_t size_bytes = 4;
    for (const uint64_t extent : extents) size_bytes *= extent;
    bytes.AddTensor(name, extents, kF32, std::string(size_bytes, '\0'));
  };
  constexpr uint64_t kKvWidth = kWidth / kHeads;
  add("token_embd.weight", {kWidth, kVocab});
  add("output_norm.weight", {kWidth});
  for (const char* name : {"attn_norm", "ffn_norm"})
    add(std::string("blk.0.") + name + ".weight", {kWidth});
  add("blk.0.attn_q.weight", {kWidth, kWidth});
  add("blk.0.attn_k.weight", {kWidth, kKvWidth});
  add("blk.0.attn_v.weight", {kWidth, kKvWidth});
  add("blk.0.attn_output.weight", {kWidth, kWidth});
  add("blk.0.ffn_gate.weight", {kWidth, kFfn});
  add("blk.0.ffn_up.weight", {kWidth, kFfn});
  bytes.AddTensor("blk.0.ffn_down.weight", {kFfn, kWidth}, down_type, down);
  return bytes;
}

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_GGUF_BYTES_H_
