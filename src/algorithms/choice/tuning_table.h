// TuningTable: what each way of running a collective took where it was measured; text that people can read and edit.
//
//   farandole tuning 1
//   # collective  transport  ranks  bytes    microseconds of each way
//   allreduce     tcp        4      65536    ring=210.5 halving_doubling=120.25
//   allreduce     shm+tcp    2x4    65536    whole=90.1 ring=310
//
// 2x4: two hosts with four ranks each. A way is an algorithm of the catalog, or `whole`: whoever runs the collective as
// a whole, without a schedule (shared memory on one host; on several, shared memory inside and schedules between).
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

inline constexpr std::string_view kWhole = "whole";

class TuningTable {
 public:
  // Which collective, and between whom. A group whose hosts hold different numbers of ranks has none.
  struct Place {
    Collective collective = Collective::allreduce;
    std::string transport;  // "shm", "tcp", "shm+tcp"
    int hosts = 1;
    int ranks_per_host = 1;
    auto operator<=>(const Place&) const = default;
  };
  using Ways = std::map<std::string, double, std::less<>>;  // microseconds by way
  using Sizes = std::map<int64_t, Ways>;                    // by bytes

  // `source` is what errors name: a file, or "the built-in table".
  static Result<TuningTable> parse(std::string_view text, std::string_view source);
  // What this version brings along: no row yet, for on the machines that it was measured on nothing but noise spoke
  // against the whole collective and the model.
  static const TuningTable& built_in();

  // The same rows are the same text, whatever they were read from.
  std::string text() const;
  // "12 rows, 9c1185a5"; "none" for an empty one.
  std::string fingerprint() const;
  bool empty() const { return rows_.empty(); }

  // Takes the place of what was there for this size.
  void set(const Place& place, int64_t bytes, Ways ways) { rows_[place][bytes] = std::move(ways); }
  // What `newer` has of a place is all that is left of it: times of two days are not compared.
  void merge(const TuningTable& newer);
  // Null where nothing was measured.
  const Sizes* sizes_of(const Place& place) const;
  const std::map<Place, Sizes>& rows() const { return rows_; }

 private:
  std::map<Place, Sizes> rows_;
};

// How long `way` should take: on the line between the measured sizes around it; beyond the largest in proportion to the
// bytes. Nothing where it was not measured at the sizes around.
std::optional<double> measured_us(const TuningTable::Sizes& sizes, std::string_view way, int64_t bytes);

// "2", "2x4".
std::string ranks_words(int hosts, int ranks_per_host);

}  // namespace fdl
