// TuningTable holds the measured time of each way of running a collective. Its text form can be read and edited:
//
//   farandole tuning 1
//   # collective  transport  ranks  bytes    microseconds of each way
//   allreduce     tcp        4      65536    ring=210.5 halving_doubling=120.25
//   allreduce     shm+tcp    2x4    65536    whole=90.1 ring=310
//
// 2x4 means two hosts with four ranks each. A way is an algorithm of the catalog, or `whole`: the collective runs as a
// whole, without a schedule (shared memory on one host; on several hosts, shared memory inside and schedules between).
// Bytes are those of the whole vector, or of all chunks of the side that has one for each rank.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/status.h"
#include "schedule/schedule.h"

namespace fdl {

class TuningTable {
 public:
  // The collective and the shape of the group. A group whose hosts have different numbers of ranks has no place.
  struct Place {
    Collective collective = Collective::allreduce;
    std::string transport;  // "shm", "tcp", "shm+tcp"
    int hosts = 1;
    int ranks_per_host = 1;
    auto operator<=>(const Place&) const = default;
  };
  using Ways = std::map<std::string, double, std::less<>>;  // microseconds by way
  using Sizes = std::map<int64_t, Ways>;                    // by bytes

  // `source` is the name of the text in errors: a file, or "the built-in table".
  static Result<TuningTable> parse(std::string_view text, std::string_view source);
  // The table of this version. It has no rows: on the machines measured so far, no difference from the whole collective
  // and the model exceeded the noise.
  static const TuningTable& built_in();

  // Writes the rows in one fixed order, so equal tables have equal text.
  std::string text() const;
  // "12 rows, 9c1185a5"; "none" for an empty one.
  std::string fingerprint() const;
  bool empty() const { return rows_.empty(); }

  // Replaces the row of this place and size.
  void set(const Place& place, int64_t bytes, Ways ways) { rows_[place][bytes] = std::move(ways); }
  // Takes over the places of `newer`. All older rows of such a place are dropped, because times of different
  // measurements are not comparable.
  void merge(const TuningTable& newer);
  // Returns null if nothing was measured for this place.
  const Sizes* sizes_of(const Place& place) const;
  const std::map<Place, Sizes>& rows() const { return rows_; }

 private:
  std::map<Place, Sizes> rows_;
};

// Returns the expected time of `way`: interpolated linearly between the two measured sizes around `bytes`, and
// proportional to the bytes beyond the largest one. Returns nothing if `way` was not measured at those sizes.
std::optional<double> measured_us(const TuningTable::Sizes& sizes, std::string_view way, int64_t bytes);

// "2", "2x4".
std::string ranks_text(int hosts, int ranks_per_host);

}  // namespace fdl
