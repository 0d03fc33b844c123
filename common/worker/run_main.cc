#include "common/worker/run_main.h"

#include <CLI/CLI.hpp>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/base/command_line.h"
#include "common/base/exit_code.h"
#include "common/base/file_limit.h"
#include "common/base/log.h"
#include "common/base/malloc_settings.h"
#include "common/base/model_directory.h"
#include "common/base/shutdown_signal.h"
#include "common/base/version.h"

namespace baton::worker {

int RunMain(int argc, char** argv, const std::string& description, const std::string& component,
            const StartWorker& start, const std::function<void(CLI::App&)>& add_flags) {
  KeepFreedMemory();
  RaiseFileLimit();
  ShutdownSignal signals;  // before any thread
  // As router/main.cc.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  CLI::App app(description);
  WorkerOptions options;
  app.set_version_flag("--version", VersionLine(absl::StrCat("baton-", component, "-worker")));
  AddWorkerFlags(app, options);
  if (add_flags != nullptr) add_flags(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return ReportParseError(app, error);
  }
  LogLevel level;
  if (ParseLogLevel(options.log_level, &level)) SetLogLevel(level);
  LogFormat format;
  if (ParseLogFormat(options.log_format, &format)) SetLogFormat(format);
  SetLogComponent(options.worker_id.empty() ? component : options.worker_id);
  if (absl::Status status = Validate(options); !status.ok()) {
    std::cerr << status.message() << "\n";
    return kExitUsage;
  }
  absl::StatusOr<ModelDirectory> model = FindModel(options.model_dir);
  if (!model.ok()) {
    std::cerr << "--model: " << model.status().message() << "\n";
    return kExitUsage;
  }
  options.model_dir = std::move(model->path);
  options.model_name = std::move(model->id);
  absl::StatusOr<std::unique_ptr<Worker>> worker = start(options);
  if (!worker.ok()) {
    BATON_LOG(Error) << "cannot start: " << worker.status().message();
    return ExitCodeOfStart(worker.status());
  }
  signals.DrainOnSignal(
      [&] {
        BATON_LOG(Info) << "draining for up to " << options.drain_grace_ms
                        << " ms; a second signal stops at once";
        (*worker)->Drain(absl::Milliseconds(options.drain_grace_ms));
      },
      [&] { (*worker)->Stop(); });
  (*worker)->Stop();
  BATON_LOG(Info) << "stopped";
  return kExitOk;
}

}  // namespace baton::worker
