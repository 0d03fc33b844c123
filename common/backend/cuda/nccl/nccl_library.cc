#include "common/backend/cuda/nccl/nccl_library.h"

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/log.h"

#if __has_include(<nccl.h>)

#include <dlfcn.h>
#include <nccl.h>

#include <cstdlib>
#include <cstring>
#include <type_traits>

namespace baton::backend::cuda {
namespace {

// Where the loader looks by itself, then where the toolkit's packages put it.
constexpr const char* kPlaces[] = {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2",
                                   "/usr/local/cuda/lib/libnccl.so.2"};
constexpr int kRanks = 2;

absl::Status Missing(const std::string& what) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "NCCL",
                   absl::StrCat(what,
                                ": expected NCCL 2.26 or later where the loader finds it "
                                "(LD_LIBRARY_PATH), or another --kv-transport"));
}

struct Functions {
  decltype(&::ncclGetVersion) get_version;
  decltype(&::ncclGetUniqueId) get_unique_id;
  decltype(&::ncclCommInitRankConfig) comm_init;
  decltype(&::ncclCommGetAsyncError) get_async_error;
  decltype(&::ncclCommAbort) abort;
  decltype(&::ncclGetErrorString) error_string;
  decltype(&::ncclGetLastError) last_error;
  decltype(&::ncclSend) send;
  decltype(&::ncclRecv) receive;
};

ncclComm_t Comm(NcclLibrary::Communicator communicator) {
  return static_cast<ncclComm_t>(communicator);
}

class LoadedNccl final : public NcclLibrary {
 public:
  LoadedNccl(const Functions& functions, int version) : functions_(functions), version_(version) {}

  int version() const override { return version_; }

  absl::StatusOr<std::string> MakeId() override {
    ncclUniqueId id;
    if (const ncclResult_t result = functions_.get_unique_id(&id); result != ncclSuccess) {
      return Failed("ncclGetUniqueId", result, nullptr);
    }
    return std::string(id.internal, sizeof(id.internal));
  }

  absl::StatusOr<Communicator> Connect(const std::string& id, int rank) override {
    ncclUniqueId unique;
    if (id.size() != sizeof(unique.internal)) {
      return MakeError(absl::StatusCode::kInvalidArgument, "NCCL",
                       absl::StrCat("the id of a communicator has ", id.size(), " bytes, expected ",
                                    sizeof(unique.internal)));
    }
    std::memcpy(unique.internal, id.data(), id.size());
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    // The kernels of a transfer wait on the device: few blocks, so that steps go on beside them.
    config.minCTAs = 1;
    config.maxCTAs = 2;
    ncclComm_t comm = nullptr;
    const ncclResult_t result = functions_.comm_init(&comm, kRanks, unique, rank, &config);
    if (result == ncclSuccess || result == ncclInProgress) return comm;
    absl::Status failed = Failed("ncclCommInitRankConfig", result, comm);
    if (comm != nullptr) functions_.abort(comm);
    return failed;
  }

  absl::StatusOr<bool> Done(Communicator communicator) override {
    ncclResult_t state = ncclSuccess;
    const ncclResult_t result = functions_.get_async_error(Comm(communicator), &state);
    if (result != ncclSuccess) return Failed("ncclCommGetAsyncError", result, communicator);
    if (state == ncclInProgress) return false;
    if (state != ncclSuccess) return Failed("the communicator", state, communicator);
    return true;
  }

  absl::Status Send(Communicator communicator, const void* device, size_t size_bytes, int peer,
                    Stream stream) override {
    return Begun("ncclSend",
                 functions_.send(device, size_bytes, ncclUint8, peer, Comm(communicator),
                                 static_cast<cudaStream_t>(stream)),
                 communicator);
  }
  absl::Status Receive(Communicator communicator, void* device, size_t size_bytes, int peer,
                       Stream stream) override {
    return Begun("ncclRecv",
                 functions_.receive(device, size_bytes, ncclUint8, peer, Comm(communicator),
                                    static_cast<cudaStream_t>(stream)),
                 communicator);
  }

  void Abort(Communicator communicator) override {
    const ncclResult_t result = functions_.abort(Comm(communicator));
    if (result == ncclSuccess || result == ncclInProgress) return;
    BATON_LOG(Error) << "ncclCommAbort: " << functions_.error_string(result);
  }

 private:
  absl::Status Begun(const char* call, ncclResult_t result, Communicator communicator) const {
    if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
    return Failed(call, result, communicator);
  }
  absl::Status Failed(const char* call, ncclResult_t result, Communicator communicator) const {
    const char* const detail = functions_.last_error(Comm(communicator));
    return MakeError(absl::StatusCode::kUnavailable, "NCCL",
                     absl::StrCat(call, ": ", functions_.error_string(result),
                                  detail == nullptr || *detail == 0 ? "" : ": ",
                                  detail == nullptr ? "" : detail));
  }

  const Functions functions_;
  const int version_;
};

absl::StatusOr<NcclLibrary*> Load() {
  // Communicators of several links share the device: they are launched in one order, by the thread
  // that runs the links.
  setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", /*overwrite=*/0);
  // Several communicators hang while they are made on some machines otherwise (NCCL issue 2379).
  setenv("NCCL_CUMEM_ENABLE", "0", /*overwrite=*/0);
  void* handle = nullptr;
  std::string errors;
  for (const char* place : kPlaces) {
    handle = dlopen(place, RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) break;
    absl::StrAppend(&errors, errors.empty() ? "" : "; ", dlerror());
  }
  if (handle == nullptr) return Missing(errors);
  std::string missing;
  const auto find = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(handle, name));
    if (function == nullptr) absl::StrAppend(&missing, missing.empty() ? "" : ", ", name);
  };
  Functions functions;
  find("ncclGetVersion", functions.get_version);
  find("ncclGetUniqueId", functions.get_unique_id);
  find("ncclCommInitRankConfig", functions.comm_init);
  find("ncclCommGetAsyncError", functions.get_async_error);
  find("ncclCommAbort", functions.abort);
  find("ncclGetErrorString", functions.error_string);
  find("ncclGetLastError", functions.last_error);
  find("ncclSend", functions.send);
  find("ncclRecv", functions.receive);
  if (!missing.empty()) return Missing(absl::StrCat("libnccl.so.2 lacks ", missing));
  int version = 0;
  if (functions.get_version(&version) != ncclSuccess || version < NcclLibrary::kOldestVersion) {
    return Missing(absl::StrCat("libnccl.so.2 has version ", version));
  }
  return new LoadedNccl(functions, version);
}

}  // namespace

absl::StatusOr<NcclLibrary*> LoadNccl() {
  static const auto* const loaded = new absl::StatusOr<NcclLibrary*>(Load());
  return *loaded;
}

}  // namespace baton::backend::cuda

#else

namespace baton::backend::cuda {

absl::StatusOr<NcclLibrary*> LoadNccl() {
  return MakeError(absl::StatusCode::kFailedPrecondition, "NCCL",
                   "this was built without nccl.h, expected a build with NCCL's header, or another "
                   "--kv-transport");
}

}  // namespace baton::backend::cuda

#endif
