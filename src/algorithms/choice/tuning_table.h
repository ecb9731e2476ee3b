// TuningTable holds the measured time of each way of running a collective. Its text form can be read and edited:
//
//   farandole tuning 1
//   # collective  transport  ranks  bytes    microseconds of each way
//   allreduce     tcp        4      65536    ring=210.5 halving_doubling=120.25
//   allreduce     shm+tcp    2x4    65536    whole=90.1 ring=310
//   buckets       tcp        4      up_to=8388608 alone_above=524288
//
// 2x4 means two hosts with four ranks each. A way is an algorithm of the catalog, or `whole`: the collective runs as a
// whole, without a schedule (shared memory on one host; on several hosts, shared memory inside and schedules between).
// Bytes are those of the whole vector, or of all chunks of the side that has one for each rank.
// A row `buckets` is a cut of the buckets of named tensors that a job has tuned.
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

  // Small tensors share buckets of up to bucket_bytes, and larger ones than alone_bytes run alone.
  struct Cut {
    std::size_t bucket_bytes = 0;
    std::size_t alone_bytes = 0;
  };

  // `source` is the name of the text in errors: a file, or "the built-in table".
  static Result<TuningTable> parse(std::string_view text, std::string_view source);
  // The table of this version. It has no rows: on the machines measured so far, no difference from the whole collective
  // and the model exceeded the noise.
  static const TuningTable& built_in();

  // Writes the rows in one fixed order, so equal tables have equal text.
  std::string text() const;
  // Of the times alone, because only the root of a group uses the cuts: "12 rows, 9c1185a5"; "none" without times.
  std::string fingerprint() const;
  bool empty() const { return rows_.empty() && cuts_.empty(); }

  // Replaces the row of this place and size.
  void set(const Place& place, int64_t bytes, Ways ways) { rows_[place][bytes] = std::move(ways); }
  // Takes over the places of `newer`. All older rows of such a place are dropped, because times of different
  // measurements are not comparable.
  void merge(const TuningTable& newer);
  // Returns null if nothing was measured for this place.
  const Sizes* sizes_of(const Place& place) const;
  const std::map<Place, Sizes>& rows() const { return rows_; }

  // The collective of the place is ignored.
  void set_cut(Place place, Cut cut) {
    place.collective = Collective::allreduce;
    cuts_[std::move(place)] = cut;
  }
  std::optional<Cut> cut_of(Place place) const {
    place.collective = Collective::allreduce;
    const auto found = cuts_.find(place);
    return found == cuts_.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  std::string times_text() const;

  std::map<Place, Sizes> rows_;
  std::map<Place, Cut> cuts_;
};

// Returns the expected time of `way`: interpolated linearly between the two measured sizes around `bytes`, and
// proportional to the bytes beyond the largest one. Returns nothing if `way` was not measured at those sizes.
std::optional<double> measured_us(const TuningTable::Sizes& sizes, std::string_view way, int64_t bytes);

// "2", "2x4".
std::string ranks_text(int hosts, int ranks_per_host);

}  // namespace fdl
