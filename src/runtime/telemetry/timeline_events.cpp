// TimelineEvents builds nested bars and ordered ticks from records.
#include "runtime/telemetry/timeline_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstring>

#include "base/escape.h"
#include "data/reduce.h"
#include "schedule/schedule.h"

namespace fdl {
namespace {

// Not 0, which some viewers take for the idle process.
constexpr int kAgreementPid = 1;

// The viewers take the thread whose number is the process's for its main thread: the first group has it.
int thread_of_group(uint16_t number) { return number == 0 ? kAgreementPid : 1'000'000 + number; }

std::string upper(std::string_view text) {
  std::string result;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain = std::isalnum(byte) != 0;
    if (plain) result += static_cast<char>(std::toupper(byte));
    if (!plain && !result.empty() && result.back() != '_') result += '_';
  }
  return result;
}

std::string operation_name(const TraceRecord& record) {
  const auto kind = static_cast<RequestKind>(record.what);
  if (kind == RequestKind::allreduce && static_cast<Op>(record.op) == Op::adasum) return "ADASUM";
  if (kind == RequestKind::reduce_scatter) return "REDUCESCATTER";
  return upper(name_of(kind));
}

// "SHM_ALLREDUCE", "TCP_RING_ALLREDUCE"
std::string collective_name(const TraceRecord& record, std::string_view text) {
  const auto end = text.find('\0');
  std::string by = upper(text.substr(0, end));
  if (by == "SHARED_MEMORY") by = "SHM";
  const std::string algorithm = end == std::string_view::npos ? "" : upper(text.substr(end + 1));
  const auto collective = static_cast<Collective>(record.what);
  std::string name = collective == Collective::reduce_scatter ? "REDUCESCATTER" : upper(name_of(collective));
  if (!algorithm.empty()) name = algorithm + "_" + name;
  return by.empty() ? name : by + "_" + name;
}

std::string shape_text(std::string_view dimensions) {
  std::string text;
  for (std::size_t i = 0; i + 8 <= dimensions.size(); i += 8) {
    int64_t dimension = 0;
    std::memcpy(&dimension, dimensions.data() + i, 8);
    text += (text.empty() ? "" : ", ") + std::to_string(dimension);
  }
  return "[" + text + "]";
}

}  // namespace

TimelineEvents::TimelineEvents(int64_t start_ns, std::string_view process_label)
    : start_ns_(start_ns), process_label_(json_text(process_label)) {}

// Microseconds since the start, as the format requires.
std::string TimelineEvents::stamp(int64_t time_ns) const {
  const int64_t since = std::max<int64_t>(time_ns - start_ns_, 0);
  return fmt::format("{}.{:03}", since / 1000, since % 1000);
}

// As stamp(), but never before an earlier event of the same track: records of several threads may be out of order.
std::string TimelineEvents::ordered_stamp(Track& track, int64_t time_ns) const {
  track.last_ns = std::max(track.last_ns, time_ns);
  return stamp(track.last_ns);
}

void TimelineEvents::add(const TraceRecord& record, std::string_view text, std::string& out) {
  Group& group = group_of(record);
  const std::string_view name = text.substr(0, record.text_bytes);
  if (!begun_) {
    begun_ = true;
    out += fmt::format(R"({{"name":"process_name","ph":"M","pid":{},"args":{{"name":"agreement, {}"}}}})",
                       kAgreementPid, process_label_);
  }
  switch (record.kind) {
    case TraceKind::group:
      group.id = name;
      group.rank = static_cast<int>(record.value);
      group.size = static_cast<int>(record.subject);
      out += fmt::format(
          ",\n"
          R"({{"name":"thread_name","ph":"M","pid":{},"tid":{},"args":{{"name":"group {}"}}}})",
          kAgreementPid, thread_of_group(record.group), json_text(name));
      return;
    case TraceKind::submitted:
      return submitted(group, record, text, out);
    case TraceKind::ready:
      return ready(group, record, name, out);
    case TraceKind::decided:
      return decided(group, record, out);
    case TraceKind::absent:
      return absent(group, record, name, out);
    case TraceKind::locked:
      return locked(group, record, out);
    case TraceKind::readiness_flags:
      group.readiness_flags.resize(static_cast<std::size_t>(group.size));
      if (record.value < group.readiness_flags.size())
        group.readiness_flags[record.value].emplace_back(record.subject, record.time_ns);
      return;
    case TraceKind::begun:
      group.position = record.subject;
      return;
    case TraceKind::left:
      return left(group, record, name, out);
    case TraceKind::cycle:
      out += fmt::format(
          ",\n"
          R"({{"name":"CYCLE_START","ph":"i","s":"g","ts":{},"pid":{},"tid":{}}})",
          stamp(record.time_ns), kAgreementPid, thread_of_group(record.group));
      return;
    case TraceKind::bucket:
      group.running.clear();
      return;
    case TraceKind::runs:
      if (Track* track = in_flight(group, record.subject); track != nullptr && track->stage == Stage::operating) {
        group.running.push_back(track);
        if (std::exchange(track->in_activity, false)) finish(*track, record.time_ns, {}, out);
      }
      return;
    case TraceKind::activity:
      return activity(group, record, text, out);
    case TraceKind::completed:
      return completed(group, record, out);
  }
}

void TimelineEvents::add_dropped(uint64_t count, int64_t time_ns, std::string& out) {
  out += fmt::format(
      ",\n"
      R"({{"name":"DROPPED","ph":"i","s":"g","ts":{0},"pid":{1},"tid":{1},"args":{{"records":{2}}}}})",
      stamp(time_ns), kAgreementPid, count);
}

void TimelineEvents::end(int64_t time_ns, std::string& out) {
  for (auto& [number, group] : groups_) {
    for (auto& [name, track] : group.tracks) {
      close(*track, time_ns, {}, out);
    }
    if (std::exchange(group.locked, false)) {
      out += fmt::format(
          ",\n"
          R"({{"ph":"E","ts":{},"pid":{},"tid":{}}})",
          stamp(time_ns), kAgreementPid, thread_of_group(number));
    }
  }
}

// ---- tensors ----

TimelineEvents::Track& TimelineEvents::track_of(Group& group, std::string_view name, std::string& out) {
  auto& track = group.tracks[std::string(name)];
  if (track != nullptr) return *track;
  track = std::make_unique<Track>();
  track->pid = next_pid_++;
  const std::string suffix = group.id == "all" ? "" : fmt::format(" (group {})", json_text(group.id));
  out += fmt::format(
      ",\n"
      R"({{"name":"process_name","ph":"M","pid":{},"args":{{"name":"{}{}"}}}})",
      track->pid, json_text(name), suffix);
  out += fmt::format(
      ",\n"
      R"({{"name":"process_sort_index","ph":"M","pid":{0},"args":{{"sort_index":{0}}}}})",
      track->pid);
  return *track;
}

TimelineEvents::Track* TimelineEvents::in_flight(Group& group, uint64_t serial) {
  const auto found = group.in_flight.find(serial);
  return found == group.in_flight.end() ? nullptr : found->second;
}

void TimelineEvents::submitted(Group& group, const TraceRecord& record, std::string_view text, std::string& out) {
  Track& track = track_of(group, text.substr(0, record.text_bytes), out);
  if (track.serial != 0 || track.stage == Stage::operating) {  // the record of its end was dropped
    close(track, record.time_ns, {}, out);
    release(group, track);
  }
  track.serial = record.subject;
  track.submitted_ns = record.time_ns;
  track.operation = operation_name(record);
  track.args = fmt::format(R"("dtype":"{}","shape":"{}")", name_of(static_cast<Dtype>(record.value)),
                           shape_text(text.substr(record.text_bytes)));
  group.in_flight[record.subject] = &track;
  if (track.stage != Stage::idle) return;  // another rank was ready first, and its record opened the bar
  if (group.locked) {
    track.stage = Stage::deferred;  // the bar begins with the first rank that was ready, which is known later
    return;
  }
  negotiate(track, record.time_ns, out);
  if (group.rank != 0) tick(track, group.rank, record.time_ns, out);  // the root gets a `ready` record for itself too
}

void TimelineEvents::ready(Group& group, const TraceRecord& record, std::string_view name, std::string& out) {
  Track& track = track_of(group, name, out);
  const auto rank = static_cast<int>(record.value);
  if (track.stage == Stage::operating) {
    track.early.emplace_back(rank, record.time_ns);
    track.operation = operation_name(record);
    return;
  }
  if (track.stage == Stage::idle) track.operation = operation_name(record);
  if (track.stage == Stage::deferred) negotiate(track, track.submitted_ns, out);
  if (track.stage == Stage::idle) negotiate(track, record.time_ns, out);
  tick(track, rank, record.time_ns, out);
}

void TimelineEvents::decided(Group& group, const TraceRecord& record, std::string& out) {
  Track* track = in_flight(group, record.subject);
  if (track == nullptr) return;
  if (group.locked) {
    tick_from_readiness_flags(group, *track, out);
  } else if (track->stage == Stage::deferred) {
    negotiate(*track, track->submitted_ns, out);
  }
  if (track->stage == Stage::negotiating) operate(*track, record.time_ns, out);
}

// This rank has joined, or has not submitted the tensor: it runs nothing for it, so the bar ends.
void TimelineEvents::absent(Group& group, const TraceRecord& record, std::string_view name, std::string& out) {
  const auto found = group.tracks.find(std::string(name));
  if (found == group.tracks.end() || found->second->serial != 0) return;
  close(*found->second, record.time_ns, {}, out);
}

void TimelineEvents::activity(Group& group, const TraceRecord& record, std::string_view text, std::string& out) {
  std::string name;
  switch (static_cast<Activity>(record.value)) {
    case Activity::none:
      break;
    case Activity::pack:
      name = "MEMCPY_IN_FUSION_BUFFER";
      break;
    case Activity::collective:
      name = collective_name(record, text);
      break;
    case Activity::adasum:
      name = "ADASUM_ALLREDUCE";
      break;
    case Activity::unpack:
      name = "MEMCPY_OUT_FUSION_BUFFER";
      break;
  }
  for (Track* track : group.running) {
    if (track->stage == Stage::operating) next_activity(*track, name, record.time_ns, out);
  }
}

void TimelineEvents::completed(Group& group, const TraceRecord& record, std::string& out) {
  Track* track = in_flight(group, record.subject);
  if (track == nullptr) return;
  const auto code = static_cast<Code>(record.value);
  close(*track, record.time_ns, code == Code::ok ? std::string_view() : name_of(code), out);
  release(group, *track);
  const auto early = std::exchange(track->early, {});
  if (early.empty()) return;
  negotiate(*track, early.front().second, out);
  for (const auto& [rank, time_ns] : early) tick(*track, rank, time_ns, out);
}

void TimelineEvents::release(Group& group, Track& track) {
  group.in_flight.erase(track.serial);
  std::erase(group.running, &track);
  track.serial = 0;
}

// ---- the locked order ----

void TimelineEvents::locked(Group& group, const TraceRecord& record, std::string& out) {
  if (group.locked) left(group, record, "", out);
  group.locked = true;
  group.readiness_flags.assign(static_cast<std::size_t>(group.size), {});
  out += fmt::format(
      ",\n"
      R"({{"name":"LOCKED_ORDER","ph":"B","ts":{},"pid":{},"tid":{},"args":{{"epoch":{},"buckets":{}}}}})",
      stamp(record.time_ns), kAgreementPid, thread_of_group(record.group), record.subject, record.value);
}

void TimelineEvents::left(Group& group, const TraceRecord& record, std::string_view why, std::string& out) {
  if (!std::exchange(group.locked, false)) return;
  out += fmt::format(
      ",\n"
      R"({{"ph":"E","ts":{},"pid":{},"tid":{},"args":{{"rounds":{},"left because":"{}"}}}})",
      stamp(record.time_ns), kAgreementPid, thread_of_group(record.group), record.subject, json_text(why));
  for (const auto& [serial, track] : group.in_flight) {
    if (track->stage != Stage::deferred) continue;
    negotiate(*track, track->submitted_ns, out);
    if (group.rank != 0) tick(*track, group.rank, track->submitted_ns, out);
  }
}

// Writes a tick for each rank that was ready for the position that has just begun, at the time when this rank first
// read it in the readiness flags.
void TimelineEvents::tick_from_readiness_flags(Group& group, Track& track, std::string& out) {
  std::vector<std::pair<int64_t, int>> ticks;
  for (std::size_t rank = 0; rank < group.readiness_flags.size(); ++rank) {
    auto& changes = group.readiness_flags[rank];
    while (!changes.empty() && changes.front().first <= group.position) changes.pop_front();
    if (!changes.empty()) ticks.emplace_back(changes.front().second, static_cast<int>(rank));
  }
  std::ranges::sort(ticks);
  int64_t since = track.submitted_ns;
  if (!ticks.empty()) since = std::min(since, ticks.front().first);
  if (track.stage == Stage::deferred) negotiate(track, since, out);
  for (const auto& [time_ns, rank] : ticks) tick(track, rank, time_ns, out);
}

// ---- bars and ticks ----

void TimelineEvents::negotiate(Track& track, int64_t time_ns, std::string& out) {
  begin(track, "NEGOTIATE_" + track.operation, time_ns, out);
  track.stage = Stage::negotiating;
  track.ticked.clear();
}

void TimelineEvents::tick(Track& track, int rank, int64_t time_ns, std::string& out) {
  const auto at = static_cast<std::size_t>(rank);
  if (track.stage != Stage::negotiating) return;
  if (track.ticked.size() <= at) track.ticked.resize(at + 1, false);
  if (track.ticked[at]) return;  // recorded already: by message, or from the readiness flags
  track.ticked[at] = true;
  out += fmt::format(
      ",\n"
      R"({{"name":"{0}","ph":"X","ts":{1},"dur":0,"pid":{2},"tid":{2}}})",
      rank, ordered_stamp(track, time_ns), track.pid);
}

void TimelineEvents::operate(Track& track, int64_t time_ns, std::string& out) {
  finish(track, time_ns, {}, out);
  begin(track, track.operation, time_ns, out);
  begin(track, "QUEUE", time_ns, out);
  track.in_activity = true;
  track.stage = Stage::operating;
}

void TimelineEvents::next_activity(Track& track, std::string_view name, int64_t time_ns, std::string& out) {
  if (track.in_activity) finish(track, time_ns, {}, out);
  track.in_activity = !name.empty();
  if (track.in_activity) begin(track, name, time_ns, out);
}

// Ends all open bars of the track, with its dtype, shape and error.
void TimelineEvents::close(Track& track, int64_t time_ns, std::string_view error, std::string& out) {
  if (std::exchange(track.in_activity, false)) finish(track, time_ns, {}, out);
  if (track.stage == Stage::idle) return;
  if (track.stage == Stage::deferred) negotiate(track, track.submitted_ns, out);
  std::string args = track.args;
  if (!error.empty()) args += fmt::format(R"({}"error":"{}")", args.empty() ? "" : ",", error);
  finish(track, time_ns, args, out);
  track.stage = Stage::idle;
}

void TimelineEvents::begin(Track& track, std::string_view name, int64_t time_ns, std::string& out) {
  out += fmt::format(
      ",\n"
      R"({{"name":"{0}","ph":"B","ts":{1},"pid":{2},"tid":{2}}})",
      name, ordered_stamp(track, time_ns), track.pid);
}

void TimelineEvents::finish(Track& track, int64_t time_ns, std::string_view args, std::string& out) {
  out += fmt::format(
      ",\n"
      R"({{"ph":"E","ts":{0},"pid":{1},"tid":{1})",
      ordered_stamp(track, time_ns), track.pid);
  out += args.empty() ? std::string("}") : fmt::format(",\"args\":{{{}}}}}", args);
}

}  // namespace fdl
