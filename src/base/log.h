// Logging writes lines through one sink, which the application may replace. A line states one fact with its numbers.
// Hot loops do not log. Any thread may call these functions.
#pragma once

#include <fmt/core.h>

#include <functional>
#include <string_view>

namespace fdl {

// The numbers are those of spdlog and of fdl_log_level, so levels are converted by a cast; 5 is spdlog's "critical",
// which the library does not use.
enum class LogLevel : int { trace = 0, debug = 1, info = 2, warning = 3, error = 4, off = 6 };

// Called in the thread that logs, by several threads at once. The line has no final newline and is valid during the
// call only.
using LogSink = std::function<void(LogLevel, std::string_view line)>;

// An empty sink restores the default, which writes "farandole <level> [rank]: <line>" to the standard error stream.
void set_log_sink(LogSink sink);
void set_log_level(LogLevel level);
bool log_enabled(LogLevel level);
void write_log(LogLevel level, std::string_view line);
// Formats the line and writes it. A process that is short of memory loses the line, and goes on.
void format_log(LogLevel level, fmt::string_view format, fmt::format_args arguments);

// The level is checked before the text is formatted: a suppressed line costs one relaxed load and the arguments.
template <typename... Args>
void log_at(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) format_log(level, format, fmt::make_format_args(args...));
}
template <typename... Args>
void log_debug(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::debug, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::info, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::warning, format, std::forward<Args>(args)...);
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_at(LogLevel::error, format, std::forward<Args>(args)...);
}

}  // namespace fdl
