#include "cli/score.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cli/generate.h"
#include "cli/progress.h"
#include "common/base/error.h"
#include "common/base/exit_code.h"
#include "common/base/named_thread.h"
#include "common/base/shutdown_signal.h"
#include "common/base/utf8.h"

namespace baton::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kItemsPerMessage = 64;

// Reads items and sends them, on its own thread.
class ItemFeeder {
 public:
  ItemFeeder(std::istream& in, client::ScoreStream& stream)
      : thread_(NamedThread("score-items", [this, &in, &stream] { Run(in, stream); })) {}
  ~ItemFeeder() { thread_.join(); }

  // The id of an item that was sent, once.
  std::string TakeId(uint64_t item) {
    absl::MutexLock lock(&mutex_);
    return std::move(ids_[item]);
  }
  // The status of the input.
  absl::Status status() const {
    absl::MutexLock lock(&mutex_);
    return status_;
  }

 private:
  void Run(std::istream& in, client::ScoreStream& stream) {
    std::vector<client::ScoreItem> items;
    std::string line;
    for (int64_t number = 1; std::getline(in, line); ++number) {
      if (line.empty()) continue;
      absl::StatusOr<ItemLine> parsed = ParseItemLine(line);
      {
        absl::MutexLock lock(&mutex_);
        if (parsed.ok()) {
          items.push_back({ids_.size(), std::move(parsed->text)});
          ids_.push_back(std::move(parsed->id));
        } else {
          status_ = Annotate(parsed.status(), absl::StrCat("line ", number, " of the items"));
        }
      }
      if (!parsed.ok()) return stream.Cancel();
      if (items.size() < kItemsPerMessage) continue;
      if (!stream.Send(items)) return;
      items.clear();
    }
    if (!items.empty()) stream.Send(items);
    stream.EndItems();
  }

  mutable absl::Mutex mutex_;
  std::vector<std::string> ids_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// How many items a file has, for the progress bar; 0 if it cannot be told.
int64_t CountLines(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return path == "-" ? 0
                     : std::count(std::istreambuf_iterator<char>(file),
                                  std::istreambuf_iterator<char>(), '\n');
}

int Fail(const absl::Status& status, std::ostream& err) {
  err << "baton score: " << Describe(status) << std::endl;
  return ExitCode(status);
}

absl::StatusOr<std::string> ReadPrefix(const std::string& path) {
  if (path.empty()) return std::string();
  std::ifstream file(path, std::ios::binary);
  if (!file) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be opened"));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return std::string(WithoutByteOrderMark(text));
}

}  // namespace

absl::StatusOr<ItemLine> ParseItemLine(const std::string& line) {
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (json.is_string()) return ItemLine{json.get<std::string>(), ""};
  if (json.is_object() && json.contains("text") && json["text"].is_string()) {
    return ItemLine{json["text"].get<std::string>(), json.contains("id") ? json["id"].dump() : ""};
  }
  return absl::InvalidArgumentError(
      "a JSON string expected, or an object with \"text\" and perhaps \"id\"");
}

std::string ToJson(const client::ItemScore& item, const std::string& id,
                   const std::vector<std::string>& labels) {
  Json json = {{"index", item.id}};
  if (!id.empty()) json["id"] = Json::parse(id);
  if (!item.status.ok()) {
    json["error"] = {{"code", absl::StatusCodeToString(item.status.code())},
                     {"reason", ErrorReason(item.status)},
                     {"message", item.status.message()}};
    return json.dump();
  }
  json["logprobs"] = Json::object();
  for (size_t i = 0; i < item.labels.size() && i < labels.size(); ++i) {
    json["logprobs"][labels[i]] = item.labels[i].logprob;
  }
  if (item.probability) json["probability"] = *item.probability;
  json["prompt_tokens"] = item.prompt_tokens;
  json["cached_prompt_tokens"] = item.cached_prompt_tokens;
  return json.dump();
}

int RunScore(const ScoreOptions& options, std::istream& in, std::ostream& out, std::ostream& err) {
  client::ClientOptions client_options;
  client_options.timeout = absl::Milliseconds(options.timeout_ms);
  client_options.wait_for_ready = false;
  auto client = RouterClient(options.address, options.access, client_options);
  if (!client.ok()) return Fail(client.status(), err);
  client::ScoreRequest request = options.request;
  absl::StatusOr<std::string> prefix = ReadPrefix(options.prefix_file);
  if (!prefix.ok()) return Fail(prefix.status(), err);
  request.prefix = *std::move(prefix);
  std::ifstream file;
  if (options.items_file != "-") {
    file.open(options.items_file, std::ios::binary);
    if (!file) {
      return Fail(
          absl::InvalidArgumentError(absl::StrCat(options.items_file, ": cannot be opened")), err);
    }
  }
  const auto stream = (*client)->Score(request, options.in_order);
  int64_t failed = 0;
  absl::Status input;
  {
    Progress progress(err, options.progress, "items", CountLines(options.items_file));
    ShutdownWatch ctrl_c([&stream] { stream->Cancel(); });
    ItemFeeder feeder(options.items_file == "-" ? in : file, *stream);
    while (const std::optional<client::ItemScore> item = stream->Next()) {
      out << ToJson(*item, feeder.TakeId(item->id), request.labels) << "\n";
      failed += item->status.ok() ? 0 : 1;
      progress.Advance(1);
    }
    input = feeder.status();
  }
  out << std::flush;
  if (!input.ok()) return Fail(input, err);
  if (!stream->status().ok()) return Fail(stream->status(), err);
  if (failed == 0) return kExitOk;
  err << "baton score: " << failed << " of " << stream->usage().items
      << " items have an error; their lines say why" << std::endl;
  return kExitFailure;
}

}  // namespace baton::cli
