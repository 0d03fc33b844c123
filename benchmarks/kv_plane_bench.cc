// How fast does KV cross from one process to another, and what does it cost? Each plane, a way to
// move it, beside memcpy and one raw TCP stream over loopback, in interleaved rounds.
//
//   kv_plane_bench [--layouts 0.5b,7b] [--frame-kib 8,1024] [--channels 1,4] [--planes grpc,tcp]
//                  [--mib 96] [--rounds 5] [--plot kv_planes.svg]
//
//   memcpy    one thread, blocks to blocks; in this process alone
//   checksum  one thread, FrameChecksum over a layer's blocks; in this process alone
//   tcp       one stream: writes and reads of a frame's size, without header or checksum
//   stream    gRPC alone: messages of slices that point into the blocks; the receiver drops them
//   grpc      the whole path: GrpcKvSender to PrefillCall and KvReceiver
//   shm       the same, with the payload read from the sender's memory
//   shm_unchecked  without checksums of it
//
// A child process sends. CPU seconds are those of both processes, kernel time included. A new plane
// is a row of kPlanes, a case of Bench::Run() and one of the sender (kv_plane_sender.cc).
#include <arpa/inet.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/time/clock.h"
#include "baton/internal/v1/prefill.grpc.pb.h"
#include "benchmarks/kv_plane_work.h"
#include "cli/svg_plot.h"
#include "common/base/check.h"
#include "common/base/malloc_settings.h"
#include "common/base/rpc/channel.h"
#include "common/transfer/checksum.h"
#include "common/transfer/prefill_call.h"

namespace baton::benchmarks {
namespace {

constexpr char kMethod[] = "/baton.internal.v1.PrefillService/Prefill";
constexpr int64_t kMiB = 1 << 20;

// Reads and drops a stream.
class StreamDrain final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  StreamDrain(const std::shared_ptr<grpc::Channel>& channel, const std::string& request,
              absl::BlockingCounter* done)
      : stub_(channel), done_(done) {
    grpc::Slice slice(request);
    request_ = grpc::ByteBuffer(&slice, 1);
    stub_.PrepareBidiStreamingCall(&context_, kMethod, {}, this);
    StartWriteLast(&request_, grpc::WriteOptions());
    StartRead(&buffer_);
    StartCall();
  }
  void OnReadDone(bool ok) override {
    if (ok) {
      buffer_.Clear();
      StartRead(&buffer_);
    }
  }
  void OnDone(const grpc::Status& status) override {
    BATON_CHECK(status.ok()) << status.error_message();
    done_->DecrementCount();
  }

 private:
  grpc::GenericStub stub_;
  grpc::ClientContext context_;
  grpc::ByteBuffer request_, buffer_;
  absl::BlockingCounter* const done_;
};

double CpuSeconds(clockid_t clock) {
  timespec time;
  BATON_CHECK_EQ(clock_gettime(clock, &time), 0);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

struct Figures {
  double seconds = 0;
  double sender_cpu = 0, receiver_cpu = 0;
};

class Bench {
 public:
  Bench(const SenderProcess& sender, int64_t pool_bytes, const ChannelSettings& channel)
      : channel_settings_(channel),
        pool_(MakePool(pool_bytes)),
        address_(absl::StrFormat("127.0.0.1:%d", sender.ends.grpc_port)),
        ends_(sender.ends) {
    BATON_CHECK_EQ(clock_getcpuclockid(sender.pid, &sender_clock_), 0);
    tcp_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in to = {};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(sender.ends.tcp_port));
    BATON_CHECK_EQ(connect(tcp_, reinterpret_cast<sockaddr*>(&to), sizeof(to)), 0);
  }

  Figures Measure(const Work& work) {
    while (channels_.size() < static_cast<size_t>(work.channels)) {
      channels_.push_back(MakeChannel(address_, channel_settings_));
    }
    const double sender = CpuSeconds(sender_clock_);
    const double receiver = CpuSeconds(CLOCK_PROCESS_CPUTIME_ID);
    const absl::Time begin = absl::Now();
    Run(work);
    return {absl::ToDoubleSeconds(absl::Now() - begin), CpuSeconds(sender_clock_) - sender,
            CpuSeconds(CLOCK_PROCESS_CPUTIME_ID) - receiver};
  }

 private:
  void Run(const Work& work) {
    switch (work.plane) {
      case kMemcpy: {
        // To the other half of the blocks, and back.
        const int64_t half = work.bytes() / 2;
        std::memcpy(pool_.data() + half, pool_.data(), static_cast<size_t>(half));
        std::memcpy(pool_.data(), pool_.data() + half, static_cast<size_t>(half));
        break;
      }
      case kChecksum: {
        const backend::KvPool pool = work.Pool(pool_.data());
        internal::v1::PrefillFrame frame;
        ForEachFrame(work, [&](int layer, absl::Span<const kv::BlockId> blocks) {
          frame.set_epoch(frame.epoch() +
                          transfer::FrameChecksum(frame, FrameSegments(work, pool, layer, blocks)));
        });
        break;
      }
      case kTcp:
        ReceiveRaw(work);
        break;
      case kStream:
        ReceiveStreams(work);
        break;
      case kGrpc:
      case kShm:
      case kShmUnchecked:
        ReceiveTransfers(work);
        break;
    }
  }

  void ReceiveRaw(const Work& work) {
    const int64_t job[2] = {work.bytes(), work.frame_bytes};
    BATON_CHECK_EQ(send(tcp_, job, sizeof(job), 0), static_cast<ssize_t>(sizeof(job)));
    for (int64_t at = 0; at < job[0];) {
      const int64_t count = recv(tcp_, pool_.data() + at,
                                 static_cast<size_t>(std::min(job[1], job[0] - at)), MSG_WAITALL);
      BATON_CHECK_GT(count, 0);
      at += count;
    }
  }

  static internal::v1::PrefillRequest Request(Work work, int channel) {
    work.channel = channel;
    internal::v1::PrefillRequest request;
    request.set_transfer_id(static_cast<uint64_t>(channel) + 1);
    request.set_prefill_epoch(6);
    for (const int value : work.ToInts()) request.add_tokens(value);
    return request;
  }

  void ReceiveStreams(const Work& work) {
    absl::BlockingCounter done(work.channels);
    std::vector<std::unique_ptr<StreamDrain>> drains;
    for (int i = 0; i < work.channels; ++i) {
      drains.push_back(
          std::make_unique<StreamDrain>(channels_[i], Request(work, i).SerializeAsString(), &done));
    }
    done.Wait();
  }

  void ReceiveTransfers(const Work& work) {
    absl::BlockingCounter closed(work.channels);
    std::vector<std::shared_ptr<transfer::PrefillCall>> calls;
    const bool shared = work.plane == kShm || work.plane == kShmUnchecked;
    for (int i = 0; i < work.channels; ++i) {
      internal::v1::PrefillRequest request = Request(work, i);
      transfer::TransferPlan plan;
      if (shared) {
        plan.shared_pool = SharedPoolOf(work);
        request.mutable_shared_memory()->set_connection(plan.shared_pool->connection());
      }
      // A transfer that is released may still be open at the sender when the next one begins.
      request.set_transfer_id(++last_transfer_);
      plan.transfer_id = request.transfer_id();
      plan.sender_epoch = request.prefill_epoch();
      plan.layout = work.layout();
      plan.pool = work.Pool(pool_.data());
      Work part = work;
      part.channel = i;
      plan.blocks = part.ChannelBlocks();
      plan.token_count = 2;
      transfer::PrefillEvents events;
      events.on_first_token = [](const transfer::FirstToken&) {};
      events.on_end = [](const absl::Status& status, const transfer::TransferSummary&) {
        BATON_CHECK(status.ok()) << status;
      };
      events.on_closed = [&closed] { closed.DecrementCount(); };
      calls.push_back(transfer::PrefillCall::Start(channels_[i], request,
                                                   absl::Now() + absl::Minutes(1), std::move(plan),
                                                   std::move(events)));
    }
    closed.Wait();
  }

  std::shared_ptr<transfer::SharedPool> SharedPoolOf(const Work& work) {
    std::shared_ptr<transfer::SharedPool>& pool = shared_pools_[work.shape];
    if (pool == nullptr) {
      const SenderProcess::Ends::Shared& end = ends_.shared[work.shape];
      auto connected = transfer::SharedPool::Connect(end.socket, {end.token, sizeof(end.token)},
                                                     work.layout(), absl::Minutes(1));
      BATON_CHECK(connected.ok()) << connected.status();
      pool = *std::move(connected);
    }
    return pool;
  }

  const ChannelSettings channel_settings_;
  std::vector<std::byte> pool_;
  const std::string address_;
  const SenderProcess::Ends ends_;
  std::map<int, std::shared_ptr<transfer::SharedPool>> shared_pools_;  // by shape
  uint64_t last_transfer_ = 0;
  clockid_t sender_clock_ = 0;
  int tcp_ = -1;
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
};

struct Options {
  std::vector<std::string> layouts = {"0.5b", "7b"};
  std::vector<std::string> planes = {"memcpy", "checksum", "tcp",          "stream",
                                     "grpc",   "shm",      "shm_unchecked"};
  std::vector<int> frame_kib = {8, 32, 128, 256, 512, 1024};
  std::vector<int> channels = {1, 2, 4};
  int mib = 96;
  int rounds = 5;
  bool free_memory = false, probed_window = false;
  std::string plot;
};

bool Contains(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<Work> AllWork(const Options& options) {
  std::vector<Work> all;
  for (int shape = 0; shape < static_cast<int>(std::size(kKvShapes)); ++shape) {
    if (!Contains(options.layouts, kKvShapes[shape].name)) continue;
    for (const auto& plane : kPlanes) {
      if (!Contains(options.planes, plane.name)) continue;
      for (const int kib : options.frame_kib) {
        if (plane.plane == kMemcpy && kib != options.frame_kib.back()) continue;
        for (const int channels : plane.has_channels ? options.channels : std::vector<int>{1}) {
          Work work = {plane.plane, shape, kib << 10, channels};
          work.blocks =
              static_cast<int>(options.mib * kMiB / work.layout().BlockBytes() / channels) *
              channels;
          all.push_back(work);
        }
      }
    }
  }
  return all;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// The median of f(figures) over the rounds.
template <class F>
double MedianOf(const std::vector<Figures>& rounds, F f) {
  std::vector<double> values;
  for (const Figures& figures : rounds) values.push_back(f(figures));
  return Median(values);
}

void Report(const std::vector<Work>& all, const std::vector<std::vector<Figures>>& measured,
            const Options& options) {
  std::map<int, double> tcp;  // the best median of a frame size, by shape
  const auto gb = [&](size_t i) { return static_cast<double>(all[i].bytes()) * 1e-9; };
  const auto rate = [&](size_t i) {
    return MedianOf(measured[i], [&](const Figures& f) { return gb(i) / f.seconds; });
  };
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].plane == kTcp) tcp[all[i].shape] = std::max(tcp[all[i].shape], rate(i));
  }
  std::printf(
      "| layout | plane | frame | channels | GB/s | of TCP | sender CPU s/GB | receiver CPU s/GB "
      "|\n"
      "|---|---|---|---|---|---|---|---|\n");
  std::map<std::string, std::map<std::string, cli::Series>> lines;
  for (size_t i = 0; i < all.size(); ++i) {
    const Work& work = all[i];
    const char* plane = kPlanes[work.plane].name;
    const char* layout = kKvShapes[work.shape].name;
    std::printf(
        "| %s | %s | %s | %d | %.2f | %s | %.2f | %.2f |\n", layout, plane,
        work.plane == kMemcpy ? "" : absl::StrFormat("%d KiB", work.frame_bytes >> 10).c_str(),
        work.channels, rate(i),
        tcp.count(work.shape) ? absl::StrFormat("%.0f %%", 100 * rate(i) / tcp[work.shape]).c_str()
                              : "",
        MedianOf(measured[i], [&](const Figures& f) { return f.sender_cpu / gb(i); }),
        MedianOf(measured[i], [&](const Figures& f) { return f.receiver_cpu / gb(i); }));
    cli::Series& line = lines[layout][absl::StrFormat("%s, %d", plane, work.channels)];
    line.name = absl::StrFormat("%s, %d", plane, work.channels);
    line.points.emplace_back(work.frame_bytes >> 10, rate(i));
  }
  if (options.plot.empty()) return;
  std::vector<cli::Chart> charts;
  for (const auto& [layout, series] : lines) {
    charts.push_back({layout + " layout", "KiB a frame", "GB/s", {}});
    for (const auto& [name, line] : series) charts.back().series.push_back(line);
  }
  std::ofstream(options.plot) << cli::RenderSvg(charts, 2);
}

void Main(const Options& options) {
  const int64_t pool_bytes = options.mib * kMiB;
  const SenderProcess sender = StartSender(pool_bytes);
  Bench bench(sender, pool_bytes, options.probed_window ? kPeerChannel : kTransferChannel);
  const std::vector<Work> all = AllWork(options);
  std::vector<std::vector<Figures>> measured(all.size());
  for (int round = 0; round <= options.rounds; ++round) {
    for (size_t i = 0; i < all.size(); ++i) {
      const Figures figures = bench.Measure(all[i]);
      if (round > 0) measured[i].push_back(figures);  // the first one warms up
    }
  }
  double load[1];
  getloadavg(load, 1);
  std::printf("Load average %.1f, %d rounds of %d MiB.\n\n", load[0], options.rounds, options.mib);
  Report(all, measured, options);
  kill(sender.pid, SIGKILL);
  waitpid(sender.pid, nullptr, 0);
}

}  // namespace
}  // namespace baton::benchmarks

int main(int argc, char** argv) {
  baton::benchmarks::Options options;
  CLI::App app("Measures the planes that KV crosses on, beside memcpy and raw TCP");
  app.add_option("--layouts", options.layouts, "Of demo, 0.5b, 1.5b, 7b")->delimiter(',');
  app.add_option("--planes", options.planes,
                 "Of memcpy, checksum, tcp, stream, grpc, shm, shm_unchecked")
      ->delimiter(',');
  app.add_option("--frame-kib", options.frame_kib, "Payload of a frame")->delimiter(',');
  app.add_option("--channels", options.channels, "Connections at once")->delimiter(',');
  app.add_option("--mib", options.mib, "What one measurement moves");
  app.add_option("--rounds", options.rounds);
  app.add_flag("--free-memory", options.free_memory, "Without KeepFreedMemory()");
  app.add_flag("--probed-window", options.probed_window, "gRPC's own receive window");
  app.add_option("--plot", options.plot, "Writes an SVG file");
  CLI11_PARSE(app, argc, argv);
  if (!options.free_memory) baton::KeepFreedMemory();  // as the workers do
  baton::benchmarks::Main(options);
  return 0;
}
