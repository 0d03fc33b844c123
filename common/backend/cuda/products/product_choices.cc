#include "common/backend/cuda/products/product_choices.h"

#include <algorithm>
#include <bit>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "xxhash.h"

namespace baton::backend::cuda {
namespace {

constexpr absl::string_view kMagic = "BATONALG";
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 8 + 4 + 4 + 8;
constexpr size_t kChoiceBytes = 4 + 3 * 4 + 8 + sizeof(AlgorithmWords);
constexpr int kHalfwayFrom = 16, kHalfwayTo = 1024;

template <class T>
void Put(T value, std::string& to) {
  static_assert(std::is_unsigned_v<T>);
  for (size_t i = 0; i < sizeof(T); ++i) to.push_back(static_cast<char>(value >> (8 * i)));
}

class Reader {
 public:
  explicit Reader(absl::string_view bytes) : bytes_(bytes), size_(bytes.size()) {}

  size_t left() const { return bytes_.size(); }
  absl::StatusOr<absl::string_view> Bytes(size_t count) {
    if (count > left()) {
      return Bad(absl::StrCat("ends, expected ", count, " more bytes"));
    }
    const absl::string_view taken = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return taken;
  }
  template <class T>
  absl::StatusOr<T> Get() {
    BATON_ASSIGN_OR_RETURN(const absl::string_view bytes, Bytes(sizeof(T)));
    T value = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      value |= static_cast<T>(static_cast<T>(static_cast<unsigned char>(bytes[i])) << (8 * i));
    }
    return value;
  }
  absl::Status Bad(absl::string_view what) const {
    return absl::DataLossError(absl::StrCat("byte ", size_ - left(), ": ", what));
  }

 private:
  absl::string_view bytes_;
  const size_t size_;
};

void PutChoice(const ProductKey& key, const ProductChoice& choice, std::string& to) {
  BATON_CHECK(key.dtype == DType::kF16 || key.dtype == DType::kBF16);
  Put<uint8_t>(key.dtype == DType::kF16 ? 1 : 2, to);
  Put<uint8_t>(key.bias, to);
  Put<uint8_t>(choice.own, to);
  Put<uint8_t>(0, to);
  for (const int size : {key.rows, key.n, key.k}) Put(static_cast<uint32_t>(size), to);
  Put(choice.nanoseconds, to);
  for (const uint64_t word : choice.words) Put(word, to);
}

absl::StatusOr<std::pair<ProductKey, ProductChoice>> GetChoice(Reader& reader) {
  ProductKey key;
  ProductChoice choice;
  uint8_t flags[4];
  for (uint8_t& flag : flags) {
    BATON_ASSIGN_OR_RETURN(flag, reader.Get<uint8_t>());
  }
  if (flags[0] < 1 || flags[0] > 2 || flags[1] > 1 || flags[2] > 1 || flags[3] != 0) {
    return reader.Bad("expected a type, two flags and a 0");
  }
  key.dtype = flags[0] == 1 ? DType::kF16 : DType::kBF16;
  key.bias = flags[1] == 1;
  choice.own = flags[2] == 1;
  for (int* const size : {&key.rows, &key.n, &key.k}) {
    BATON_ASSIGN_OR_RETURN(const uint32_t value, reader.Get<uint32_t>());
    if (value < 1 || value > kMaxBucketRows) return reader.Bad("expected a size from 1 to 2^30");
    *size = static_cast<int>(value);
  }
  if (RowsBucket(key.rows) != key.rows) return reader.Bad("expected a bucket of rows");
  BATON_ASSIGN_OR_RETURN(choice.nanoseconds, reader.Get<uint64_t>());
  for (uint64_t& word : choice.words) {
    BATON_ASSIGN_OR_RETURN(word, reader.Get<uint64_t>());
  }
  if (choice.own && choice.words != AlgorithmWords{}) {
    return reader.Bad("expected no algorithm of a library's beside our own");
  }
  return std::make_pair(key, choice);
}

absl::StatusOr<DeviceChoices> GetDevice(Reader& reader) {
  DeviceChoices device;
  BATON_ASSIGN_OR_RETURN(const uint32_t name_bytes, reader.Get<uint32_t>());
  if (name_bytes < 1 || name_bytes > kMaxDeviceName) {
    return reader.Bad(absl::StrCat("expected a name of 1 to ", kMaxDeviceName, " bytes"));
  }
  BATON_ASSIGN_OR_RETURN(const absl::string_view name, reader.Bytes(name_bytes));
  device.device = std::string(name);
  BATON_ASSIGN_OR_RETURN(const uint32_t count, reader.Get<uint32_t>());
  if (count > kMaxChoices || count * kChoiceBytes > reader.left()) {
    return reader.Bad(absl::StrCat("found a count of ", count,
                                   " choices, expected as many as follow and at most ",
                                   kMaxChoices));
  }
  for (uint32_t i = 0; i < count; ++i) {
    BATON_ASSIGN_OR_RETURN(const auto choice, GetChoice(reader));
    if (!device.choices.empty() && !(device.choices.rbegin()->first < choice.first)) {
      return reader.Bad("expected products in ascending order");
    }
    device.choices.insert(device.choices.end(), choice);
  }
  return device;
}

}  // namespace

int RowsBucket(int rows) {
  BATON_CHECK(rows >= 1 && rows <= kMaxBucketRows) << rows;
  const auto power = static_cast<int>(std::bit_ceil(static_cast<unsigned>(rows)));
  const int halfway = power / 4 * 3;
  return power > kHalfwayFrom && power <= kHalfwayTo && rows <= halfway ? halfway : power;
}

std::string EncodeChoices(absl::Span<const DeviceChoices> devices) {
  BATON_CHECK_LE(devices.size(), kMaxDevices);
  std::string payload;
  Put(static_cast<uint32_t>(devices.size()), payload);
  for (const DeviceChoices& device : devices) {
    BATON_CHECK(!device.device.empty() && device.device.size() <= kMaxDeviceName);
    BATON_CHECK_LE(device.choices.size(), kMaxChoices);
    Put(static_cast<uint32_t>(device.device.size()), payload);
    payload += device.device;
    Put(static_cast<uint32_t>(device.choices.size()), payload);
    for (const auto& [key, choice] : device.choices) PutChoice(key, choice, payload);
  }
  std::string bytes(kMagic);
  Put(kVersion, bytes);
  Put(static_cast<uint32_t>(payload.size()), bytes);
  Put(uint64_t{XXH3_64bits(payload.data(), payload.size())}, bytes);
  bytes += payload;
  BATON_CHECK_LE(bytes.size(), kMaxChoicesBytes);
  return bytes;
}

absl::StatusOr<std::vector<DeviceChoices>> DecodeChoices(absl::string_view bytes) {
  Reader reader(bytes);
  BATON_ASSIGN_OR_RETURN(const absl::string_view magic, reader.Bytes(kMagic.size()));
  if (magic != kMagic) return reader.Bad(absl::StrCat("expected ", kMagic));
  BATON_ASSIGN_OR_RETURN(const uint32_t version, reader.Get<uint32_t>());
  if (version != kVersion) {
    return reader.Bad(absl::StrCat("found version ", version, ", expected ", kVersion));
  }
  BATON_ASSIGN_OR_RETURN(const uint32_t length, reader.Get<uint32_t>());
  BATON_ASSIGN_OR_RETURN(const uint64_t checksum, reader.Get<uint64_t>());
  if (length != reader.left()) {
    return reader.Bad(absl::StrCat("found ", reader.left(), " bytes, expected ", length));
  }
  const absl::string_view payload = bytes.substr(kHeaderBytes);
  if (checksum != XXH3_64bits(payload.data(), payload.size())) {
    return reader.Bad("expected the checksum of these bytes");
  }
  BATON_ASSIGN_OR_RETURN(const uint32_t count, reader.Get<uint32_t>());
  if (count > kMaxDevices) {
    return reader.Bad(absl::StrCat("found ", count, " devices, expected at most ", kMaxDevices));
  }
  std::vector<DeviceChoices> devices;
  for (uint32_t i = 0; i < count; ++i) {
    BATON_ASSIGN_OR_RETURN(DeviceChoices device, GetDevice(reader));
    if (std::any_of(devices.begin(), devices.end(),
                    [&](const DeviceChoices& other) { return other.device == device.device; })) {
      return reader.Bad("expected each device once");
    }
    devices.push_back(std::move(device));
  }
  if (reader.left() > 0) return reader.Bad("expected the end");
  return devices;
}

std::vector<DeviceChoices> MergeChoices(DeviceChoices ours, std::vector<DeviceChoices> before) {
  std::vector<DeviceChoices> merged;
  merged.push_back(std::move(ours));
  for (DeviceChoices& device : before) {
    if (device.device != merged[0].device) {
      if (merged.size() < kMaxDevices) merged.push_back(std::move(device));
      continue;
    }
    for (const auto& choice : device.choices) {
      if (merged[0].choices.size() == kMaxChoices) break;
      merged[0].choices.insert(choice);  // unless ours has it
    }
  }
  return merged;
}

}  // namespace baton::backend::cuda
