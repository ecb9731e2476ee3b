// HubThread: a hub and the thread that serves it, from here to the end of the job.
#pragma once

#include <memory>
#include <thread>

#include "world/hub.h"

namespace fdl {

class HubThread {
 public:
  explicit HubThread(std::unique_ptr<Hub> hub) : hub_(std::move(hub)), thread_([this] { hub_->run(); }) {}
  ~HubThread() {
    hub_->stop();
    thread_.join();
  }
  HubThread(const HubThread&) = delete;
  HubThread& operator=(const HubThread&) = delete;

  std::string address() const { return hub_->address(); }

 private:
  std::unique_ptr<Hub> hub_;
  std::thread thread_;
};

}  // namespace fdl
