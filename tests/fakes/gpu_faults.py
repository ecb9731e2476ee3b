"""The faults of the code for GPUs that planted_gpu_faults.py plants, and the test that must see each of them."""

from typing import NamedTuple


class Fault(NamedTuple):
    """A change of a source, and the test that sees it: a program with a filter of GoogleTest, or a test of pytest."""

    what: str
    source: str
    words: str  # that stand there, once
    planted: str
    test: str


CUDA = "cuda/"
NCCL = "transports/nccl/"
ENGINE = "src/engine/device/"
DEVICE = "src/runtime/device/"
NAMED = "src/runtime/named/"
ORDERED_CALLS = "src/runtime/progress/ordered_calls.cpp"
COMMUNICATOR = NCCL + "nccl_communicator"
COLLECTIVES = NCCL + "nccl_collectives.cpp"
STREAMS = NAMED + "bucket/device_streams.h"
TORCH = "bindings/torch/farandole/torch/"
OVERLAP = "capi_overlap_test Backends/Overlap."
CALLS = "capi_device_calls_test CallsOfAStep."
TORCH_TESTS = "tests/python/devices/test_torch_devices.py::test_torch_on_devices"

AT_ONCE = (
    STREAMS,
    "    output.ready = result;\n",
    "    output.ready = result;\n    FDL_RETURN_IF_ERROR(result->order_before(entry->place->stream()));\n",
)
BY_THE_PROGRESS_THREAD = (
    DEVICE + "device_work.cpp",
    "{ return device().wait(stream_, place.submitted()); }",
    "{\n"
    "  FDL_ASSIGN_OR_RETURN(const UsedDevice::Recorded now, place.used()->record(place.stream()));\n"
    "  return device().wait(stream_, now.event);\n"
    "}",
)
OVERLAPPING = [
    Fault(
        "the tensors' stream waits for a collective as soon as it is queued",
        *AT_ONCE,
        OVERLAP + "TheCallersStreamComputesDuringTheCollective/nccl",
    ),
    Fault(
        "a capture that begins during a collective gets a wait of the library",
        *AT_ONCE,
        OVERLAP + "ACaptureThatBeginsMeanwhileStaysValid/nccl",
    ),
    Fault(
        "the progress thread uses the tensors' stream, which may be destroyed by then",
        *BY_THE_PROGRESS_THREAD,
        OVERLAP + "TheTensorsStreamMayBeDestroyedBeforeTheEnd/nccl",
    ),
    Fault(
        "handle 2 is the default stream of the progress thread",
        *BY_THE_PROGRESS_THREAD,
        OVERLAP + "TheDefaultStreamOfTheThreadIsOrdered/nccl",
    ),
    Fault(
        "a stream is taken for the destroyed one that had its handle",
        DEVICE + "device_result.cpp",
        "const uint64_t id = used_->device().stream_id(stream);",
        "const auto id = reinterpret_cast<uint64_t>(stream);",
        OVERLAP + "ANewStreamWithTheHandleOfADestroyedOneWaitsToo/nccl",
    ),
    Fault(
        "synchronize() orders the stream of the submission, not the current one",
        TORCH + "handles.py",
        "self.native.wait(stream=now.cuda_stream)",
        "self.native.wait()",
        TORCH_TESTS + "[check_results_are_ordered_with_the_waiting_stream-2-nccl]",
    ),
    Fault(
        "a bucket waits for the stream of its last gradient alone",
        TORCH + "gradient_launch.py",
        "catch_up(torch.cuda.current_stream(bucket.streams[-1].device), *bucket.streams)",
        "pass",
        TORCH_TESTS + "[check_a_bucket_waits_for_the_streams_of_all_its_gradients-2-nccl]",
    ),
]

CURRENT_DEVICE = [
    Fault(
        "NCCL is called without a current device",
        COMMUNICATOR + ".h",
        "    const CurrentDevice current(device_);\n",
        "",
        "nccl_collectives_test Nccl.RunsEveryCollectiveWithDirectCalls",
    ),
    Fault(
        "the watchdog aborts without a current device",
        COMMUNICATOR + ".cpp",
        "      const CurrentDevice current(device_);\n",
        "",
        "nccl_failure_test Nccl.EndsADirectCallThatStaysBlocked",
    ),
    Fault(
        "NCCL allocates memory without a current device",
        NCCL + "nccl_device_library.cpp",
        "    const CurrentDevice current(device);\n    FDL_RETURN_IF_ERROR(current.outcome());\n",
        "",
        "nccl_memory_test Nccl.RegistersMemoryThatIsUsedAgain",
    ),
    Fault(
        "NCCL frees memory without a current device",
        NCCL + "nccl_device_library.cpp",
        "    const CurrentDevice current(device);\n    if (current.outcome().ok()) library_",
        "    library_",
        "nccl_memory_test Nccl.RegistersMemoryThatIsUsedAgain",
    ),
    Fault(
        "any current device is taken for the right one",
        CUDA + "calls.h",
        "|| found != calls.context) {",
        "|| found == nullptr) {",
        "cuda_test CudaTest.KeepsTheThreadsCurrentContext",
    ),
]

LATENCY = [
    Fault(
        "only deferred calls can be had",
        NCCL + "nccl_device_library.cpp",
        "library.features().revoke ? NcclCalls::automatic",
        "library.features().revoke ? NcclCalls::deferred",
        "nccl_failure_test Nccl.FinalizesWhenAllRanksEnd",
    ),
    Fault(
        "a deferred call sleeps at once, without a spin",
        COLLECTIVES,
        "spins_ ? communicator_->ready_within(kSpinNs) : communicator_->ready();",
        "communicator_->ready();",
        "nccl_streams_test Nccl.DoesNotSleepForAGroupThatIsQueuedSoon",
    ),
    Fault(
        "a direct call that stays blocked is never aborted",
        COMMUNICATOR + ".h",
        "    watchdog_->begin(seconds_to_ns(limit_s));\n",
        "    static_cast<void>(limit_s);\n",
        "nccl_failure_test Nccl.EndsADirectCallThatStaysBlocked",
    ),
    Fault(
        "first calls block the thread that drives",
        COLLECTIVES,
        "if (!communicator_->has_call_thread()) return true;",
        "if (communicator_->size() > 0) return true;",
        "nccl_calls_test NcclCallsAuto.WaitForLateRanksInAThread",
    ),
    Fault(
        "split_share is in the configuration of the split",
        COMMUNICATOR + ".cpp",
        "    config.blocking = 1;\n",
        "    config.blocking = 1;\n    config.split_share = 1;\n",
        "nccl_failure_test Nccl.EndsDirectCommunicatorsWithoutAnAbort",
    ),
    Fault(
        "the split communicator shares nothing with its parent",
        COMMUNICATOR + ".cpp",
        "  if (options_.calls != NcclCalls::deferred) config.split_share = 1;\n",
        "",
        "nccl_failure_test Nccl.EndsDirectCommunicatorsWithoutAnAbort",
    ),
    Fault(
        "an abort of the split communicator ends its parent",
        COMMUNICATOR + ".cpp",
        "  } else if (is_final) {\n    call(functions().CommDestroy, comm_);",
        "  } else if (is_final) {\n    call(functions().CommAbort, comm_);",
        "nccl_failure_test Nccl.EndsDirectCommunicatorsWithoutAnAbort",
    ),
]

LAUNCH_ORDER = [
    Fault(
        "communicators launch without the order of the program",
        ORDERED_CALLS,
        "if (spec.device != nullptr && comm_.launches_on_device(spec)) call->ticket",
        "if (spec.device != nullptr && spec.count == 0) call->ticket",
        "capi_overlap_test LaunchOrder.IsThatOfTheProgramOnAllRanks",
    ),
    Fault(
        "groups of named operations launch without turns",
        NAMED + "bucket_executor.cpp",
        "awaits_turn_ = comm_.launches_on_device(spec) && !turn_.take();",
        "awaits_turn_ = false;",
        "capi_launch_turns_test LaunchTurnsOf.TwoGroupsAreTheSameOnBothRanks",
    ),
    Fault(
        "two groups with equal numbers have no order",
        "src/runtime/progress/launch_turns.h",
        "std::tie(*other->number_, other->id_) < std::tie(*number_, id_)",
        "*other->number_ < *number_",
        "launch_turns_test TwoGroups.WithEqualNumbersAreOrderedByTheirIds",
    ),
    Fault(
        "a group launches before another one's proposal is agreed on",
        "src/runtime/progress/launch_turns.h",
        "      number_ = ++turns_->clock_;\n      return *number_;",
        "      return ++turns_->clock_;",
        "launch_turns_test TwoGroups.WaitForAProposalThatMayBecomeASmallerNumber",
    ),
]

REGISTRATION = [
    Fault(
        "memory without a window is not registered",
        NCCL + "nccl_registered_memory.cpp",
        "if (memory.window != nullptr || !features.registration) return {};",
        "if (memory.window_requested || !features.registration) return {};",
        "nccl_memory_test Nccl.WorksIfNcclMakesNoWindows",
    ),
    Fault(
        "the fusion buffer is freed while it is registered",
        ENGINE + "device_scratch.cpp",
        "|| memory_ == nullptr || !forgotten(deadline)) return;",
        "|| memory_ == nullptr) return;",
        "capi_overlap_test DriverCalls.AreFewForEachBucket",
    ),
]

CAPTURE = [
    Fault(
        "farandole's own schedules run in a capture",
        ENGINE + "device_schedules.cpp",
        "if (const auto captured = device_.is_captured(spec.stream); captured.ok() && *captured) {",
        "if (const auto captured = device_.is_captured(spec.stream); !captured.ok()) {",
        "capi_devices_test DeviceCollectives.ByAnAlgorithmAreRefusedInACapture",
    ),
    Fault(
        "a collective does not notice that its stream is captured, and waits for an event from outside",
        COLLECTIVES,
        "  FDL_ASSIGN_OR_RETURN(captured_, device_.is_captured(stream_));\n  Scratch&",
        "  captured_ = false;\n  Scratch&",
        "nccl_streams_test Nccl.KeepsTheScratchOfAGraph",
    ),
    Fault(
        "an event is recorded in a capture, and queried",
        COLLECTIVES,
        "  if (captured_) return {};\n  FDL_RETURN_IF_ERROR(device_.set(event_, stream_));",
        "  FDL_RETURN_IF_ERROR(device_.set(event_, stream_));",
        "nccl_streams_test Nccl.KeepsTheScratchOfAGraph",
    ),
    Fault(
        "a graph uses scratch memory that later collectives get",
        COLLECTIVES,
        "Scratch& scratch = captured_ ? scratch_of(stream_) : scratch_;",
        "Scratch& scratch = scratch_;",
        "nccl_streams_test Nccl.KeepsTheScratchOfAGraph",
    ),
    Fault(
        "scratch memory is released that a graph still uses",
        COLLECTIVES,
        "if (captured_ && scratch.memory != nullptr) {",
        "if (captured_ && scratch.memory == nullptr) {",
        "nccl_streams_test Nccl.KeepsTheScratchOfAGraph",
    ),
    Fault(
        "work that a graph has on a stream of the program is tracked by an event",
        CUDA + "events.cpp",
        "  if (is_captured(stream)) return ok_status();\n",
        "",
        "cuda_test CudaTest.DoesNotTrackTheWorkOfAGraphOnAStreamOfTheProgram",
    ),
    Fault(
        "work that a graph has on a stream of the library is tracked by an event",
        CUDA + "events.cpp",
        "  if (!entry.unmarked || is_captured(entry.stream)) return;\n",
        "  if (!entry.unmarked) return;\n",
        "nccl_streams_test Nccl.ReleasesMemoryDuringACapture",
    ),
    Fault(
        "a query of a captured event ends the capture",
        DEVICE + "device_result.h",
        "return captured_ ? true : used_->device().reached(finished_);",
        "return used_->device().reached(finished_);",
        "capi_devices_test DeviceCollectives.OfACaptureAreDoneWithoutAQuery",
    ),
    Fault(
        "an operation by name is accepted in a capture",
        DEVICE + "devices.cpp",
        "  if (captured) {\n",
        "  if (captured && stream == nullptr) {\n",
        "tests/python/devices/test_devices.py::test_captured_streams_are_rejected",
    ),
    Fault(
        "a wait in a capture is accepted",
        DEVICE + "device_result.cpp",
        "if (captured && !captured_) {",
        "if (captured && captured_) {",
        OVERLAP + "ACaptureThatBeginsMeanwhileStaysValid/nccl",
    ),
]

WAITS_FOR_THE_DEVICE = [
    Fault(
        "the progress thread frees memory for which the driver waits",
        CUDA + "memory_cache.cpp",
        "(void)trim(most_idle_bytes_, !must_not_wait_for_devices());",
        "(void)trim(most_idle_bytes_, true);",
        "cuda_test CudaTest.AThreadOfTheLibraryFreesNoMemoryForWhichTheDriverWaits",
    ),
    Fault(
        "large memory is not of the pool, so that its release waits",
        CUDA + "pool_memory.cpp",
        "if (stream_ == nullptr || (bytes",
        "if (bytes >= kLargeBytes || stream_ == nullptr || (bytes",
        "cuda_test CudaTest.FreesLargeMemoryWhileTheDeviceIsBusy",
    ),
    Fault(
        "a thread that drives allocates memory for which the driver waits",
        CUDA + "pool_memory.cpp",
        "(bytes < kLargeBytes && !must_not_wait_for_devices())",
        "bytes < kLargeBytes",
        "capi_busy_device_test BusyDevice.DelaysNoResultThatTheLibraryAllocates",
    ),
    Fault(
        "the progress thread allocates the pinned memory for staging",
        DEVICE + "devices.cpp",
        "  (void)used.device().reserve_pinned(config_.device_staging_bytes, "
        "static_cast<int>(StagedCollectives::kSlots));\n",
        "  static_cast<void>(used);\n",
        "capi_busy_device_test BusyDevice.DelaysNoStagingThatFollowsASubmission",
    ),
    Fault(
        "kernels are loaded by the first launch",
        CUDA + "cuda_device.cpp",
        "  (void)launches_.load();\n",
        "",
        "cuda_test CudaTest.LoadsTheKernelsBeforeTheFirstLaunch",
    ),
    Fault(
        "the progress thread allocates the fusion buffer itself",
        ENGINE + "backend_negotiation.cpp",
        "  if (by_library_ == nullptr) {\n    background_outcome_ = call();",
        "  if (by_library_ == nullptr || background_ == nullptr) {\n    background_outcome_ = call();",
        "capi_busy_device_test BusyDevice.DelaysTheFusionBufferButNoOtherGroup",
    ),
]

DRIVER_CALLS = [
    Fault(
        "the group's stream waits once for each tensor",
        STREAMS,
        "return other == &place || (other->stream_id() == place.stream_id() && place.stream_id() != 0);",
        "return other == &place && other->stream_id() == 0;",
        "capi_overlap_test DriverCalls.AreFewForEachBucket",
    ),
    Fault(
        "the program's stream waits once for each tensor",
        DEVICE + "device_result.cpp",
        "  if (id != 0 && ordered_.load(std::memory_order_acquire) == id) return {};\n",
        "",
        "capi_overlap_test DriverCalls.AreFewForEachBucket",
    ),
    Fault(
        "each tensor of a submission records an event",
        "src/capi/named.cpp",
        "  if (entries.size() > 1) {\n",
        "  if (entries.size() > 1 && stream == nullptr) {\n",
        CALLS + "ByNameAreTwoEventsAndTwoWaitsForEachBucket",
    ),
    Fault(
        "a context is pushed although it is current",
        CUDA + "calls.h",
        "if (calls.driver.cuCtxGetCurrent(&found) != kSuccess || found",
        "if (calls.driver.cuCtxGetCurrent(&found) == kSuccess || found",
        CALLS + "OrderedAreOneWaitForEachBucket",
    ),
    Fault(
        "a scope inside another one asks the driver again",
        CUDA + "calls.h",
        "    if (current_ == calls.context) return kSuccess;\n",
        "",
        CALLS + "OrderedAreOneWaitForEachBucket",
    ),
    Fault(
        "the capture mode of the library's threads is exchanged for each call",
        CUDA + "calls.h",
        "restores_ = !is_library_thread;",
        "restores_ = true;",
        "cuda_test CudaTest.StaysCurrentOnAThreadOfTheLibrary",
    ),
]

TORCH_DISTRIBUTED = [
    Fault(
        "is_completed() is true before the device is done",
        TORCH + "distributed/devices.py",
        "return all(one.done_on_device() for one in self._pendings)",
        "return all(one.done() for one in self._pendings)",
        TORCH_TESTS + "[check_torch_distributed-2-nccl]",
    ),
    Fault(
        "a Work waits for all later work of the group's stream",
        TORCH + "distributed/devices.py",
        "            one.order_before(now.cuda_stream)\n",
        "            now.wait_stream(self._stream)\n",
        TORCH_TESTS + "[check_torch_distributed-2-nccl]",
    ),
    Fault(
        "coalesced gathers and scatters are a group each",
        NCCL + "nccl_plan.cpp",
        "    case Collective::gather:\n    case Collective::scatter:\n      return true;",
        "      return true;",
        "capi_overlap_test Together.GathersAndScattersAreOneGroupOfNccl",
    ),
    Fault(
        "coalesced collectives are launched one by one",
        TORCH + "distributed/calls.py",
        "        self._blocking = []\n        self._channel.collect()\n",
        "        self._blocking = []\n        self._channel.collect()\n        self._channel.launch()\n",
        TORCH_TESTS + "[check_torch_distributed-2-nccl]",
    ),
    Fault(
        "messages between devices go through pinned memory",
        ENGINE + "device_messages.cpp",
        "  return pair.no_library.ok();\n",
        "  return false;\n",
        "capi_device_messages_test BetweenDevices.PassAroundTheRingByNccl",
    ),
    Fault(
        "each message of a batch is a group of its own",
        TORCH + "distributed/process_group.py",
        "self._peers_of_batch.get(peer, 0),",
        "0,",
        TORCH_TESTS + "[check_torch_distributed-2-nccl]",
    ),
    Fault(
        "the program's stream waits for a message before the program does",
        "src/capi/ordered_call.cpp",
        "message->waits_later = message->between_devices;",
        "message->waits_later = false;",
        "capi_device_messages_test BetweenDevices.AStreamWaitsForASendFromItsWaitOn",
    ),
]

IMAGES_AND_MEMORY = [
    Fault(
        "the portable kernels are compressed with zstd",
        CUDA + "kernels/kernels.cmake",
        "set(compress_for_all --compress-mode=speed)",
        "set(compress_for_all --compress-mode=size)",
        "cuda_test CudaTest.LoadsThePortableModuleInAnOldDriver",
    ),
    Fault(
        "an old driver gets the machine code alone",
        CUDA + "launches.cpp",
        "if (first == kSuccess) return look_up();",
        'return first == kSuccess ? look_up() : calls_.status(first, "cuModuleLoadData");',
        "cuda_test CudaTest.LoadsThePortableModuleInAnOldDriver",
    ),
    Fault(
        "tensors of a bucket begin anywhere",
        DEVICE + "device_packing.cpp",
        "return round_up(end, std::max<std::size_t>(kAccess / size_of(dtype), 1));",
        "return end + 0 * kAccess * size_of(dtype);",
        "capi_overlap_test Buckets.StartEachTensorAtAMultipleOf16Bytes",
    ),
    Fault(
        "the primary context of a peer is kept",
        CUDA + "cuda_device.cpp",
        "    if (calls_ != nullptr) (void)calls_->driver.cuDevicePrimaryCtxRelease_v2(number_);\n",
        "",
        "cuda_test CudaTest.ReleasesTheContextOfAPeer",
    ),
]

MORE = [
    Fault(
        "averages of integers are not ncclAvg, and a kernel divides",
        NCCL + "nccl_plan.cpp",
        "    reduction_->op = nccl::RedOp::average;\n    scaling_.after = 1;\n",
        "",
        "nccl_collectives_test Nccl.AveragesIntegersByNcclsOwnOperation",
    ),
    Fault(
        "averages of floats are products with a rounded factor",
        NCCL + "nccl_reduction.cpp",
        "return std::frexp(factor, &exponent) == 0.5 && exponent > -100 && exponent < 100;",
        "return std::frexp(factor, &exponent) > 0 && exponent > -100 && exponent < 100;",
        "nccl_collectives_test Nccl.AveragesOfFloatsAreExactAmongAnyNumberOfRanks",
    ),
    Fault(
        "averages of float16 are those of NCCL, which lose bits",
        NCCL + "nccl_reduction.cpp",
        "const bool wide = dtype == Dtype::float32 ||",
        "const bool wide = dtype == Dtype::float16 || dtype == Dtype::float32 ||",
        "nccl_collectives_test Nccl.ScalesInsideTheReductionOnlyWhereExact",
    ),
    Fault(
        "an allreduce of floats in symmetric memory is ncclAvg, for which NCCL has no kernel there",
        COLLECTIVES,
        "if (is_average && step.kind != Kind::all_reduce) return",
        "if (is_average) return",
        "capi_device_memory_test DeviceMemory.AveragesOfFloatsInPlace",
    ),
    Fault(
        "averages of floats are never ncclAvg",
        COLLECTIVES,
        "const bool is_average = step.op == nccl::RedOp::sum && step.factor * communicator_->size() == 1;",
        "const bool is_average = false;",
        "nccl_collectives_test Nccl.AveragesOfFloatsByReduceAreNcclsOwn",
    ),
    Fault(
        "memory of a framework's pool is not registered",
        TORCH + "distributed/process_group.py",
        "                self._channel.register_memory(device, address, size)\n",
        "",
        TORCH_TESTS + "[check_torch_distributed-2-nccl]",
    ),
    Fault(
        "pinned memory lies on any NUMA node",
        CUDA + "pinned_memory.cpp",
        "  if (node_ >= 0) {\n",
        "  if (node_ >= 1000) {\n",
        "cuda_memory_test PinnedAllocations.LieOnTheNodeOfTheirDevice",
    ),
    Fault(
        "small sums inside a host are never one-shot kernels",
        ENGINE + "device_collectives.cpp",
        "if (one_shot_ != nullptr && one_shot_->can(spec)) return *one_shot_;",
        "",
        "capi_one_shot_test OneShotSums.TakeSmallSumsAndLeaveLargeOnesToNccl",
    ),
    Fault(
        "one-shot kernels of several streams overlap",
        ENGINE + "one_shot/one_shot_collectives.cpp",
        "if (in_flight_ && !same_stream) FDL_RETURN_IF_ERROR(device_.wait(stream, last_));",
        "static_cast<void>(same_stream);",
        "capi_one_shot_test OneShotSums.OnSeveralStreamsRunInTheOrderOfTheCalls",
    ),
    Fault(
        "gradients in symmetric memory are packed",
        NAMED + "bucket/device_run.cpp",
        "  if (bucket.apart) return false;\n",
        "  if (!bucket.apart) return false;\n",
        "capi_device_memory_test DeviceMemory.AdjacentSumsAreNeitherPackedNorUnpacked",
    ),
]

FAULTS = [
    *OVERLAPPING,
    *CURRENT_DEVICE,
    *LATENCY,
    *LAUNCH_ORDER,
    *REGISTRATION,
    *CAPTURE,
    *WAITS_FOR_THE_DEVICE,
    *DRIVER_CALLS,
    *TORCH_DISTRIBUTED,
    *IMAGES_AND_MEMORY,
    *MORE,
]
