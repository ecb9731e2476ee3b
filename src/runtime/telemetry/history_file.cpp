// Fields are copied out of the bytes one by one, because the bytes have no alignment and their owner may write them.
#include "runtime/telemetry/history_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <map>

#include "agree/negotiation/message.h"
#include "data/dtype.h"
#include "data/reduce.h"
#include "schedule/schedule.h"
#include "system/files/small_file.h"

namespace fdl {
namespace {

// The report lists the ranks of a job.
constexpr int kLargestJob = 65536;

template <typename T>
T field(ConstBytes bytes, std::size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <std::size_t N>
std::string text_at(ConstBytes bytes, std::size_t offset, const std::array<char, N>&) {
  const char* text = reinterpret_cast<const char*>(bytes.data() + offset);
  return std::string(text, ::strnlen(text, N));
}

// The text of a member of a structure, whose name gives offset and length.
#define FDL_TEXT(bytes, Type, member) text_at(bytes, offsetof(Type, member), decltype(Type::member){})

// Turns the processor's counter into nanoseconds since 1970, by two moments at which both were read.
class Clock {
 public:
  explicit Clock(ConstBytes head)
      : first_ticks_(field<uint64_t>(head, offsetof(HistoryHead, first_ticks))),
        last_ticks_(field<uint64_t>(head, offsetof(HistoryHead, last_ticks))),
        first_ns_(field<int64_t>(head, offsetof(HistoryHead, first_ns))),
        last_ns_(field<int64_t>(head, offsetof(HistoryHead, last_ns))),
        realtime_ns_(field<int64_t>(head, offsetof(HistoryHead, realtime_ns))) {}

  bool is_valid() const {
    constexpr int64_t kMost = int64_t{1} << 62;
    return first_ns_ >= 0 && last_ns_ >= first_ns_ && last_ns_ < kMost && last_ticks_ >= first_ticks_ &&
           realtime_ns_ >= 0 && realtime_ns_ < kMost && std::isfinite(ns_per_tick());
  }
  int64_t at(uint64_t ticks) const {
    const double since = static_cast<double>(static_cast<int64_t>(ticks - first_ticks_)) * ns_per_tick();
    constexpr double kMost = 4e18;
    return static_cast<int64_t>(std::clamp(static_cast<double>(realtime_ns_) + since, 0.0, kMost));
  }
  int64_t last() const { return at(last_ticks_); }

 private:
  double ns_per_tick() const {
    const double ticks = static_cast<double>(last_ticks_ - first_ticks_);
    return ticks == 0 ? 1 : static_cast<double>(last_ns_ - first_ns_) / ticks;
  }

  uint64_t first_ticks_;
  uint64_t last_ticks_;
  int64_t first_ns_;
  int64_t last_ns_;
  int64_t realtime_ns_;
};

Status damaged(const std::string& how) {
  return Status(Code::invalid_argument, "it is damaged, or of another version: " + how);
}

// Returns an empty text for a kind that does not exist.
std::string kind_text(uint8_t kind, bool is_named) {
  if (is_named) return is_request_kind(kind) ? std::string(name_of(static_cast<RequestKind>(kind))) : "";
  if (kind == kHistorySend) return "send";
  if (kind == kHistoryRecv) return "recv";
  return kind < kCollectiveCount ? std::string(name_of(static_cast<Collective>(kind))) : "";
}

bool has_op(const std::string& kind) { return kind == "allreduce" || kind == "reduce" || kind == "reduce_scatter"; }

Result<RecordedOperation> read_record(ConstBytes record, const Clock& clock,
                                      const std::map<uint32_t, uint64_t>& groups) {
  const auto what = field<uint32_t>(record, offsetof(HistoryRecord, what));
  const auto kind = static_cast<uint8_t>(what);
  const auto dtype = static_cast<uint8_t>(what >> 8);
  const auto op = static_cast<uint8_t>(what >> 16);
  const auto outcome = field<int32_t>(record, offsetof(HistoryRecord, outcome));
  RecordedOperation read;
  read.serial = field<uint64_t>(record, offsetof(HistoryRecord, serial));
  read.is_named = (what >> 24 & kHistoryNamed) != 0;
  read.kind = kind_text(kind, read.is_named);
  if (read.kind.empty()) return damaged(fmt::format("operation {} has kind {}", read.serial, kind));
  if (!is_dtype(dtype)) return damaged(fmt::format("operation {} has dtype {}", read.serial, dtype));
  if (!is_op(op)) return damaged(fmt::format("operation {} has reduction {}", read.serial, op));
  if (outcome < 0 || outcome > static_cast<int>(Code::internal))
    return damaged(fmt::format("operation {} has outcome {}", read.serial, outcome));
  if (has_op(read.kind)) read.op = name_of(static_cast<Op>(op));
  const bool is_message = !read.is_named && kind >= kHistorySend;
  read.dtype = is_message ? "bytes" : read.kind == "barrier" || read.kind == "join" ? "" : name_of(Dtype{dtype});
  const auto group = groups.find(field<uint32_t>(record, offsetof(HistoryRecord, group)));
  if (group != groups.end()) read.group = group->second;
  read.sequence = field<uint64_t>(record, offsetof(HistoryRecord, sequence));
  read.count = field<uint64_t>(record, offsetof(HistoryRecord, count));
  read.root = field<int32_t>(record, offsetof(HistoryRecord, root));
  if (read.is_named) read.name = FDL_TEXT(record, HistoryRecord, name);
  read.called_ns = clock.at(field<uint64_t>(record, offsetof(HistoryRecord, called)));
  const auto begun = field<uint64_t>(record, offsetof(HistoryRecord, begun));
  const auto ended = field<uint64_t>(record, offsetof(HistoryRecord, ended));
  if (begun != 0) read.begun_ns = clock.at(begun);
  if (ended != 0) {
    read.ended_ns = clock.at(ended);
    read.outcome = static_cast<Code>(outcome);
  }
  return read;
}

Status check_head(ConstBytes bytes) {
  if (bytes.size() < sizeof(HistoryHead) ||
      std::memcmp(bytes.data(), kHistoryMagic.data(), kHistoryMagic.size()) != 0) {
    return Status(Code::invalid_argument, "it is no history of operations (farandole-history-<job>-<rank>.bin)");
  }
  const auto groups = field<uint32_t>(bytes, offsetof(HistoryHead, groups));
  const auto records = field<uint32_t>(bytes, offsetof(HistoryHead, records));
  if (groups != History::kGroups || records != History::kRecords) {
    return damaged(fmt::format("it has {} groups and {} records; expected {} and {}", groups, records,
                               uint32_t{History::kGroups}, uint64_t{History::kRecords}));
  }
  if (bytes.size() != History::kBytes) {
    return damaged(fmt::format("it has {} bytes; expected {}", bytes.size(), std::size_t{History::kBytes}));
  }
  const auto rank = field<int32_t>(bytes, offsetof(HistoryHead, rank));
  const auto size = field<int32_t>(bytes, offsetof(HistoryHead, size));
  if (size < 1 || size > kLargestJob || rank < 0 || rank >= size)
    return damaged(fmt::format("it is of rank {} of {}", rank, size));
  if (!Clock(bytes).is_valid()) return damaged("its times make no sense");
  return {};
}

}  // namespace

std::string RecordedOperation::signature() const {
  std::string text = kind;
  if (is_named) text += " '" + name + "'";
  if (!dtype.empty()) text += fmt::format(" of {} {}", count, dtype);
  if (!op.empty()) text += " (" + op + ")";
  if (kind == "send") text += fmt::format(" to {}", root);
  if (kind == "recv") text += fmt::format(" from {}", root);
  if (kind == "broadcast" || kind == "reduce" || kind == "gather" || kind == "scatter")
    text += fmt::format(" with root {}", root);
  return text;
}

const RecordedOperation* RankHistory::find(uint64_t group, uint64_t sequence) const {
  for (const RecordedOperation& one : operations) {
    if (one.group == group && one.sequence == sequence && !one.is_named) return &one;
  }
  return nullptr;
}

Result<RankHistory> read_history(ConstBytes bytes) {
  FDL_RETURN_IF_ERROR(check_head(bytes));
  const Clock clock(bytes);
  RankHistory history;
  history.rank = field<int32_t>(bytes, offsetof(HistoryHead, rank));
  history.size = field<int32_t>(bytes, offsetof(HistoryHead, size));
  history.process_id = field<int32_t>(bytes, offsetof(HistoryHead, process_id));
  history.host = FDL_TEXT(bytes, HistoryHead, host);
  history.job = FDL_TEXT(bytes, HistoryHead, job);
  history.count = field<uint64_t>(bytes, offsetof(HistoryHead, count));
  history.last_ns = clock.last();

  std::map<uint32_t, uint64_t> groups;  // fingerprints by number
  for (uint32_t i = 0; i < History::kGroups; ++i) {
    const ConstBytes group = bytes.subspan(sizeof(HistoryHead) + i * sizeof(HistoryGroup), sizeof(HistoryGroup));
    const auto fingerprint = field<uint64_t>(group, offsetof(HistoryGroup, fingerprint));
    if (fingerprint == 0) continue;
    groups[field<uint32_t>(group, offsetof(HistoryGroup, number))] = fingerprint;
    history.groups.push_back({fingerprint, FDL_TEXT(group, HistoryGroup, name)});
  }
  const std::size_t begin = sizeof(HistoryHead) + History::kGroups * sizeof(HistoryGroup);
  for (uint64_t i = 0; i < History::kRecords; ++i) {
    const ConstBytes record = bytes.subspan(begin + i * sizeof(HistoryRecord), sizeof(HistoryRecord));
    const auto serial = field<uint64_t>(record, offsetof(HistoryRecord, serial));
    if (serial == 0) continue;
    if (serial % History::kRecords != i) return damaged(fmt::format("operation {} is in a wrong place", serial));
    FDL_ASSIGN_OR_RETURN(RecordedOperation operation, read_record(record, clock, groups));
    history.operations.push_back(std::move(operation));
  }
  std::ranges::sort(history.operations, {}, &RecordedOperation::serial);
  return history;
}

Result<RankHistory> read_history_file(const std::string& path) {
  FDL_ASSIGN_OR_RETURN(const auto text, read_small_file(path, History::kBytes));
  if (!text) return Status::from_errno("opening " + path, ENOENT);
  auto history = read_history(bytes_of(*text));
  if (!history.ok()) return Status(history.status().code(), path + ": " + history.status().text());
  return history;
}

}  // namespace fdl
