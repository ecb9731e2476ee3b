// LauncherOutput is all that `farandole run` writes to while ranks run: standard output, standard error, and the files
// of the ranks.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "base/status.h"
#include "cli/run/output/output_queue.h"
#include "system/event.h"

namespace fdl {

class LauncherOutput {
 public:
  enum class Stream { output = 0, error = 1 };
  using File = std::shared_ptr<const OutputTarget>;

  // Starts the threads that write, and leads the log of this process through them. The object is intentionally leaked:
  // a thread may write while the process exits. Call it once, after the last fork() without exec().
  static Result<LauncherOutput*> open();

  // These append whole lines. Any thread may call them; they do not block.
  void put(Stream stream, std::string_view lines);
  void put(const File& file, std::string_view lines) { files_->put(file, lines); }
  // Opens a file in order to append to it. If that fails, a line of the log says so, and the file takes nothing.
  File open_file(const std::string& path);

  // While it is full, the ranks' output for it is not read, so that the ranks wait as they would for a slow pipe.
  bool is_full(Stream stream) const { return queue_of(stream).is_full(); }
  bool files_are_full() const { return files_->is_full(); }
  // Readable when something that was full has space again, and when a reader has ended; until clear().
  int fd() const { return changed_.fd(); }
  void clear() const { changed_.clear(); }
  // The reader of standard output or standard error, a pipe, has closed it.
  bool has_lost_reader() const { return has_lost_reader_.load(std::memory_order_relaxed); }

  // False: the deadline has passed before all was written.
  bool wait_until_written(Deadline deadline);
  // The exit code of the launcher if its ranks have ended with `code`: lost output is a failure.
  int code_after_output(int code) const;

 private:
  explicit LauncherOutput(Event changed) : changed_(std::move(changed)) {}
  Status start();
  OutputQueue& queue_of(Stream stream) const { return stream == Stream::output ? *output_ : *error_; }
  void note(const OutputTarget& target, int error);
  void report_loss(const OutputTarget& target, int error);

  const Event changed_;
  std::array<File, 2> standard_;  // indexed by Stream
  std::shared_ptr<OutputQueue> output_;
  // The same queue if both are the same terminal, pipe or file: there the order of their lines is visible.
  std::shared_ptr<OutputQueue> error_;
  std::unique_ptr<OutputQueue> files_;
  std::atomic<bool> has_lost_reader_{false};
  std::atomic<bool> has_lost_lines_{false};
  std::array<std::atomic<bool>, 2> is_reported_{};  // a loss of standard output; one of files
};

// Opens a file in order to append to it; it may not be a pipe, whose reader could hold up all ranks. `error` is the
// errno of a failure.
Result<UniqueFd> open_output_file(const std::string& path, int& error);

}  // namespace fdl
