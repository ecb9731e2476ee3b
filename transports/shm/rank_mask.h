// RankMask is a set of ranks of one host, a bit for each.
#pragma once

#include <cstdint>

namespace fdl {

using RankMask = uint64_t;
inline constexpr int kMostRanksOfMask = 64;
constexpr RankMask bit_of(int rank) { return RankMask{1} << rank; }
constexpr RankMask all_ranks(int size) { return size >= 64 ? ~RankMask{0} : bit_of(size) - 1; }
constexpr int first_of(RankMask mask) { return __builtin_ctzll(mask); }
// for (int rank : each_of(mask))
class each_of {
 public:
  explicit constexpr each_of(RankMask mask) : mask_(mask) {}
  struct Iterator {
    RankMask left;
    int operator*() const { return first_of(left); }
    Iterator& operator++() {
      left &= left - 1;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return left != other.left; }
  };
  Iterator begin() const { return {mask_}; }
  Iterator end() const { return {0}; }

 private:
  RankMask mask_;
};

}  // namespace fdl
