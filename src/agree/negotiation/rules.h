// The rules check what the requests of one name must have in common. Each rule is one small function.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "agree/negotiation/message.h"
#include "agree/negotiation/world_rank.h"

namespace fdl {

// One of the distinct requests made for a name, with the lowest rank that made it.
struct Vote {
  int rank = 0;
  const Request* request = nullptr;
};
using Votes = std::span<const Vote>;  // at least one, ascending by rank

// How a rule is broken: by the lowest pair of ranks that disagree, or (first is -1) by one rank alone.
struct Mismatch {
  int first = -1;
  int second = -1;
  std::string first_has;
  std::string second_has;
  std::string demand;  // what the ranks must do instead
};

std::optional<Mismatch> same_kind(Votes votes);
std::optional<Mismatch> same_dtype(Votes votes);
std::optional<Mismatch> same_shape(Votes votes);        // allreduce, broadcast, reduce_scatter
std::optional<Mismatch> same_inner_shape(Votes votes);  // allgather, alltoall: all but the first dimension
std::optional<Mismatch> has_rows(Votes votes);          // allgather, alltoall, reduce_scatter reject scalars
std::optional<Mismatch> same_op(Votes votes);
std::optional<Mismatch> same_root(Votes votes);
std::optional<Mismatch> root_in_group(Votes votes, int size);
std::optional<Mismatch> same_compression(Votes votes);
std::optional<Mismatch> same_prescale(Votes votes);
std::optional<Mismatch> same_postscale(Votes votes);
std::optional<Mismatch> splits_fit(Votes votes, int size);  // alltoall
std::optional<Mismatch> same_device(Votes votes);
std::optional<Mismatch> same_place(Votes votes);
std::optional<Mismatch> same_group(Votes votes);

// The first broken rule among those that apply to the kind. `size` is the number of ranks.
std::optional<Mismatch> first_mismatch(Votes votes, int size);

// "grad: rank 0 (host-a) has float32, rank 1 (host-b) has int32; all ranks must submit the same dtype"
std::string describe(std::string_view name, const Mismatch& mismatch, const std::vector<WorldRank>& ranks);

}  // namespace fdl
