// Model directories that tests write, whole or broken on purpose.
#ifndef BATON_TESTS_TESTING_MODEL_DIR_H_
#define BATON_TESTS_TESTING_MODEL_DIR_H_

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

namespace baton::testing {

inline std::string ReadAll(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// A fresh temporary directory, removed by the destructor.
class ModelDir {
 public:
  ModelDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "baton_model_XXXXXX").string();
    if (mkdtemp(pattern.data()) != nullptr) path_ = pattern;
  }
  ~ModelDir() { std::filesystem::remove_all(path_); }
  ModelDir(const ModelDir&) = delete;
  ModelDir& operator=(const ModelDir&) = delete;

  const std::string& path() const { return path_; }
  std::string PathOf(const std::string& name) const { return path_ + "/" + name; }
  void Write(const std::string& name, const std::string& content) const {
    std::ofstream(PathOf(name), std::ios::binary) << content;
  }

 private:
  std::string path_;
};

// The bytes of a .safetensors file. Its length prefix is header.size(), or stated_length if given.
inline std::string SafetensorsBytes(const std::string& header, const std::string& data,
                                    int64_t stated_length = -1) {
  uint64_t length = stated_length < 0 ? header.size() : static_cast<uint64_t>(stated_length);
  std::string bytes;
  for (int i = 0; i < 8; ++i, length >>= 8) bytes.push_back(static_cast<char>(length & 0xff));
  return bytes + header + data;
}

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_MODEL_DIR_H_
