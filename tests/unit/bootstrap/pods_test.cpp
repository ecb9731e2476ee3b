// Tests of pods: the variables and host names that each controller sets, and the identity of a process there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "bootstrap/launchers/launchers.h"
#include "bootstrap/launchers/node_launchers.h"
#include "bootstrap/launchers/platform.h"
#include "bootstrap/rendezvous/job_key.h"
#include "bootstrap/topology/efa.h"
#include "bootstrap/topology/efa_instances.h"
#include "tests/support/descriptors.h"
#include "tests/support/variables.h"

namespace fdl {
namespace {

using namespace fdl::test;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

Platform pod(const std::string& name, const std::string& domain = "") {
  return {.host_name = name, .domain = domain, .mpi_hostfile = {}};
}

std::string answer(const Vars& variables, const Platform& platform) {
  const Environment environment(variables);
  const auto config = Config::read(environment);
  if (!config.ok()) return config.status().text();
  const auto identity = who_am_i(environment, *config, platform);
  return identity.ok() ? identity->line() : "refused: " + identity.status().text();
}

// Returns the node that `farandole run` finds in that pod.
std::string node(const Vars& variables, const Platform& platform) {
  const Environment environment(variables);
  const auto found = find_node(Variables(environment), platform);
  if (!found.ok()) return "refused: " + found.status().text();
  return *found ? (*found)->line() : "nothing";
}

// Variables that kubelet sets in every pod; they belong to no launcher.
const Vars kPod = {{"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
                   {"KUBERNETES_PORT", "tcp://10.96.0.1:443"},
                   {"KUBERNETES_PORT_443_TCP", "tcp://10.96.0.1:443"},
                   {"KUBERNETES_SERVICE_PORT", "443"}};

// Training operator v1, a PyTorchJob with one Master and three Workers; nprocPerNode as given.
Vars pytorchjob(int index, int replicas, const std::string& processes, int per_node) {
  return kPod + Vars{{"MASTER_ADDR", "mnist-master-0"},
                     {"MASTER_PORT", "23456"},
                     {"PET_MASTER_ADDR", "mnist-master-0"},
                     {"PET_MASTER_PORT", "23456"},
                     {"PET_NNODES", std::to_string(replicas)},
                     {"PET_NODE_RANK", std::to_string(index)},
                     {"PET_NPROC_PER_NODE", processes},
                     {"RANK", std::to_string(index)},
                     {"WORLD_SIZE", std::to_string(replicas * per_node)},
                     {"PYTHONUNBUFFERED", "1"}};
}

// Trainer v2, runtime torch-distributed.
Vars trainjob(int index, int nodes, const std::string& processes) {
  return kPod + Vars{{"JOB_COMPLETION_INDEX", std::to_string(index)},
                     {"PET_NNODES", std::to_string(nodes)},
                     {"PET_NPROC_PER_NODE", processes},
                     {"PET_NODE_RANK", std::to_string(index)},
                     {"PET_MASTER_ADDR", "fit-node-0-0.fit"},
                     {"PET_MASTER_PORT", "29500"}};
}

const std::string kTfCluster =
    R"("cluster":{"chief":["t-chief-0.ns.svc:2222"],"worker":["t-worker-0.ns.svc:2222","t-worker-1.ns.svc:2222"],)"
    R"("ps":["t-ps-0.ns.svc:2222"]},"environment":"cloud")";
Vars tf_config(const std::string& task) {
  return kPod + Vars{{"TF_CONFIG", "{" + kTfCluster + ",\"task\":" + task + "}"}};
}

struct Case {
  const char* name;
  Vars variables;
  Platform platform;
  std::string rank;  // a regular expression for the identity of a process that the pod starts itself
  std::string node;  // a regular expression for the node that `farandole run` finds
};

class Pods : public ::testing::TestWithParam<Case> {};

TEST_P(Pods, HaveTheExpectedIdentity) {
  EXPECT_THAT(answer(GetParam().variables, GetParam().platform), MatchesRegex(GetParam().rank));
  EXPECT_THAT(node(GetParam().variables, GetParam().platform), MatchesRegex(GetParam().node));
}

INSTANTIATE_TEST_SUITE_P(
    RowsOfTheTable, Pods,
    ::testing::Values(
        Case{"IndexedJob", kPod + Vars{{"JOB_COMPLETION_INDEX", "2"}, {"FARANDOLE_NNODES", "4"}},
             pod("train-2", "train.ml.svc.cluster.local"),
             "rank 2/4 local 0/1 node 2/4 source=indexed-job rendezvous=tcp://train-0.train.ml.svc.cluster.local:29500 "
             "key=derived \\(also saw: FARANDOLE_NNODES=4\\)",
             "node 2/4 source=indexed-job node 0 is train-0.train.ml.svc.cluster.local"},
        Case{"IndexedJobWithPortBase",
             kPod + Vars{{"JOB_COMPLETION_INDEX", "1"}, {"FARANDOLE_NNODES", "2"}, {"FARANDOLE_PORT_BASE", "30100"}},
             pod("train-1", "train"), ".* rendezvous=tcp://train-0.train:30100 .*", "node 1/2 .*"},
        Case{"IndexedJobWithoutACount", kPod + Vars{{"JOB_COMPLETION_INDEX", "2"}}, pod("train-2"),
             "refused: JOB_COMPLETION_INDEX = '2' \\(a Kubernetes Indexed Job\\): .*FARANDOLE_NNODES gives their "
             "number.*",
             "nothing"},
        Case{"IndexedJobOnTheHostsNetwork", kPod + Vars{{"JOB_COMPLETION_INDEX", "1"}, {"FARANDOLE_NNODES", "2"}},
             pod("ip-10-0-3-17"),
             "refused: JOB_COMPLETION_INDEX numbers this node, but nothing gives the address of node 0; set .*",
             "node 1/2 source=indexed-job"},
        Case{"JobSet",
             kPod + Vars{{"JOB_COMPLETION_INDEX", "1"},
                         {"FARANDOLE_JOBSET_JOBS", "2"},
                         {"FARANDOLE_JOBSET_JOB_INDEX", "1"},
                         {"FARANDOLE_JOBSET_PODS_PER_JOB", "2"}},
             pod("js-workers-1-1", "js"),
             "rank 3/4 local 0/1 node 3/4 source=indexed-job rendezvous=tcp://js-workers-0-0.js:29500 .*",
             "node 3/4 source=indexed-job node 0 is js-workers-0-0.js"},
        Case{"JobSetWithoutItsVariables", kPod + Vars{{"JOB_COMPLETION_INDEX", "1"}, {"FARANDOLE_NNODES", "2"}},
             pod("js-workers-1-1", "js.default"),
             "refused: 'js-workers-1-1' is a pod of a later Job of a JobSet.*FARANDOLE_JOBSET_JOBS=.*"
             "FARANDOLE_JOBSET_PODS_PER_JOB=.*FARANDOLE_JOBSET_JOB_INDEX.*job-global-index.*",
             "refused: .*"},
        Case{"JobSetOfOneJob", kPod + Vars{{"JOB_COMPLETION_INDEX", "1"}, {"FARANDOLE_NNODES", "2"}},
             pod("js-workers-0-1", "js.default"), "rank 1/2 .*", "node 1/2 .*"},
        Case{"JobWhoseNameEndsInANumber", kPod + Vars{{"JOB_COMPLETION_INDEX", "1"}, {"FARANDOLE_NNODES", "2"}},
             pod("run-7-1", "run"), "rank 1/2 .* rendezvous=tcp://run-7-0.run:29500 .*", "node 1/2 .*"},
        Case{"StatefulSet", kPod + Vars{{"FARANDOLE_RANK_FROM", "hostname"}, {"FARANDOLE_NNODES", "3"}},
             pod("web-2", "web.default"), "rank 2/3 .* source=hostname rendezvous=tcp://web-0.web.default:29500 .*",
             "node 2/3 source=hostname node 0 is web-0.web.default"},
        Case{"StatefulSetThatBeginsAtFive",
             kPod +
                 Vars{{"FARANDOLE_RANK_FROM", "hostname"}, {"FARANDOLE_NNODES", "3"}, {"FARANDOLE_ORDINAL_START", "5"}},
             pod("web-7", "web"), "rank 2/3 .* rendezvous=tcp://web-5.web:29500 .*", "node 2/3 .*"},
        Case{"StatefulSetBeyondItsCount", kPod + Vars{{"FARANDOLE_RANK_FROM", "hostname"}, {"FARANDOLE_NNODES", "2"}},
             pod("web-2"), "refused: the host name 'web-2' makes this node 2 of 2; .*", "refused: .*"},
        Case{"StatefulSetThatSaysNothing", kPod, pod("web-1"),
             "refused: the host name 'web-1' \\(a pod with a number; .*", "nothing"},
        Case{"DeploymentIsAProcessOfItsOwn", kPod, pod("serve-7c9f8d6b5-x7k2p"), ".* source=single process", "nothing"},
        Case{"LeaderWorkerSet",
             kPod +
                 Vars{{"LWS_WORKER_INDEX", "1"}, {"LWS_GROUP_SIZE", "2"}, {"LWS_LEADER_ADDRESS", "llm-0.llm.default"}},
             pod("llm-0-1"), "rank 1/2 .* source=lws rendezvous=tcp://llm-0.llm.default:29500 .*",
             "node 1/2 source=lws node 0 is llm-0.llm.default"},
        Case{"LeaderOfTheThirdGroup",
             kPod +
                 Vars{{"LWS_WORKER_INDEX", "0"}, {"LWS_GROUP_SIZE", "2"}, {"LWS_LEADER_ADDRESS", "llm-3.llm.default"}},
             pod("llm-3"), "rank 0/2 .* source=lws rendezvous=tcp://llm-3.llm.default:29500 .*", "node 0/2 .*"},
        Case{"PyTorchJobWithTheOperatorsDefaults", pytorchjob(2, 4, "auto", 1), pod("mnist-worker-1"),
             "rank 2/4 .* source=pet rendezvous=tcp://mnist-master-0:23457-23472 key=derived \\(also saw: RANK=2\\)",
             "node 2/4 of 1 process source=pet node 0 is mnist-master-0:23456"},
        Case{"PyTorchJobMaster", pytorchjob(0, 4, "auto", 1), pod("mnist-master-0"), "rank 0/4 .* source=pet .*",
             "node 0/4 .*"},
        Case{"PyTorchJobOfEightProcesses", pytorchjob(1, 2, "8", 8), pod("mnist-worker-0"),
             "refused: PET_NODE_RANK numbers this pod and not this process \\(node 1/2 of 8 processes .*; start with "
             "`farandole run` in each pod, .*",
             "node 1/2 of 8 processes source=pet node 0 is mnist-master-0:23456"},
        Case{"PyTorchJobOfOldOperators",
             kPod + Vars{{"RANK", "1"}, {"WORLD_SIZE", "3"}, {"MASTER_ADDR", "m-master-0"}, {"MASTER_PORT", "23456"}},
             pod("m-worker-0"), "rank 1/3 .* source=bare-rank rendezvous=tcp://m-master-0:23457-23472 .*",
             "node 1/3 of 1 process source=bare-rank .*"},
        Case{"PyTorchJobElastic",
             kPod + Vars{{"PET_NNODES", "2:4"},
                         {"PET_NPROC_PER_NODE", "2"},
                         {"PET_RDZV_ENDPOINT", "el-worker-0:23456"},
                         {"PET_RDZV_BACKEND", "c10d"},
                         {"PET_RDZV_ID", "el"},
                         {"PET_MAX_RESTARTS", "3"}},
             pod("el-worker-3"), "refused: PET_NNODES numbers this pod and not this process .*",
             "node 3/4 \\(at least 2\\) of 2 processes source=elastic-pet node 0 is el-worker-0:23456"},
        Case{"PyTorchJobElasticOfOneProcess",
             kPod + Vars{{"PET_NNODES", "1:3"}, {"PET_RDZV_ENDPOINT", "el-worker-0:23456"}}, pod("el-worker-0"),
             "rank 0/3 .* source=elastic-pet .*", "node 0/3 .*"},
        Case{"TrainJobTorch", trainjob(1, 2, "1"), pod("fit-node-0-1", "fit"),
             "rank 1/2 .* source=pet rendezvous=tcp://fit-node-0-0.fit:29501-29516 .*",
             "node 1/2 of 1 process source=pet node 0 is fit-node-0-0.fit:29500"},
        Case{"TrainJobTorchOfAsManyProcessesAsCores", trainjob(1, 2, "4"), pod("fit-node-0-1"), "refused: .*",
             "node 1/2 of 4 processes .*"},
        Case{"TrainJobTorchAuto", trainjob(0, 2, "auto"), pod("fit-node-0-0"),
             "refused: .*of 'auto' processes.*farandole run.*", "node 0/2 of 'auto' processes .*"},
        Case{"TrainJobPlain", kPod + Vars{{"JOB_COMPLETION_INDEX", "1"}, {"FARANDOLE_NNODES", "2"}},
             pod("fit-node-0-1", "fit"), "rank 1/2 .* rendezvous=tcp://fit-node-0-0.fit:29500 .*", "node 1/2 .*"},
        Case{"JaxJob",
             kPod + Vars{{"PROCESS_ID", "1"},
                         {"NUM_PROCESSES", "2"},
                         {"COORDINATOR_ADDRESS", "jx-worker-0"},
                         {"COORDINATOR_PORT", "6666"}},
             pod("jx-worker-1"), "rank 1/2 .* source=jax rendezvous=tcp://jx-worker-0:6667-6682 .*", "node 1/2 .*"},
        Case{"TrainJobJax",
             kPod + Vars{{"JAX_PROCESS_ID", "0"},
                         {"JAX_NUM_PROCESSES", "2"},
                         {"JAX_COORDINATOR_ADDRESS", "jx-node-0-0.jx:1234"}},
             pod("jx-node-0-0"), "rank 0/2 .* source=jax rendezvous=tcp://jx-node-0-0.jx:1235-1250 .*", "node 0/2 .*"},
        Case{"TfJobChief", tf_config(R"({"type":"chief","index":0})"), pod("t-chief-0"),
             "rank 0/3 .* source=tf-config rendezvous=tcp://t-chief-0.ns.svc:29500 .*", "node 0/3 .*"},
        Case{"TfJobWorker", tf_config(R"({"type":"worker","index":1})"), pod("t-worker-1"),
             "rank 2/3 .* source=tf-config rendezvous=tcp://t-chief-0.ns.svc:29500 .*", "node 2/3 .*"},
        Case{"TfJobOfWorkersAlone",
             kPod + Vars{{"TF_CONFIG", R"({"cluster":{"worker":["a:1","b:1"]},"task":{"type":"worker","index":0}})"}},
             pod("a"), "rank 0/2 .* rendezvous=tcp://a:29500 .*", "node 0/2 .*"},
        Case{
            "TfJobSparse",
            kPod + Vars{{"TF_CONFIG",
                         R"({"sparseCluster":{},"cluster":{"worker":{"1":"b:1"}},"task":{"type":"worker","index":1}})"},
                        {"FARANDOLE_NNODES", "2"},
                        {"FARANDOLE_RENDEZVOUS", "tcp://a:29500"}},
            pod("b"), "rank 1/2 .* source=tf-config rendezvous=tcp://a:29500 .*", "node 1/2 .*"},
        Case{"SkyPilot",
             Vars{{"SKYPILOT_NODE_RANK", "1"},
                  {"SKYPILOT_NUM_NODES", "2"},
                  {"SKYPILOT_NUM_GPUS_PER_NODE", "8"},
                  {"SKYPILOT_NODE_IPS", "10.0.0.5\n10.0.0.6"},
                  {"SKYPILOT_TASK_ID", "sky-2026-1"}},
             pod("sky-1"), "refused: .*of 8 processes.*", "node 1/2 of 8 processes source=skypilot node 0 is 10.0.0.5"},
        Case{"AwsBatchMainNode",
             Vars{{"AWS_BATCH_JOB_NODE_INDEX", "0"},
                  {"AWS_BATCH_JOB_NUM_NODES", "2"},
                  {"AWS_BATCH_JOB_MAIN_NODE_INDEX", "0"},
                  {"AWS_BATCH_JOB_ID", "f00#0"},
                  {"AWS_BATCH_JOB_ATTEMPT", "1"}},
             pod("ip-10-0-0-1"), "rank 0/2 .* source=aws-batch rendezvous=tcp://ip-10-0-0-1:29500 .*", "node 0/2 .*"},
        Case{"AwsBatchWorker",
             Vars{{"AWS_BATCH_JOB_NODE_INDEX", "1"},
                  {"AWS_BATCH_JOB_NUM_NODES", "2"},
                  {"AWS_BATCH_JOB_MAIN_NODE_INDEX", "0"},
                  {"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS", "10.0.0.1"},
                  {"AWS_BATCH_JOB_ID", "f00#1"},
                  {"AWS_BATCH_JOB_ATTEMPT", "1"}},
             pod("ip-10-0-0-2"), "rank 1/2 .* rendezvous=tcp://10.0.0.1:29500 .*", "node 1/2 .*"},
        Case{"SageMaker",
             Vars{{"SM_CURRENT_HOST", "algo-2"}, {"SM_HOSTS", R"(["algo-2","algo-1"])"}, {"SM_NUM_GPUS", "0"}},
             pod("algo-2"), "rank 1/2 .* source=sagemaker rendezvous=tcp://algo-1:29500 .*", "node 1/2 .*"},
        Case{"SageMakerWithGpus",
             Vars{{"SM_CURRENT_HOST", "algo-1"}, {"SM_HOSTS", R"(["algo-1","algo-2"])"}, {"SM_NUM_GPUS", "8"}},
             pod("algo-1"), "refused: .*", "node 0/2 of 8 processes source=sagemaker node 0 is algo-1"},
        Case{"Volcano",
             kPod + Vars{{"VC_TASK_INDEX", "1"},
                         {"VC_WORKER_NUM", "2"},
                         {"VC_WORKER_HOSTS", "v-worker-0.v,v-worker-1.v"},
                         {"VC_MASTER_HOSTS", "v-master-0.v"},
                         {"VC_MASTER_NUM", "1"}},
             pod("v-worker-1"), "rank 2/3 .* source=volcano rendezvous=tcp://v-master-0.v:29500 .*", "node 2/3 .*"},
        Case{"NodeByHand",
             kPod + Vars{{"FARANDOLE_NODE_RANK", "1"},
                         {"FARANDOLE_NNODES", "2"},
                         {"JOB_COMPLETION_INDEX", "0"},
                         {"FARANDOLE_RENDEZVOUS", "tcp://server:29500"}},
             pod("x"), "rank 1/2 local 0/1 node 1/2 source=node rendezvous=tcp://server:29500 .*",
             "node 1/2 source=node"}),
    [](const auto& one) { return one.param.name; });

// ---- mpirun across pods ----

Vars open_mpi(int rank, int size, int local_rank, int local_size) {
  return {{"OMPI_COMM_WORLD_RANK", std::to_string(rank)},
          {"OMPI_COMM_WORLD_SIZE", std::to_string(size)},
          {"OMPI_COMM_WORLD_LOCAL_RANK", std::to_string(local_rank)},
          {"OMPI_COMM_WORLD_LOCAL_SIZE", std::to_string(local_size)},
          {"OMPI_UNIVERSE_SIZE", std::to_string(size)},
          {"PMIX_RANK", std::to_string(rank)},
          {"PMIX_NAMESPACE", "prterun-pi-launcher-17@1"}};
}

TEST(MpiAcrossPods, RanksOfAnMpiJobMeetAtWorkerZero) {
  EXPECT_EQ(answer(open_mpi(1, 2, 0, 1), pod("pi-worker-1", "pi.ml.svc.cluster.local")),
            "rank 1/2 local 0/1 source=openmpi rendezvous=tcp://pi-worker-0.pi.ml.svc.cluster.local:29500 key=derived "
            "(also saw: PMIX_RANK=1)");
  // Hydra passes the launcher's environment to the ranks, so the pod's own name decides.
  const Vars hydra = {{"PMI_RANK", "1"},
                      {"PMI_SIZE", "2"},
                      {"PMI_FD", "9999"},
                      {"MPI_LOCALRANKID", "0"},
                      {"MPI_LOCALNRANKS", "1"},
                      {"HOSTNAME", "pi-launcher"},
                      {"K_MPI_JOB_ROLE", "launcher"}};
  EXPECT_THAT(answer(hydra, pod("pi-worker-1", "pi")),
              MatchesRegex("rank 1/2 local 0/1 source=pmi rendezvous=tcp://pi-worker-0.pi:29500 key=derived .*"));
}

TEST(MpiAcrossPods, HydrasRanksDeriveOneKeyAcrossProxies) {
  const Vars rank = {
      {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_PORT", "a:1"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "1"}};
  const auto key_of = [](const Vars& variables, const Platform& platform) {
    const Environment environment(variables);
    return who_am_i(environment, *Config::read(environment), platform)->job_key;
  };
  EXPECT_EQ(key_of(rank + Vars{{"PMI_RANK", "0"}}, pod("pi-worker-0", "pi")), key_of(rank, pod("pi-worker-1", "pi")));
}

TEST(MpiAcrossPods, WarnsIfAllRanksRunOnTheLauncherDespiteAHostfile) {
  Warnings warnings;
  Platform platform = pod("pi-launcher");
  platform.mpi_hostfile = "pi-worker-0.pi.ml.svc slots=1\npi-worker-1.pi.ml.svc slots=1\n";
  EXPECT_THAT(answer(open_mpi(0, 2, 0, 2), platform), HasSubstr("rank 0/2"));
  ASSERT_EQ(warnings.lines().size(), 1u);
  EXPECT_THAT(warnings.lines()[0], HasSubstr("all 2 ranks are on 'pi-launcher', but /etc/mpi/hostfile lists 2 other"));
  EXPECT_THAT(warnings.lines()[0], HasSubstr("mpirun --hostfile /etc/mpi/hostfile"));
  EXPECT_THAT(answer(open_mpi(0, 2, 0, 2) + Vars{{"FARANDOLE_STRICT_ENV", "1"}}, platform),
              MatchesRegex("refused: all 2 ranks are on .*"));
  // Only rank 0 logs the warning.
  EXPECT_THAT(answer(open_mpi(1, 2, 1, 2), platform), HasSubstr("rank 1/2"));
  EXPECT_EQ(warnings.lines().size(), 1u);
}

TEST(MpiAcrossPods, WarnsIfEachPodOfAJobRunsItsOwnMpirun) {
  Warnings warnings;
  const Vars job = {{"FARANDOLE_NNODES", "2"}, {"JOB_COMPLETION_INDEX", "1"}};
  EXPECT_THAT(answer(open_mpi(0, 2, 0, 2) + job, pod("train-1")), HasSubstr("rank 0/2"));
  ASSERT_EQ(warnings.lines().size(), 1u);
  EXPECT_THAT(warnings.lines()[0],
              HasSubstr("FARANDOLE_NNODES = '2', but the 2 ranks of openmpi are all on 'train-1'"));
}

// ---- Precedence between levels ----

TEST(Levels, TorchrunInAPodOfAPyTorchJobNumbersProcesses) {
  Warnings warnings;
  const Vars torchrun = {{"RANK", "9"},        {"WORLD_SIZE", "16"},         {"LOCAL_RANK", "1"},
                         {"GROUP_RANK", "1"},  {"LOCAL_WORLD_SIZE", "8"},    {"GROUP_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "m"}, {"TORCHELASTIC_RUN_ID", "1"}, {"MASTER_PORT", "23456"}};
  EXPECT_THAT(answer(pytorchjob(1, 2, "8", 8) + torchrun, pod("mnist-worker-0")),
              MatchesRegex("rank 9/16 local 1/8 node 1/2 source=torchrun .* \\(also saw: PET_NODE_RANK=1\\)"));
  EXPECT_THAT(warnings.lines(), ElementsAre());
}

TEST(Levels, EarlierNodeRowWins) {
  EXPECT_THAT(node(trainjob(1, 2, "1") + Vars{{"FARANDOLE_NNODES", "7"}}, pod("fit-node-0-1")), HasSubstr("node 1/2"));
}

// ---- Invalid variables: half a pair, contradictions, services called like variables ----

struct InvalidCase {
  const char* name;
  Vars variables;
  const char* expected;  // part of the error
};

class InvalidVariables : public ::testing::TestWithParam<InvalidCase> {};

TEST_P(InvalidVariables, AreAnErrorThatQuotesThem) {
  const std::string error = answer(GetParam().variables, pod("x"));
  EXPECT_THAT(error, MatchesRegex("refused: .*"));
  EXPECT_THAT(error, HasSubstr(GetParam().expected));
  EXPECT_THAT(node(GetParam().variables, pod("x")), HasSubstr(GetParam().expected));
}

INSTANTIATE_TEST_SUITE_P(
    Variables, InvalidVariables,
    ::testing::Values(
        InvalidCase{
            "HalfPet", {{"PET_NODE_RANK", "1"}}, "PET_NODE_RANK = '1' but PET_NNODES is not set: both are needed"},
        InvalidCase{"HalfLws", {{"LWS_GROUP_SIZE", "2"}}, "LWS_WORKER_INDEX is not set but LWS_GROUP_SIZE = '2'"},
        InvalidCase{"HalfJax", {{"JAX_PROCESS_ID", "2"}}, "JAX_PROCESS_ID = '2' but JAX_NUM_PROCESSES is not set"},
        InvalidCase{"HalfBatch", {{"AWS_BATCH_JOB_NODE_INDEX", "2"}}, "but AWS_BATCH_JOB_NUM_NODES is not set"},
        InvalidCase{"HalfSky", {{"SKYPILOT_NUM_NODES", "2"}}, "SKYPILOT_NODE_RANK is not set but"},
        InvalidCase{
            "HalfByHand", {{"FARANDOLE_NODE_RANK", "0"}}, "FARANDOLE_NODE_RANK = '0' but FARANDOLE_NODE_COUNT is not"},
        InvalidCase{"WorldSizeOfAService",
                    {{"RANK", "0"}, {"WORLD_SIZE", "tcp://10.0.0.1:80"}},
                    "RANK = '0' but WORLD_SIZE is not set"},
        InvalidCase{"WorldSizeThatDoesNotDivide", pytorchjob(1, 4, "auto", 1) + Vars{{"WORLD_SIZE", "6"}},
                    "WORLD_SIZE = '6', but PET_NNODES = '4' and PET_NPROC_PER_NODE = 'auto'"},
        InvalidCase{"WorldSizeThatContradicts", pytorchjob(1, 4, "2", 2) + Vars{{"WORLD_SIZE", "4"}},
                    "WORLD_SIZE = '4', but PET_NNODES = '4' and PET_NPROC_PER_NODE = '2'"},
        InvalidCase{"TwoNumbersOfOnePod", pytorchjob(1, 4, "auto", 1) + Vars{{"RANK", "2"}},
                    "RANK = '2', but PET_NODE_RANK = '1': both number this pod"},
        InvalidCase{"IndexBeyondTheCount",
                    {{"JOB_COMPLETION_INDEX", "4"}, {"FARANDOLE_NNODES", "4"}},
                    "makes this node 4, which is not below the 4 nodes"},
        InvalidCase{"RankFromAHostNameWithoutANumber",
                    {{"FARANDOLE_RANK_FROM", "hostname"}, {"FARANDOLE_NNODES", "4"}},
                    "this host is called 'x'"},
        InvalidCase{
            "ElasticBackwards", {{"PET_NNODES", "4:2"}}, "PET_NNODES = '4:2' is no number of nodes, nor MIN:MAX"},
        InvalidCase{"ElasticWithoutANumber", {{"PET_NNODES", "2:4"}}, "the host name 'x' does not either"},
        InvalidCase{"RowK18ParameterServer", tf_config(R"({"type":"ps","index":0})"),
                    "this task is a 'ps', and only chief, master and worker are ranks"},
        InvalidCase{"RowK18Evaluator", tf_config(R"({"type":"evaluator","index":0})"), "this task is a 'evaluator'"},
        InvalidCase{"TfConfigCut", {{"TF_CONFIG", R"({"cluster":)"}}, "TF_CONFIG: invalid JSON at character"},
        InvalidCase{
            "TfConfigWithoutTask", {{"TF_CONFIG", R"({"cluster":{"worker":["a:1"]}})"}}, "task.type or task.index"},
        InvalidCase{"TfConfigBeyondItsCluster", tf_config(R"({"type":"worker","index":2})"),
                    "worker 2 is not among the 3"},
        InvalidCase{"TfConfigSparseWithoutSize",
                    {{"TF_CONFIG", R"({"cluster":{"worker":{"1":"b:1"}},"task":{"type":"worker","index":1}})"}},
                    "lists only some workers (enableDynamicWorker)"},
        InvalidCase{"SageMakerHostUnknown",
                    {{"SM_CURRENT_HOST", "algo-3"}, {"SM_HOSTS", R"(["algo-1"])"}},
                    "SM_CURRENT_HOST = 'algo-3' is not in"},
        InvalidCase{"VolcanoWithoutLists", {{"VC_TASK_INDEX", "0"}}, "no VC_<TASK>_HOSTS lists this host, 'x'"}),
    [](const auto& one) { return one.param.name; });

TEST(ServiceLinks, AreIgnoredAndExplained) {
  const Vars variables = pytorchjob(1, 4, "auto", 1) +
                         Vars{{"PET_MASTER_PORT", "tcp://10.0.0.1:23456"}, {"MASTER_PORT", "tcp://10.0.0.1:23456"}};
  EXPECT_THAT(answer(variables, pod("mnist-worker-0")), HasSubstr("rendezvous=tcp://mnist-master-0:29500"));
  const Environment environment(variables);
  const Explanation explanation = explain_identity(environment, *Config::read(environment), pod("mnist-worker-0"));
  EXPECT_THAT(explanation.notes,
              Contains(HasSubstr("MASTER_PORT = 'tcp://10.0.0.1:23456' is a service's, and ignored")));
}

// ---- Explanations ----

std::string decision_of(const Explanation& explanation, const std::string& row) {
  for (const Explanation::Row& one : explanation.rows) {
    if (one.name == row) return one.result;
  }
  return "no such row";
}

TEST(Explanations, ListTheResultOfEveryRow) {
  const Environment environment(pytorchjob(1, 2, "8", 8) + open_mpi(3, 4, 1, 2) +
                                Vars{{"SLURM_PROCID", "0"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
  const Explanation explanation = explain_identity(environment, *Config::read(environment), pod("a-worker-0", "a"));
  EXPECT_EQ(explanation.rows.size(), supported_launchers().size());
  ASSERT_TRUE(explanation.identity.ok()) << explanation.identity.status().text();
  EXPECT_EQ(explanation.identity->rank, 3);
  EXPECT_EQ(decision_of(explanation, "farandole"), "absent");
  EXPECT_EQ(decision_of(explanation, "openmpi"), "chosen");
  EXPECT_EQ(decision_of(explanation, "pmi"), "ignored");
  EXPECT_EQ(decision_of(explanation, "slurm"), "ignored");
  EXPECT_EQ(decision_of(explanation, "pet"), "numbers nodes");
  EXPECT_THAT(explanation.node, HasSubstr("node 1/2 of 8 processes"));
}

TEST(Explanations, OfAnErrorNameTheBrokenRow) {
  const Environment environment(Vars{{"PET_NODE_RANK", "1"}, {"JOB_COMPLETION_INDEX", "1"}});
  const Explanation explanation = explain_identity(environment, *Config::read(environment), pod("a-1"));
  ASSERT_FALSE(explanation.identity.ok());
  EXPECT_EQ(decision_of(explanation, "pet"), "broken");
  EXPECT_EQ(decision_of(explanation, "indexed-job"), "ignored");
}

// ---- Host names, hosts files and keys ----

TEST(HostNames, OrdinalsOfControllersAreRecognised) {
  EXPECT_EQ(ordinal_of("train-12")->number, 12);
  EXPECT_EQ(ordinal_of("train-12")->prefix, "train-");
  EXPECT_EQ(ordinal_of("train-3.train.ns")->number, 3);
  for (const char* name : {"train", "train-", "-3", "train-03", "serve-7c9f8-24567", "serve-7c9f8-x7k2p", "a3", ""}) {
    EXPECT_FALSE(ordinal_of(name)) << name;
  }
}

TEST(HostsFiles, ContainTheDomainOfAPodWithASubdomain) {
  const std::string text =
      "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\nfe00::0\tip6-localnet\n"
      "10.244.1.7\ttrain-3.train.ml.svc.cluster.local\ttrain-3\n";
  EXPECT_EQ(domain_in_hosts_file(text, "train-3"), "train.ml.svc.cluster.local");
  EXPECT_EQ(domain_in_hosts_file(text, "train-4"), "");
  EXPECT_EQ(domain_in_hosts_file("10.0.0.1 train-3\n", "train-3"), "");
}

TEST(Hostfiles, CountTheOtherHosts) {
  EXPECT_EQ(other_hosts_in("a-worker-0.a slots=2\na-worker-1.a:2\n# no\n\n", "a-worker-0"), 1);
  EXPECT_EQ(other_hosts_in("", "a"), 0);
}

TEST(JobKeys, AreReadFromTheFileOfAMountedSecret) {
  const std::string path = ::testing::TempDir() + "farandole-job-key";
  const Vars by_hand = {{"FARANDOLE_RANK", "0"},
                        {"FARANDOLE_SIZE", "2"},
                        {"FARANDOLE_RENDEZVOUS", "tcp://a:1"},
                        {"FARANDOLE_JOB_KEY_FILE", path}};
  const auto identity = [&](const Vars& variables) {
    const Environment environment(variables);
    return who_am_i(environment, *Config::read(environment), pod("x"));
  };
  std::ofstream(path) << "0123456789abcdef\n";
  EXPECT_EQ(identity(by_hand)->job_key, "0123456789abcdef");
  EXPECT_FALSE(identity(by_hand)->job_key_is_derived);
  EXPECT_EQ(identity(by_hand + Vars{{"FARANDOLE_JOB_KEY", "another-secret-16"}})->job_key, "another-secret-16");
  std::ofstream(path) << "short\n";
  EXPECT_THAT(identity(by_hand).status().text(), HasSubstr("the key in FARANDOLE_JOB_KEY_FILE has 5 characters"));
  EXPECT_THAT(identity(by_hand + Vars{{"FARANDOLE_JOB_KEY_FILE", "/no/such"}}).status().text(),
              HasSubstr("cannot be read from FARANDOLE_JOB_KEY_FILE = '/no/such': No such file"));
  const test::NoDescriptors none;
  EXPECT_EQ(identity(by_hand).status().code(), Code::resource);
  EXPECT_THAT(identity(by_hand).status().text(), HasSubstr("raise `ulimit -n`"));
}

TEST(JobKeys, AreTextWithEnoughCharacters) {
  const std::string path = ::testing::TempDir() + "farandole-job-key-text";
  const auto key_in = [&](const std::string& content) {
    std::ofstream(path, std::ios::binary) << content;
    return given_job_key(*Config::read(Environment(Vars{{"FARANDOLE_JOB_KEY_FILE", path}})));
  };
  const std::string begin = "the job key cannot be read from FARANDOLE_JOB_KEY_FILE = '" + path + "': ";
  const std::string remedy = "`openssl rand -hex 16` makes a good one";
  EXPECT_EQ(key_in("\xff\xfe and 14 others\n").take(), "\xff\xfe and 14 others");
  EXPECT_EQ(key_in(std::string("0123456789abcdef\0rest", 21)).status().text(),
            begin + "it contains a NUL byte; write text there: " + remedy);
  EXPECT_EQ(
      key_in(std::string(26, ' ') + "\n").status().text(),
      "the key in FARANDOLE_JOB_KEY_FILE has 0 characters without the spaces at its ends, and needs 16 or more; " +
          remedy);
  EXPECT_EQ(key_in(std::string(20, '\n')).status().code(), Code::invalid_argument);
  EXPECT_EQ(key_in("").status().text(), begin + "it is empty; mount the secret there, readable for this user");
  EXPECT_TRUE(key_in(std::string(65536, 'x')).ok());
  EXPECT_EQ(key_in(std::string(65537, 'x')).status().text(), begin + "it has more than 65536 bytes; " + remedy);
  EXPECT_EQ(
      given_job_key(*Config::read(Environment(Vars{{"FARANDOLE_JOB_KEY", "  15 letters here "}}))).status().text(),
      "FARANDOLE_JOB_KEY has 15 characters without the spaces at its ends, and needs 16 or more; " + remedy);
}

TEST(PodNames, AreThoseOfTheController) {
  const auto name = [](const Vars& variables, const Platform& platform, int index) {
    const Environment environment(variables);
    const auto found = find_node(Variables(environment), platform);
    return found.ok() && *found ? pod_name(**found, index) : "nothing";
  };
  EXPECT_EQ(name({{"JOB_COMPLETION_INDEX", "2"}, {"FARANDOLE_NNODES", "4"}}, pod("train-2"), 3), "train-3");
  EXPECT_EQ(name(pytorchjob(0, 4, "auto", 1), pod("mnist-master-0"), 3), "mnist-worker-2");
  EXPECT_EQ(name(pytorchjob(0, 4, "auto", 1), pod("mnist-master-0"), 0), "mnist-master-0");
  EXPECT_EQ(name(pytorchjob(2, 4, "auto", 1), pod("mnist-worker-1"), 3), "")
      << "the pod's own number is not its node's";
}

// ---- EFA: a tree of files as in sysfs ----

class EfaTree : public ::testing::Test {
 protected:
  EfaTree() : root_(::testing::TempDir() + "farandole-efa-" + std::to_string(::getpid())) {}
  ~EfaTree() override { std::filesystem::remove_all(root_); }

  void device(const std::string& name, const std::string& vendor) {
    const std::string folder = root_ + "/sys/class/infiniband/" + name;
    std::filesystem::create_directories(folder + "/device");
    std::filesystem::create_directories(folder + "/ports/1/hw_counters");
    std::ofstream(folder + "/device/vendor") << vendor << "\n";
    std::ofstream(folder + "/ports/1/hw_counters/tx_bytes") << 4096 << "\n";
    std::ofstream(folder + "/ports/1/hw_counters/rdma_read_bytes") << 77 << "\n";
  }
  void put(const std::string& path) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << "";
  }
  EfaFacts facts(int expected = 0) {
    Config config;
    config.sysfs_root = root_ + "/sys";
    config.expect_efa = expected;
    return efa_facts(config, root_);
  }
  std::string why(int expected = 0) { return why_no_efa(facts(expected), "no setting names it"); }
  void model(const std::string& name) {
    put("/sys/devices/virtual/dmi/id/product_name");
    std::ofstream(root_ + "/sys/devices/virtual/dmi/id/product_name") << name << "\n";
  }

  const std::string root_;
};

TEST_F(EfaTree, ReportsTheFirstMissingPrerequisite) {
  std::filesystem::create_directories(root_);
  EXPECT_THAT(why(), HasSubstr("there is no /sys/class/infiniband"));
  std::filesystem::create_directories(root_ + "/sys/class/infiniband");
  EXPECT_THAT(why(), HasSubstr("no device: the pod must request vpc.amazonaws.com/efa"));
  device("mlx5_0", "0x15b3");
  EXPECT_THAT(why(), HasSubstr("mlx5_0 is not an EFA device: a hostPath mount"));
  device("rdmap16s27", "0x1d0f");
  EXPECT_THAT(why(), HasSubstr("rdmap16s27 and mlx5_0 are mixed"));
  std::filesystem::remove_all(root_ + "/sys/class/infiniband/mlx5_0");
  EXPECT_THAT(why(), HasSubstr("/dev/infiniband is not in this pod"));
  put("/dev/infiniband/uverbs0");
  EXPECT_THAT(why(4), HasSubstr("1 of the 4 devices that FARANDOLE_EXPECT_EFA counts"));
  EXPECT_THAT(why(1), HasSubstr("libfabric.so.1 is not in this image"));
  put("/opt/amazon/efa/lib/libfabric.so.1");
  EXPECT_EQ(why(1), "no setting names it");
  EXPECT_THAT(transport_line(facts(4), "tcp", "x"),
              MatchesRegex("transport: tcp; 1 of 4 EFA devices .FARANDOLE_EXPECT_EFA.; "
                           ".*/opt/amazon/efa/lib/libfabric.so.1; EFA not used: 1 of the 4 .*"));
  EXPECT_EQ(transport_line(facts(1), "efa+shm", "x"), "transport: efa+shm; 1 of 1 EFA devices (FARANDOLE_EXPECT_EFA)");
}

TEST_F(EfaTree, ExpectsTheDevicesOfTheInstanceType) {
  EXPECT_EQ(efa_devices_of("p5.48xlarge"), 32);
  EXPECT_EQ(efa_devices_of("p5.4xlarge"), 1);
  EXPECT_EQ(efa_devices_of("hpc7a.96xlarge"), 2);
  EXPECT_EQ(efa_devices_of("m5.xlarge"), 0);
  model("p4d.24xlarge");
  EXPECT_EQ(facts().expected, 4);
  EXPECT_EQ(facts().expected_by, "p4d.24xlarge");
  EXPECT_FALSE(facts().is_demanded);
  EXPECT_EQ(facts(2).expected, 2);
  EXPECT_TRUE(facts(2).is_demanded);
}

TEST_F(EfaTree, TheAnswersOfRanksNameThoseWithoutEfa) {
  EXPECT_EQ(efa_answer(facts()), EfaAnswer::no_class);
  std::filesystem::create_directories(root_ + "/sys/class/infiniband");
  EXPECT_EQ(efa_answer(facts()), EfaAnswer::no_device);
  device("mlx5_0", "0x15b3");
  EXPECT_EQ(efa_answer(facts()), EfaAnswer::foreign_devices);
  device("rdmap16s27", "0x1d0f");
  EXPECT_EQ(efa_answer(facts()), EfaAnswer::usable);
  EXPECT_EQ(efa_answer(facts(2)), EfaAnswer::too_few);
  const std::vector<Member> members = {{0, "a", "host-a"}, {1, "b", "host-b"}, {2, "b", "host-b"}};
  const auto usable = EfaAnswer::usable, none = EfaAnswer::no_device;
  EXPECT_EQ(who_lacks_efa(members, std::vector{usable, usable, usable}), "");
  EXPECT_EQ(who_lacks_efa(members, std::vector{usable, none, none}),
            "rank 1 (host-b) and rank 2 (host-b): it has no EFA device");
  EXPECT_EQ(who_lacks_efa(members, std::vector{EfaAnswer::no_provider, none, usable}),
            "rank 1 (host-b): it has no EFA device; rank 0 (host-a): its libfabric offers no provider efa");
  const auto demanded = EfaAnswer::not_asked, no_plugin = EfaAnswer::no_nccl_plugin;
  EXPECT_EQ(who_lacks_nccl_plugin(members, std::vector{demanded, demanded, demanded}), "");
  EXPECT_EQ(who_lacks_nccl_plugin(members, std::vector{demanded, no_plugin, demanded}),
            "rank 1 (host-b): its NCCL finds no network plugin");
}

TEST_F(EfaTree, ReadsTheCountersOfADevice) {
  device("rdmap16s27", "0x1d0f");
  const EfaCounters moved = efa_counters(root_ + "/sys", "rdmap16s27");
  EXPECT_EQ(moved.sent_bytes, 4096u);
  EXPECT_EQ(moved.read_bytes, 77u);
  EXPECT_EQ(moved.received_bytes, 0u);
  EXPECT_EQ((moved - EfaCounters{.sent_bytes = 4000, .read_bytes = 100}).sent_bytes, 96u);
  EXPECT_EQ((moved - EfaCounters{.sent_bytes = 4000, .read_bytes = 100}).read_bytes, 77u) << "it was reset";
}

}  // namespace
}  // namespace fdl
