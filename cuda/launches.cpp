// Launches fills a table on its stack for each launch. The driver copies it during the call, so nothing of a launch is
// kept.
#include "cuda/launches.h"

#include <fmt/format.h>

namespace fdl::cuda {

Launches::~Launches() {
  if (module_ == nullptr) return;
  const RelaxedScope scope(calls_);
  (void)calls_.driver.cuModuleUnload(module_);
}

Status Launches::load() {
  if (loaded_.load(std::memory_order_acquire)) return ok_status();
  const MutexLock lock(mutex_);
  if (!tried_) outcome_ = load_now();
  tried_ = true;
  if (outcome_.ok()) loaded_.store(true, std::memory_order_release);
  return outcome_;
}

Status Launches::load_now() {
  const RelaxedScope scope(calls_);
  // Machine code needs no compilation at load time, so it is tried first.
  Outcome first = kNoBinaryForGpu;
  if (!image_.machine_code.empty()) first = calls_.driver.cuModuleLoadData(&module_, image_.machine_code.data());
  if (first == kSuccess) return look_up();
  const Outcome second = calls_.driver.cuModuleLoadData(&module_, image_.portable.data());
  if (second == kSuccess) return look_up();
  module_ = nullptr;
  return Status(
      Code::unsupported,
      fmt::format("{}: the driver (CUDA {}) accepts none of this build's kernels ({}): cuModuleLoadData: {}, and "
                  "of those that it compiles itself: {}; update the driver, or build with an older nvcc",
                  calls_.name, version_text(calls_.driver.version), image_.compiler, calls_.driver.describe(first),
                  calls_.driver.describe(second)));
}

// A missing kernel means a build without nvcc.
Status Launches::find(const char* kernel, Function* function) {
  const Outcome outcome = calls_.driver.cuModuleGetFunction(function, module_, kernel);
  if (outcome != kNotFound) return calls_.status(outcome, "cuModuleGetFunction", kernel);
  return Status(Code::unsupported,
                fmt::format("{}: this build of farandole has no kernel {} ({}): kernels are compiled where nvcc is "
                            "found; NCCL's own sums need none",
                            calls_.name, kernel, image_.compiler));
}

Status Launches::look_up() {
#define ROW(name, body, at_once) FDL_RETURN_IF_ERROR(find(#name, &packers_[k_##name]));
  FDL_PACK_KERNELS(ROW)
#undef ROW
// Two kernels for each data type.
#define ROW(name, type, kind)                                                                        \
  FDL_RETURN_IF_ERROR(find("fdl_reduce_" #name, &reducers_[static_cast<std::size_t>(Dtype::name)])); \
  FDL_RETURN_IF_ERROR(find("fdl_one_shot_" #name, &one_shots_[static_cast<std::size_t>(Dtype::name)]));
  FDL_DTYPES(ROW)
#undef ROW
  return ok_status();
}

Status Launches::launch(Function function, std::string_view name, uint64_t blocks, Stream stream, const void* table) {
  // The limit of CUDA for the x dimension of a grid.
  if (blocks > INT32_MAX) {
    return Status(Code::unsupported,
                  fmt::format("{}: {} of so many elements at once; do it in parts", calls_.name, name));
  }
  void* parameters[] = {const_cast<void*>(table)};
  return calls_.status(calls_.driver.cuLaunchKernel(function, static_cast<unsigned>(blocks), 1, 1, kThreads, 1, 1, 0,
                                                    stream, parameters, nullptr),
                       "cuLaunchKernel", name);
}

Status Launches::pack(Stream stream, const Packing& packing) {
  FDL_RETURN_IF_ERROR(load());
  // Each kind of packing has its kernel; float64 on either side needs the conversion through float64.
  const bool divides = real_divisor(packing.factor) != 0;
  PackKernel kernel = divides ? k_fdl_divide_segments : k_fdl_cast_segments;
  if (packing.is_copy()) {
    kernel = k_fdl_copy_segments;
  } else if (kind_of(packing.tensors) == DtypeKind::integer) {
    kernel = k_fdl_scale_integer_segments;
  } else if (packing.tensors == Dtype::float64 || packing.in_packed == Dtype::float64) {
    kernel = divides ? k_fdl_divide_float64_segments : k_fdl_cast_float64_segments;
  }
  // Each table is one launch. The driver copies it before the call returns.
  return for_each_table(packing, [&](const PackTable& table) {
    return launch(packers_[kernel], packing.unpacks ? "unpack" : "pack", table.tile_count, stream, &table);
  });
}

// The kernels multiply. A division is a packing in place, which rounds as they do: after the fold, and once more.
Status Launches::reduce(Stream stream, Dtype dtype, Op op, void* target, std::span<const void* const> sources,
                        std::size_t count, double factor) {
  if (real_divisor(factor) != 0 && is_real(dtype)) {
    const DeviceSegment whole{target, 0, count};
    FDL_RETURN_IF_ERROR(reduce(stream, dtype, op, target, sources, count, 1.0));
    return pack(stream, {std::span(&whole, 1), dtype, static_cast<std::byte*>(target), dtype, false, factor});
  }
  FDL_RETURN_IF_ERROR(load());
  // The table is 4 KiB of parameters. Only the entries that are used are set.
  ReduceTable table;
  table.target = static_cast<std::byte*>(target);
  table.count = count;
  set_factor(table, dtype, factor);
  table.source_count = static_cast<uint32_t>(sources.size());
  table.op = op;
  for (std::size_t i = 0; i < sources.size(); ++i) table.source[i] = static_cast<const std::byte*>(sources[i]);
  const auto size = static_cast<unsigned>(size_of(dtype));
  table.head = common_head(table, size);
  return launch(reducers_[static_cast<std::size_t>(dtype)], "reduce", reduce_blocks(reduce_plan(table, 16 / size)),
                stream, &table);
}

Status Launches::sum_one_shot(Stream stream, Dtype dtype, const OneShotTable& table) {
  FDL_RETURN_IF_ERROR(load());
  return launch(one_shots_[static_cast<std::size_t>(dtype)], "sum", table.blocks, stream, &table);
}

}  // namespace fdl::cuda
