// This file holds the log sink; the default sink is spdlog.
#include "base/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <new>

#include "base/mutex.h"

namespace fdl {
namespace {

// Relaxed access is enough: the level orders no other memory.
std::atomic<int> threshold{static_cast<int>(LogLevel::warning)};

// The sink is shared so that write_log() can copy the pointer under the lock and call it without the lock. A sink that
// is replaced meanwhile is destroyed after its last call.
struct Chosen {
  Mutex mutex;
  std::shared_ptr<const LogSink> sink FDL_GUARDED_BY(mutex);
};
Chosen& chosen() {
  static auto& instance = *new Chosen;  // intentionally leaked: threads may log while the process exits
  return instance;
}

spdlog::logger& standard_logger() {
  // Intentionally leaked: a thread may still log while static objects are destroyed.
  static auto* logger = [] {
    auto* made = new spdlog::logger("farandole", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    made->set_pattern("farandole %l %P: %v");
    made->set_level(spdlog::level::trace);
    // Each line is flushed, so that the last lines before a crash are not lost.
    made->flush_on(spdlog::level::trace);
    return made;
  }();
  return *logger;
}

}  // namespace

void set_log_sink(LogSink new_sink) {
  Chosen& now = chosen();
  MutexLock lock(now.mutex);
  now.sink = new_sink ? std::make_shared<const LogSink>(std::move(new_sink)) : nullptr;
}

void set_log_level(LogLevel level) { threshold.store(static_cast<int>(level), std::memory_order_relaxed); }

bool log_enabled(LogLevel level) { return static_cast<int>(level) >= threshold.load(std::memory_order_relaxed); }

void write_log(LogLevel level, std::string_view line) {
  std::shared_ptr<const LogSink> sink;
  {
    Chosen& now = chosen();
    MutexLock lock(now.mutex);
    sink = now.sink;
  }
  // The sink runs without the lock, so it may log or replace itself.
  if (sink) return (*sink)(level, line);
  standard_logger().log(static_cast<spdlog::level::level_enum>(level), spdlog::string_view_t(line.data(), line.size()));
}

void format_log(LogLevel level, fmt::string_view format, fmt::format_args arguments) {
  try {
    write_log(level, fmt::vformat(format, arguments));
  } catch (const std::bad_alloc&) {
    constexpr std::string_view kLost = "farandole: a line of the log is lost: this process is short of memory\n";
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kLost.data(), kLost.size());
  }
}

}  // namespace fdl
