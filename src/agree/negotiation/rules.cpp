// The rules check what the requests of one name must have in common. Each rule is one small function.
#include "agree/negotiation/rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "data/reduce.h"

namespace fdl {
namespace {

// Compares each vote with the one of the lowest rank. Equality is transitive, so the first vote that differs completes
// the lowest pair of ranks that disagree.
template <typename ValueOf, typename TextOf>
std::optional<Mismatch> same(Votes votes, std::string_view what, ValueOf value_of, TextOf text_of) {
  const Vote& lowest = votes.front();
  for (const Vote& vote : votes.subspan(1)) {
    if (value_of(*vote.request) == value_of(*lowest.request)) continue;
    return Mismatch{lowest.rank, vote.rank, text_of(*lowest.request), text_of(*vote.request),
                    fmt::format("all ranks must submit the same {}", what)};
  }
  return std::nullopt;
}

// The lowest rank that breaks a rule by itself. `demand_of` returns an empty demand where the request is valid.
template <typename DemandOf>
std::optional<Mismatch> alone(Votes votes, DemandOf demand_of) {
  for (const Vote& vote : votes) {
    auto [has, demand] = demand_of(*vote.request);
    if (!demand.empty()) return Mismatch{-1, vote.rank, "", std::move(has), std::move(demand)};
  }
  return std::nullopt;
}

struct Fault {
  std::string has;
  std::string demand;  // empty: no fault
};

std::string shape_text(const Request& request) { return fmt::format("shape [{}]", fmt::join(request.shape, ", ")); }

// Checks one rank's splits of an alltoall against its rows and the number of ranks.
Fault fault_of_splits(const Request& request, int size) {
  const int64_t rows = request.shape.empty() ? 0 : request.shape.front();
  if (request.splits.empty()) {
    if (rows % size == 0) return {};
    return {fmt::format("{} rows and no splits", rows), fmt::format("without splits, {} ranks must divide it", size)};
  }
  std::string has = request.splits.size() > 16 ? fmt::format("{} splits", request.splits.size())
                                               : fmt::format("splits [{}]", fmt::join(request.splits, ", "));
  if (request.splits.size() != static_cast<std::size_t>(size)) {
    return {std::move(has), fmt::format("there must be one for each of {} ranks", size)};
  }
  if (std::ranges::any_of(request.splits, [](int64_t split) { return split < 0; })) {
    return {std::move(has), "no split may be negative"};
  }
  // Subtract from the rows that are left: adding up the splits could overflow.
  int64_t left = rows;
  for (const int64_t split : request.splits) {
    if (split > left) return {std::move(has), fmt::format("together they may not be more than its {} rows", rows)};
    left -= split;
  }
  return {};
}

}  // namespace

std::optional<Mismatch> same_kind(Votes votes) {
  return same(
      votes, "operation", [](const Request& request) { return request.kind; },
      [](const Request& request) { return std::string(name_of(request.kind)); });
}

std::optional<Mismatch> same_dtype(Votes votes) {
  return same(
      votes, "dtype", [](const Request& request) { return request.dtype; },
      [](const Request& request) { return std::string(name_of(request.dtype)); });
}

std::optional<Mismatch> same_shape(Votes votes) {
  return same(
      votes, "shape", [](const Request& request) -> const auto& { return request.shape; }, shape_text);
}

std::optional<Mismatch> same_inner_shape(Votes votes) {
  // The shape without its first dimension.
  const auto inner = [](const Request& request) {
    return std::vector<int64_t>(request.shape.begin() + (request.shape.empty() ? 0 : 1), request.shape.end());
  };
  return same(votes, "shape but for the first dimension", inner, shape_text);
}

std::optional<Mismatch> has_rows(Votes votes) {
  return alone(votes, [](const Request& request) -> Fault {
    if (!request.shape.empty()) return {};
    return {shape_text(request), fmt::format("{} needs at least one dimension", name_of(request.kind))};
  });
}

std::optional<Mismatch> same_op(Votes votes) {
  return same(
      votes, "op", [](const Request& request) { return request.op; },
      [](const Request& request) {
        if (!is_op(request.op)) return fmt::format("op {}", request.op);
        return fmt::format("op {}", name_of(static_cast<Op>(request.op)));
      });
}

std::optional<Mismatch> same_root(Votes votes) {
  return same(
      votes, "root", [](const Request& request) { return request.root; },
      [](const Request& request) { return fmt::format("root {}", request.root); });
}

std::optional<Mismatch> root_in_group(Votes votes, int size) {
  return alone(votes, [size](const Request& request) -> Fault {
    if (request.root >= 0 && request.root < size) return {};
    return {fmt::format("root {}", request.root), fmt::format("the root must be one of the ranks 0 to {}", size - 1)};
  });
}

std::optional<Mismatch> same_compression(Votes votes) {
  return same(
      votes, "compression", [](const Request& request) { return request.compression; },
      [](const Request& request) { return fmt::format("compression {}", name_of(request.compression)); });
}

std::optional<Mismatch> same_prescale(Votes votes) {
  return same(
      votes, "prescale", [](const Request& request) { return request.prescale; },
      [](const Request& request) { return fmt::format("prescale {}", request.prescale); });
}

std::optional<Mismatch> same_postscale(Votes votes) {
  return same(
      votes, "postscale", [](const Request& request) { return request.postscale; },
      [](const Request& request) { return fmt::format("postscale {}", request.postscale); });
}

std::optional<Mismatch> splits_fit(Votes votes, int size) {
  return alone(votes, [size](const Request& request) { return fault_of_splits(request, size); });
}

std::optional<Mismatch> same_device(Votes votes) {
  return same(
      votes, "kind of device", [](const Request& request) { return request.device; },
      [](const Request& request) {
        return request.device < 0 ? std::string("a tensor on the CPU")
                                  : fmt::format("a tensor on device kind {}", request.device);
      });
}

std::optional<Mismatch> same_place(Votes votes) {
  return same(
      votes, "place in memory of fdl_device_alloc, or tensors elsewhere",
      [](const Request& request) { return request.place; },
      [](const Request& request) {
        return request.place < 0 ? std::string("tensors elsewhere")
                                 : std::string("tensors in another place of memory of fdl_device_alloc");
      });
}

std::optional<Mismatch> same_group(Votes votes) {
  return same(
      votes, "group",
      [](const Request& request) { return std::pair(std::string_view(request.group), request.group_size); },
      [](const Request& request) {
        return request.group.empty() ? std::string("no group")
                                     : fmt::format("group '{}' of {}", request.group, request.group_size);
      });
}

namespace {

// The mismatch of the first rule in the list that is broken.
std::optional<Mismatch> first_of(std::initializer_list<std::optional<Mismatch> (*)(Votes)> rules, Votes votes) {
  for (const auto rule : rules) {
    if (auto mismatch = rule(votes)) return mismatch;
  }
  return std::nullopt;
}

}  // namespace

// Rules that others depend on come first: shapes are only compared among requests of one kind and dtype.
std::optional<Mismatch> first_mismatch(Votes votes, int size) {
  if (auto mismatch = first_of({same_kind, same_group}, votes)) return mismatch;
  const RequestKind kind = votes.front().request->kind;
  if (kind == RequestKind::barrier || kind == RequestKind::join) return std::nullopt;
  if (auto mismatch = first_of({same_dtype, same_device, same_compression}, votes)) return mismatch;
  switch (kind) {
    case RequestKind::allreduce:
      return first_of({same_shape, same_op, same_prescale, same_postscale}, votes);
    default:
      if (auto mismatch = same_place(votes)) return mismatch;
  }
  switch (kind) {
    case RequestKind::reduce_scatter:
      return first_of({has_rows, same_shape, same_op, same_prescale, same_postscale}, votes);
    case RequestKind::broadcast:
      if (auto mismatch = first_of({same_shape, same_root}, votes)) return mismatch;
      return root_in_group(votes, size);
    case RequestKind::allgather:
      return first_of({has_rows, same_inner_shape}, votes);
    case RequestKind::alltoall:
      if (auto mismatch = first_of({has_rows, same_inner_shape}, votes)) return mismatch;
      return splits_fit(votes, size);
    default:
      return std::nullopt;
  }
}

std::string describe(std::string_view name, const Mismatch& mismatch, const std::vector<WorldRank>& ranks) {
  const std::string second = rank_name(mismatch.second, ranks);
  if (mismatch.first < 0) return fmt::format("{}: {} has {}; {}", name, second, mismatch.second_has, mismatch.demand);
  return fmt::format("{}: {} has {}, {} has {}; {}", name, rank_name(mismatch.first, ranks), mismatch.first_has, second,
                     mismatch.second_has, mismatch.demand);
}

}  // namespace fdl
