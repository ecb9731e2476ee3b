// The output of ranks: Supervisor reads a part of it in each turn, and ends the job when its reader has ended.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

#include "cli/run/supervisor.h"

namespace fdl {
namespace {

constexpr std::size_t kReadBytes = 1 << 16;  // of one stream in one turn: what a pipe holds

}  // namespace

int Supervisor::stream_fd(const Stream& stream) const {
  const ChildProcess& process = children_[stream.child].process;
  return stream.is_error ? process.error_fd() : process.output_fd();
}

// A part in each turn: signals, ends of ranks and other ranks have theirs while one rank writes without a pause.
void Supervisor::serve_stream(std::size_t index) {
  const Stream& stream = streams_[index];
  if (!stream.open || stream.is_paused) return;
  children_[stream.child].output.is_full(stream.kind()) ? pause(index) : read_stream(index, kReadBytes);
}

// At the end of the stream the last line is written even without a line end.
void Supervisor::read_stream(std::size_t index, std::size_t most_bytes) {
  Stream& stream = streams_[index];
  RankOutput& output = children_[stream.child].output;
  std::array<char, kReadBytes> buffer;
  for (std::size_t left = most_bytes; stream.open && left > 0;) {
    const ssize_t count = ::read(stream_fd(stream), buffer.data(), std::min(left, buffer.size()));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) return;
    if (count > 0) {
      output.take(stream.kind(), std::string_view(buffer.data(), static_cast<std::size_t>(count)));
      left -= static_cast<std::size_t>(count);
      continue;
    }
    output.finish(stream.kind());
    if (!stream.is_paused) poller_.remove(stream_fd(stream));
    stream.open = false;
    ChildProcess& process = children_[stream.child].process;
    stream.is_error ? process.close_error() : process.close_output();
  }
}

// Reads what the rank wrote before it ended, and its last line although that may have no end. A grandchild may hold the
// pipe open and write on.
void Supervisor::drain_stream(std::size_t index) {
  const Stream& stream = streams_[index];
  if (!stream.open) return;
  int waiting = 0;
  if (::ioctl(stream_fd(stream), FIONREAD, &waiting) != 0) waiting = 0;
  read_stream(index, static_cast<std::size_t>(waiting) + 1);  // one more, which is the end of the stream
  if (stream.open) children_[stream.child].output.finish(stream.kind());
}

// Removed from the set, because that would report the end of a writer again and again.
void Supervisor::pause(std::size_t index) {
  streams_[index].is_paused = true;
  poller_.remove(stream_fd(streams_[index]));
}

void Supervisor::serve_output() {
  options_.launcher_output->clear();
  for (std::size_t index = 0; index < streams_.size(); ++index) {
    Stream& stream = streams_[index];
    if (!stream.open || !stream.is_paused) continue;
    if (children_[stream.child].output.is_full(stream.kind())) continue;
    stream.is_paused = !poller_.add(stream_fd(stream), index).ok();
  }
  if (options_.launcher_output->has_lost_reader()) end_without_reader();
}

// `farandole run ... | head`: as any program in a pipe, the job ends when what it prints is not wanted any more.
void Supervisor::end_without_reader() {
  if (failed_ || (options_.job && !any_runs() && options_.job->has_succeeded())) return;
  if (options_.job) options_.job->stop("the reader of its launcher's output has ended");
  drain(128 + SIGPIPE, "the reader of the output has ended");
}

}  // namespace fdl
