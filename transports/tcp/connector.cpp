// TcpConnector starts and stops the thread, and gives each communicator its endpoint.
#include "transports/tcp/connector.h"

#include <utility>

#include "system/thread.h"
#include "transports/tcp/connector_loop.h"

namespace fdl {

TcpConnector::TcpConnector(std::unique_ptr<Exchange> exchange, int connection_limit)
    : exchange_(std::move(exchange)), budget_(std::make_shared<ConnectionBudget>(connection_limit)) {}

TcpConnector::~TcpConnector() { stop(); }

Result<std::shared_ptr<TcpConnector>> TcpConnector::start(const Membership& world, std::unique_ptr<Exchange> exchange) {
  const int limit = connection_limit(static_cast<int>(world.config->tcp_connections));
  const std::shared_ptr<TcpConnector> connector(new TcpConnector(std::move(exchange), limit));
  FDL_ASSIGN_OR_RETURN(Poller poller, Poller::make());
  FDL_ASSIGN_OR_RETURN(Event requests, Event::make());
  const Config::PortRange ports = world.config->rank_ports();
  FDL_ASSIGN_OR_RETURN(Listening listening, listen_tcp(world.config->interfaces, Ports{ports.first, ports.last}));
  connector->self_ = connector;
  connector->loop_ =
      std::make_unique<Loop>(world, *connector, std::move(requests), std::move(listening), std::move(poller));
  FDL_RETURN_IF_ERROR(connector->loop_->begin(world));
  connector->thread_ = start_thread_without_signals([loop = connector->loop_.get()] { loop->run(); });
  return connector;
}

void TcpConnector::stop() {
  {
    const MutexLock lock(mutex_);
    stopped_ = true;
    requests_.clear();
  }
  if (!thread_.joinable()) return;
  loop_->wake();
  thread_.join();
  loop_.reset();  // closes the listener
}

Result<std::shared_ptr<TcpEndpoint>> TcpConnector::open(const Membership& membership, std::vector<int> streams) {
  FDL_ASSIGN_OR_RETURN(Event event, Event::make());
  // The thread may drop an endpoint last, and must not own itself through it.
  Membership without_connector = membership;
  without_connector.tcp_connector = nullptr;
  const std::shared_ptr<TcpEndpoint> endpoint(
      new TcpEndpoint(std::move(without_connector), std::move(streams), std::move(event), budget_));
  endpoint->connector_ = self_;
  endpoint->self_ = endpoint;
  post({Request::Kind::open, endpoint});
  return endpoint;
}

void TcpConnector::post(Request request) {
  const MutexLock lock(mutex_);
  if (stopped_) return;
  requests_.push_back(std::move(request));
  loop_->wake();
}

}  // namespace fdl
