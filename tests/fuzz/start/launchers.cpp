// Fuzzes who_am_i() and explain_identity(): a rank that is accepted is below its size.
//
// An input is lines NAME=value. The lines HOST, DOMAIN and HOSTFILE (words instead of lines) describe the platform.
#include "bootstrap/launchers/launchers.h"

#include <algorithm>
#include <map>

#include "tests/fuzz/targets.h"

namespace fdl::fuzz {
namespace {

// Variables of other modules would only change the configuration; a descriptor's number could belong to the fuzzer.
bool is_left_out(std::string_view name) { return name == "PMI_FD" || name.empty(); }

std::string take(std::map<std::string, std::string>& variables, const char* name) {
  const auto found = variables.find(name);
  if (found == variables.end()) return {};
  std::string value = found->second;
  variables.erase(found);
  return value;
}

bool run(ConstBytes input) {
  std::map<std::string, std::string> variables;
  std::string_view rest = text_of(input);
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const auto equals = line.find('=');
    if (equals == std::string_view::npos || is_left_out(line.substr(0, equals))) continue;
    variables[std::string(line.substr(0, equals))] = line.substr(equals + 1);
  }
  Platform platform{take(variables, "HOST"), take(variables, "DOMAIN"), take(variables, "HOSTFILE")};
  std::replace(platform.mpi_hostfile.begin(), platform.mpi_hostfile.end(), ' ', '\n');
  const Environment environment(variables);
  const auto config = Config::read(environment);
  if (!config.ok()) return false;
  const auto identity = who_am_i(environment, *config, platform);
  const Explanation explanation = explain_identity(environment, *config, platform);
  FDL_CHECK(explanation.identity.ok() == identity.ok());
  if (!identity.ok()) {
    FDL_CHECK(!identity.status().text().empty());
    return false;
  }
  FDL_CHECK(identity->size >= 1 && identity->rank >= 0 && identity->rank < identity->size);
  FDL_CHECK(!identity->line().empty());
  return true;
}

std::vector<std::string> seeds() {
  return {
      "FARANDOLE_RANK=1\nFARANDOLE_SIZE=4\nFARANDOLE_RENDEZVOUS=tcp://a:29500\nFARANDOLE_JOB_KEY=0123456789abcdef\n",
      "HOROVOD_RANK=0\nHOROVOD_SIZE=2\nHOROVOD_GLOO_RENDEZVOUS_ADDR=10.0.0.1\nHOROVOD_GLOO_RENDEZVOUS_PORT=1234\n",
      "RANK=0\nWORLD_SIZE=2\nLOCAL_RANK=0\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR=a\nMASTER_PORT=29500\nTORCHELASTIC_RUN_ID="
      "x\n",
      "SLURM_PROCID=3\nSLURM_NTASKS=4\nSLURM_JOB_ID=7\nSLURM_STEP_ID=0\nSLURM_STEP_NODELIST=n[1-2]\nSLURM_LOCALID=1\n"
      "SLURM_NODEID=1\nSLURM_NNODES=2\nSLURM_STEP_NUM_TASKS=4\nSLURM_STEP_NUM_NODES=2\nSLURM_STEP_TASKS_PER_NODE=2(x2)"
      "\n",
      "OMPI_COMM_WORLD_RANK=1\nOMPI_COMM_WORLD_SIZE=2\nOMPI_COMM_WORLD_LOCAL_RANK=1\nOMPI_COMM_WORLD_LOCAL_SIZE=2\n"
      "PMIX_NAMESPACE=prte-1\n",
      "PMI_RANK=1\nPMI_SIZE=2\nMPI_LOCALRANKID=1\nMPI_LOCALNRANKS=2\n",
      "TF_CONFIG={\"cluster\": {\"worker\": [\"a:2222\", \"b:2222\"]}, \"task\": {\"type\": \"worker\", \"index\": "
      "1}}\n",
      "SM_HOSTS=[\"algo-1\", \"algo-2\"]\nSM_CURRENT_HOST=algo-2\nSM_NUM_GPUS=1\n",
      "SKYPILOT_NODE_RANK=1\nSKYPILOT_NUM_NODES=2\nSKYPILOT_NODE_IPS=10.0.0.1 10.0.0.2\nSKYPILOT_TASK_ID=t\n",
      "VC_TASK_INDEX=1\nVC_WORKER_HOSTS=a,b\nVC_WORKER_NUM=2\nHOST=b\n",
      "JOB_COMPLETION_INDEX=1\nFARANDOLE_NNODES=2\nHOST=train-1\nDOMAIN=train.default.svc\n",
      "LWS_WORKER_INDEX=1\nLWS_GROUP_SIZE=2\nLWS_LEADER_ADDRESS=train-0.train\nHOST=train-0-1\n",
      "PET_NODE_RANK=1\nPET_NNODES=2\nPET_NPROC_PER_NODE=1\nPET_MASTER_ADDR=a\nPET_MASTER_PORT=29400\n",
      "FLUX_TASK_RANK=0\nFLUX_JOB_SIZE=1\nFLUX_JOB_ID=f1\n",
      "FARANDOLE_RANK_FROM=hostname\nFARANDOLE_NNODES=3\nHOST=train-2\nDOMAIN=train.ns.svc\nHOSTFILE=a slots=2\n"};
}

}  // namespace

const Target launchers{"launchers", run, seeds, 5'000};

}  // namespace fdl::fuzz
