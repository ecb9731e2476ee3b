// DeviceResult is the point in a stream after which the results of a bucket by name, or of one submitted call, are
// valid. The operations of a bucket share it. The threads that wait for them order their own streams behind it.
#pragma once

#include <atomic>
#include <memory>

#include "base/status.h"
#include "runtime/device/devices.h"

namespace fdl {

class DeviceResult {
 public:
  // Records the event behind everything that is queued on `stream` now. `captured`: the stream is being captured, and
  // the result is a part of the graph.
  static Result<std::shared_ptr<DeviceResult>> make(std::shared_ptr<UsedDevice> used, Stream stream,
                                                    bool captured = false);
  // Takes over an event that was recorded behind the results.
  static std::shared_ptr<DeviceResult> adopt(std::shared_ptr<UsedDevice> used, DeviceEvent finished);
  ~DeviceResult() { used_->give_back(finished_); }
  DeviceResult(const DeviceResult&) = delete;
  DeviceResult& operator=(const DeviceResult&) = delete;

  // Makes work that is queued on `stream` from now on run after the bucket. Any thread may call; the stream must exist.
  // A second call for the stream of the first one does nothing. UNSUPPORTED while the stream is being captured.
  Status order_before(Stream stream);
  // Whether the device has finished it, or its failure. True inside a graph, of which a query would end the capture.
  // Any thread may call.
  Result<bool> reached() const { return captured_ ? true : used_->device().reached(finished_); }

 private:
  DeviceResult(std::shared_ptr<UsedDevice> used, DeviceEvent finished, bool captured)
      : used_(std::move(used)), finished_(finished), captured_(captured) {}

  const std::shared_ptr<UsedDevice> used_;
  const DeviceEvent finished_;
  const bool captured_;
  // The number of the stream that waits already, or 0. The tensors of a bucket are usually waited for one after the
  // other on one stream. A handle would not do: it may be that of another stream by then.
  std::atomic<uint64_t> ordered_{0};
};

}  // namespace fdl
