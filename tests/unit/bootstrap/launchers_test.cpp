// Tests of the launchers: an environment gives the identity of a process, or an error that names the fault.
#include "bootstrap/launchers/launchers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <span>

#include "bootstrap/launchers/slurm_lists.h"
#include "bootstrap/rendezvous/rendezvous.h"
#include "bootstrap/rendezvous/rendezvous_address.h"
#include "bootstrap/topology/topology.h"
#include "tests/support/variables.h"

namespace fdl {
namespace {

using namespace fdl::test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;

// A host that is not a pod; tests of pods pass their own platform.
const Platform kPlainHost{.host_name = "box", .domain = {}, .mpi_hostfile = {}};

Result<Identity> identify(const Vars& variables, const Platform& platform = kPlainHost) {
  const Environment environment(variables);
  auto config = Config::read(environment);
  EXPECT_TRUE(config.ok()) << config.status().text();
  return who_am_i(environment, *config, platform);
}

// Returns the line of the identity, or "CODE: text" of the error.
std::string answer(const Vars& variables, const Platform& platform = kPlainHost) {
  const auto identity = identify(variables, platform);
  if (identity.ok()) return identity->line();
  return std::string(name_of(identity.status().code())) + ": " + identity.status().text();
}

const Vars kTorchrun = {{"RANK", "3"},
                        {"WORLD_SIZE", "8"},
                        {"LOCAL_RANK", "1"},
                        {"LOCAL_WORLD_SIZE", "2"},
                        {"GROUP_RANK", "1"},
                        {"GROUP_WORLD_SIZE", "4"},
                        {"MASTER_ADDR", "a-0.a"},
                        {"MASTER_PORT", "29500"},
                        {"TORCHELASTIC_RUN_ID", "job-7"},
                        {"TORCHELASTIC_RESTART_COUNT", "0"}};
const Vars kOpenMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                       {"OMPI_COMM_WORLD_SIZE", "2"},
                       {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                       {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                       {"PMIX_NAMESPACE", "prterun-a-17@1"}};
const Vars kHydra = {
    {"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"PMI_FD", "9999"}, {"MPI_LOCALRANKID", "0"}, {"MPI_LOCALNRANKS", "2"}};
const Vars kSlurm = {{"SLURM_PROCID", "2"},  {"SLURM_STEP_NUM_TASKS", "3"}, {"SLURM_LOCALID", "0"},
                     {"SLURM_NODEID", "1"},  {"SLURM_STEP_NUM_NODES", "2"}, {"SLURM_STEP_TASKS_PER_NODE", "2,1"},
                     {"SLURM_STEP_ID", "0"}, {"SLURM_JOB_ID", "4711"},      {"SLURM_STEP_NODELIST", "n[07-08]"},
                     {"SLURM_NTASKS", "3"}};
const Vars kHorovod = {{"HOROVOD_RANK", "1"},
                       {"HOROVOD_SIZE", "4"},
                       {"HOROVOD_LOCAL_RANK", "1"},
                       {"HOROVOD_LOCAL_SIZE", "2"},
                       {"HOROVOD_CROSS_RANK", "0"},
                       {"HOROVOD_CROSS_SIZE", "2"},
                       {"HOROVOD_GLOO_RENDEZVOUS_ADDR", "10.0.0.1"},
                       {"HOROVOD_GLOO_RENDEZVOUS_PORT", "4000"}};
const Vars kByHand = {{"FARANDOLE_RANK", "0"},
                      {"FARANDOLE_SIZE", "2"},
                      {"FARANDOLE_RENDEZVOUS", "tcp://a:4242"},
                      {"FARANDOLE_JOB_KEY", "sixteen-or-more!"}};

struct Case {
  const char* name;
  Vars variables;
  std::string expected;  // a regular expression for the whole answer
};

class Environments : public ::testing::TestWithParam<Case> {};

TEST_P(Environments, GiveTheExpectedLine) {
  EXPECT_THAT(answer(GetParam().variables), MatchesRegex(GetParam().expected));
}

const std::string kUnix = "unix:@farandole-[0-9a-f]+";

INSTANTIATE_TEST_SUITE_P(
    Accepted, Environments,
    ::testing::Values(
        Case{"Nothing", {}, "rank 0/1 local 0/1 node 0/1 source=single process"},
        Case{"UnrelatedVariables", {{"PATH", "/bin"}, {"SLURM_CONF", "x"}}, ".* source=single process"},
        Case{"ByHand", kByHand, "rank 0/2 source=farandole rendezvous=tcp://a:4242"},
        Case{"FarandoleRun",
             kByHand + Vars{{"FARANDOLE_LOCAL_RANK", "0"},
                            {"FARANDOLE_LOCAL_SIZE", "1"},
                            {"FARANDOLE_NODE_RANK", "0"},
                            {"FARANDOLE_NODE_COUNT", "2"},
                            {"FARANDOLE_RENDEZVOUS", "tcp://a:4242?coordinator=1"}},
             "rank 0/2 local 0/1 node 0/2 source=farandole rendezvous=tcp://a:4242\\?coordinator=1"},
        Case{"AloneByHand",
             {{"FARANDOLE_RANK", "0"}, {"FARANDOLE_SIZE", "1"}, {"JOB_COMPLETION_INDEX", "3"}},
             "rank 0/1 source=farandole \\(also saw: JOB_COMPLETION_INDEX=3\\)"},
        Case{"Horovod", kHorovod,
             "rank 1/4 local 1/2 node 0/2 source=horovod rendezvous=tcp://10.0.0.1:4001-4016 key=derived"},
        Case{"Torchrun", kTorchrun,
             "rank 3/8 local 1/2 node 1/4 source=torchrun rendezvous=tcp://a-0.a:29501-29516 key=derived"},
        Case{"TorchrunOverIpv6", kTorchrun + Vars{{"MASTER_ADDR", "fd00::7"}},
             ".* rendezvous=tcp://\\[fd00::7\\]:29501-29516 key=derived"},
        Case{"TorchrunAtTheLastPort", kTorchrun + Vars{{"MASTER_PORT", "65535"}},
             ".* rendezvous=tcp://a-0.a:65519-65534 key=derived"},
        Case{"TorchrunOnOneHost",
             kTorchrun + Vars{{"WORLD_SIZE", "4"},
                              {"LOCAL_RANK", "3"},
                              {"LOCAL_WORLD_SIZE", "4"},
                              {"GROUP_RANK", "0"},
                              {"GROUP_WORLD_SIZE", "1"}},
             "rank 3/4 local 3/4 node 0/1 source=torchrun rendezvous=" + kUnix + " key=derived"},
        Case{"RayTrain",
             {{"RANK", "0"},
              {"WORLD_SIZE", "2"},
              {"LOCAL_RANK", "0"},
              {"LOCAL_WORLD_SIZE", "1"},
              {"MASTER_ADDR", "h"},
              {"MASTER_PORT", "5000"}},
             "rank 0/2 local 0/1 source=torchrun rendezvous=tcp://h:5001-5016 key=derived"},
        Case{"Mvapich2",
             {{"MV2_COMM_WORLD_RANK", "1"},
              {"MV2_COMM_WORLD_SIZE", "2"},
              {"MV2_COMM_WORLD_LOCAL_RANK", "1"},
              {"MV2_COMM_WORLD_LOCAL_SIZE", "2"}},
             "rank 1/2 local 1/2 node 0/1 source=mvapich rendezvous=" + kUnix + " key=derived"},
        Case{"MvapichPlus",
             {{"MVP_COMM_WORLD_RANK", "1"},
              {"MVP_COMM_WORLD_SIZE", "2"},
              {"MVP_COMM_WORLD_LOCAL_RANK", "1"},
              {"MVP_COMM_WORLD_LOCAL_SIZE", "2"}},
             "rank 1/2 local 1/2 node 0/1 source=mvapich-plus rendezvous=" + kUnix + " key=derived"},
        Case{"OpenMpi", kOpenMpi, "rank 1/2 local 1/2 node 0/1 source=openmpi rendezvous=" + kUnix + " key=derived"},
        Case{"OpenMpiOnTwoHosts",
             kOpenMpi + Vars{{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                             {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                             {"FARANDOLE_RENDEZVOUS", "tcp://a:1"}},
             "rank 1/2 local 0/1 source=openmpi rendezvous=tcp://a:1 key=derived"},
        Case{"Hydra", kHydra, "rank 0/2 local 0/2 node 0/1 source=pmi rendezvous=" + kUnix + " key=derived"},
        Case{"Slurm", kSlurm,
             "rank 2/3 local 0/1 node 1/2 source=slurm rendezvous=tcp://n07:[23][0-9]+-[23][0-9]+ "
             "key=derived"},
        Case{"SlurmOnOneHost",
             kSlurm + Vars{{"SLURM_LOCALID", "2"},
                           {"SLURM_NODEID", "0"},
                           {"SLURM_STEP_NUM_NODES", "1"},
                           {"SLURM_STEP_TASKS_PER_NODE", "3"},
                           {"SLURM_STEP_NODELIST", "n07"}},
             "rank 2/3 local 2/3 node 0/1 source=slurm rendezvous=" + kUnix + " key=derived"},
        Case{"SlurmWithPmi2", kSlurm + Vars{{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}, {"PMI_FD", "9999"}},
             "rank 2/3 source=pmi rendezvous=tcp://n07:.* key=derived \\(also saw: SLURM_PROCID=2\\)"},
        Case{"BatchScriptWithOneTask",
             {{"SLURM_PROCID", "0"}, {"SLURM_JOB_NUM_NODES", "1"}},
             "rank 0/1 .* source=single process \\(also saw: SLURM_PROCID=0\\)"},
        Case{"SizeOneIsSaid", {{"RANK", "0"}, {"WORLD_SIZE", "1"}}, "rank 0/1 .* source=bare-rank"},
        Case{"FirstOfOneOnThisHost", {{"LOCAL_RANK", "0"}}, "rank 0/1 .* source=single process"},
        Case{"WorldOfOneWithLocalRank",
             {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}},
             "rank 0/1 .* source=single process .*"},
        Case{
            "BareRankOfOneProcessAPod",
            {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "1"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}},
            "rank 1/2 local 0/1 node 1/2 source=bare-rank .*"},
        Case{"MpirunWithSomeOfTorchrunsVariables",
             kOpenMpi + Vars{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}}, "rank 1/2 .* source=openmpi .*"},
        Case{"KubernetesServiceCalledMaster",
             kTorchrun + Vars{{"FARANDOLE_RANK", "tcp://10.0.0.1:80"}, {"JOB_COMPLETION_INDEX", "1"}},
             "rank 3/8 .* source=torchrun .* \\(also saw: JOB_COMPLETION_INDEX=1\\)"},
        Case{"FileRendezvous", kByHand + Vars{{"FARANDOLE_RENDEZVOUS", "file:///shared/here"}},
             ".* rendezvous=file:///shared/here"},
        Case{"EmptyVariablesAreAbsent", {{"HOROVOD_RANK", ""}, {"RANK", ""}}, ".* source=single process"}),
    [](const auto& one) { return one.param.name; });

// ---- Error paths ----

INSTANTIATE_TEST_SUITE_P(
    Refused, Environments,
    ::testing::Values(
        Case{"HalfByHand",
             {{"FARANDOLE_RANK", "0"}},
             "INVALID_ARGUMENT: FARANDOLE_RANK = '0' but FARANDOLE_SIZE is not set: both are needed, or neither"},
        Case{"HalfHorovod",
             {{"HOROVOD_SIZE", "2"}},
             "INVALID_ARGUMENT: HOROVOD_RANK is not set but HOROVOD_SIZE = '2': both are needed, or neither"},
        Case{"HalfLocal", kByHand + Vars{{"FARANDOLE_LOCAL_RANK", "0"}},
             "INVALID_ARGUMENT: FARANDOLE_LOCAL_RANK = '0' but FARANDOLE_LOCAL_SIZE is not set: .*"},
        Case{"HalfTorchrun",
             {{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}, {"RANK", "0"}},
             "INVALID_ARGUMENT: RANK = '0' but WORLD_SIZE is not set: both are needed, or neither"},
        Case{"OnlyLocalTorchrun",
             {{"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "2"}},
             "INVALID_ARGUMENT: LOCAL_RANK = '0' but RANK is not set and WORLD_SIZE is not set"},
        Case{"TorchrunWithoutLocalSize",
             {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "29500"}},
             "INVALID_ARGUMENT: RANK = '1' and WORLD_SIZE = '2' and LOCAL_RANK = '1' are torchrun's, but "
             "LOCAL_WORLD_SIZE "
             "is not set; set it too, start with torchrun or `farandole run`, or set FARANDOLE_RANK and FARANDOLE_SIZE "
             ".*"},
        Case{
            "TorchrunWithoutLocalRank",
            {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "h"}, {"MASTER_PORT", "1"}},
            "INVALID_ARGUMENT: RANK = '1' and WORLD_SIZE = '2' and LOCAL_WORLD_SIZE = '2' are torchrun's, but "
            "LOCAL_RANK "
            "is not set; set it too, .*"},
        Case{"TorchrunWithRankAndLocalRankOnly",
             {{"RANK", "0"}, {"LOCAL_RANK", "0"}},
             "INVALID_ARGUMENT: RANK = '0' and LOCAL_RANK = '0' are torchrun's, but WORLD_SIZE and LOCAL_WORLD_SIZE "
             "are not "
             "set; set them too, .*"},
        Case{
            "TorchrunWithWorldSizeAndLocalRankOnly",
            {{"WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}},
            "INVALID_ARGUMENT: WORLD_SIZE = '4' and LOCAL_RANK = '0' are torchrun's, but RANK and LOCAL_WORLD_SIZE .*"},
        Case{"TorchrunWithLocalRankOnly",
             {{"LOCAL_RANK", "1"}},
             "INVALID_ARGUMENT: LOCAL_RANK = '1' is torchrun's, but RANK and WORLD_SIZE and LOCAL_WORLD_SIZE are not "
             ".*"},
        Case{"TorchrunWithLocalSizeOnly",
             {{"LOCAL_WORLD_SIZE", "2"}},
             "INVALID_ARGUMENT: LOCAL_WORLD_SIZE = '2' is torchrun's, but RANK and WORLD_SIZE and LOCAL_RANK are not "
             ".*"},
        Case{"NotANumber",
             {{"OMPI_COMM_WORLD_RANK", "one"}, {"OMPI_COMM_WORLD_SIZE", "2"}},
             "INVALID_ARGUMENT: OMPI_COMM_WORLD_RANK = 'one' is not a whole number from 0 on"},
        Case{"Negative",
             {{"FARANDOLE_RANK", "-1"}, {"FARANDOLE_SIZE", "2"}},
             "INVALID_ARGUMENT: FARANDOLE_RANK = '-1' is not a whole number from 0 on"},
        Case{"TooLarge",
             {{"FARANDOLE_RANK", "0"}, {"FARANDOLE_SIZE", "99999999999"}},
             "INVALID_ARGUMENT: FARANDOLE_SIZE = '99999999999' is not .*"},
        Case{"RankNotBelowSize",
             {{"FARANDOLE_RANK", "2"}, {"FARANDOLE_SIZE", "2"}},
             "INVALID_ARGUMENT: FARANDOLE_RANK = '2' is not below FARANDOLE_SIZE = '2'"},
        Case{"LocalRankNotBelowLocalSize", kTorchrun + Vars{{"LOCAL_RANK", "2"}},
             "INVALID_ARGUMENT: LOCAL_RANK = '2' is not below LOCAL_WORLD_SIZE = '2'"},
        Case{"LocalSizeAboveSize", kOpenMpi + Vars{{"OMPI_COMM_WORLD_LOCAL_SIZE", "3"}},
             "INVALID_ARGUMENT: OMPI_COMM_WORLD_LOCAL_SIZE = '3' is more than OMPI_COMM_WORLD_SIZE = '2'"},
        Case{"SlurmLocalRankAboveItsNode", kSlurm + Vars{{"SLURM_LOCALID", "1"}},
             "INVALID_ARGUMENT: SLURM_LOCALID = '1' is not below the 1 ranks of this host"},
        Case{"SlurmTasksOfANodeAboveAll", kSlurm + Vars{{"SLURM_STEP_TASKS_PER_NODE", "2,8"}},
             "INVALID_ARGUMENT: SLURM_STEP_TASKS_PER_NODE = '2,8' gives this node 8 tasks, more than "
             "SLURM_STEP_NUM_TASKS = '3'"},
        Case{"SlurmCountsBroken", kSlurm + Vars{{"SLURM_STEP_TASKS_PER_NODE", "2(y3)"}},
             "INVALID_ARGUMENT: '2\\(y3\\)' is not a list of counts such as .*"},
        Case{"SlurmHostsBroken", kSlurm + Vars{{"SLURM_STEP_NODELIST", "n[7"}},
             "INVALID_ARGUMENT: 'n\\[7' is not a list of hosts such as .*"},
        Case{"NodeRankNotBelowNodes", kHorovod + Vars{{"HOROVOD_CROSS_RANK", "2"}},
             "INVALID_ARGUMENT: HOROVOD_CROSS_RANK = '2' is not below HOROVOD_CROSS_SIZE = '2'"},
        Case{"NoRendezvousByHand",
             {{"FARANDOLE_RANK", "0"}, {"FARANDOLE_SIZE", "2"}},
             "INVALID_ARGUMENT: FARANDOLE_RENDEZVOUS is not set: ranks cannot find each other; set it to tcp://.*"},
        Case{"BadRendezvous", kByHand + Vars{{"FARANDOLE_RENDEZVOUS", "a:4242"}},
             "INVALID_ARGUMENT: the rendezvous 'a:4242' is not tcp://host:port, .*"},
        Case{"ShortKey", kByHand + Vars{{"FARANDOLE_JOB_KEY", "secret"}},
             "INVALID_ARGUMENT: FARANDOLE_JOB_KEY has 6 characters, and needs 16 or more; .*"},
        Case{"RendezvousWithoutRank",
             {{"FARANDOLE_RENDEZVOUS", "tcp://a:1"}},
             "INVALID_ARGUMENT: the rendezvous 'tcp://a:1' \\(FARANDOLE_RENDEZVOUS\\): this process is probably one of "
             "several, .*"},
        Case{"TorchrunWithoutMaster",
             {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}},
             "INVALID_ARGUMENT: MASTER_ADDR is not set and MASTER_PORT is not set: ranks cannot find each other; .*"},
        Case{"MasterPortOfAService", kTorchrun + Vars{{"MASTER_PORT", "tcp://10.0.0.1:23456"}},
             "INVALID_ARGUMENT: MASTER_ADDR = 'a-0.a' and MASTER_PORT is not set: .*"},
        Case{"MasterPortBroken", kTorchrun + Vars{{"MASTER_PORT", "http"}},
             "INVALID_ARGUMENT: MASTER_PORT = 'http' is not a whole number from 0 on"},
        Case{"OpenMpiOnTwoHosts",
             kOpenMpi + Vars{{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}},
             "INVALID_ARGUMENT: Open MPI does not give ranks on several hosts the address of rank 0, and its own "
             "service cannot be reached \\(.*\\); set FARANDOLE_RENDEZVOUS=tcp://.*"},
        Case{"OpenMpiWithoutNamespace", kOpenMpi + Vars{{"PMIX_NAMESPACE", ""}},
             "INVALID_ARGUMENT: PMIX_NAMESPACE is not set, .*"},
        Case{"PmiOnTwoHosts",
             {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}, {"PMI_PORT", "a:1"}},
             "INVALID_ARGUMENT: PMI does not give ranks on several hosts the address of rank 0, .*"},
        Case{
            "IndexedJob",
            {{"JOB_COMPLETION_INDEX", "0"}},
            "INVALID_ARGUMENT: JOB_COMPLETION_INDEX = '0' \\(a Kubernetes Indexed Job\\): this process is probably one "
            "of several, but nothing gives its rank and size; start it with `farandole run`, .*"},
        Case{"BareRankWithoutMaster",
             {{"RANK", "0"}, {"WORLD_SIZE", "4"}},
             "INVALID_ARGUMENT: RANK and WORLD_SIZE are set, but MASTER_ADDR is not; set MASTER_ADDR .*"},
        Case{"RankAlone", {{"RANK", "0"}}, "INVALID_ARGUMENT: RANK = '0' but WORLD_SIZE is not set: .*"},
        Case{"WorldSizeAlone", {{"WORLD_SIZE", "4"}}, "INVALID_ARGUMENT: RANK is not set but WORLD_SIZE = '4': .*"},
        Case{"StalePmi", {{"PMI_RANK", "0"}, {"PMI_SIZE", "2"}}, "INVALID_ARGUMENT: PMI_RANK = '0' \\(PMI, but .*"},
        Case{"PmixOnly", {{"PMIX_RANK", "0"}}, "INVALID_ARGUMENT: PMIX_RANK = '0' .*"},
        Case{"BatchScript",
             {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_JOB_NUM_NODES", "1"}},
             "INVALID_ARGUMENT: SLURM_PROCID = '0' \\(Slurm, but this is no task of srun\\): .*"},
        Case{"InteractiveStep",
             {{"SLURM_PROCID", "0"},
              {"SLURM_STEP_ID", "4294967290"},
              {"SLURM_STEP_NUM_TASKS", "1"},
              {"SLURM_NTASKS", "8"}},
             "INVALID_ARGUMENT: SLURM_PROCID = '0' \\(Slurm, but .*"}),
    [](const auto& one) { return one.param.name; });

// The starter of a pod may have derived the key that it passes on.
TEST(LauncherKeyTest, APassedKeyMayBeDerived) {
  const Vars started{{"FARANDOLE_RANK", "0"},
                     {"FARANDOLE_SIZE", "2"},
                     {"FARANDOLE_RENDEZVOUS", "tcp://a:1"},
                     {"FARANDOLE_JOB_KEY", "0123456789abcdef"}};
  EXPECT_THAT(answer(started), ::testing::Not(HasSubstr("key=derived")));
  EXPECT_THAT(answer(started + Vars{{"FARANDOLE_KEY_IS_DERIVED", "1"}}), HasSubstr("key=derived"));
  EXPECT_THAT(answer(started + Vars{{"FARANDOLE_KEY_IS_DERIVED", ""}}), ::testing::Not(HasSubstr("key=derived")));
}

// ---- The launcher's own service ----

// A host whose launchers serve PMIx and PMI.
const Platform kServed{.host_name = "box",
                       .domain = {},
                       .mpi_hostfile = {},
                       .serves = [](std::string_view, const Variables&, const Config&) { return true; }};
const Vars kOpenMpiOnTwoHosts =
    kOpenMpi + Vars{{"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}};
const Vars kHydraOnTwoHosts = kHydra + Vars{{"MPI_LOCALNRANKS", "1"}};

TEST(LauncherServiceOfRanksTest, PassesTheAddressBetweenHosts) {
  EXPECT_EQ(answer(kOpenMpiOnTwoHosts, kServed), "rank 1/2 local 0/1 source=openmpi rendezvous=launcher://pmix");
  EXPECT_EQ(answer(kHydraOnTwoHosts, kServed), "rank 0/2 local 0/1 source=pmi rendezvous=launcher://pmi");
}

// The service gives a random key. A key of the user's needs none, and the address is known without the service.
TEST(LauncherServiceOfRanksTest, GivesSlurmTasksOnSeveralHostsAKey) {
  EXPECT_EQ(answer(kSlurm, kServed), "rank 2/3 local 0/1 node 1/2 source=slurm rendezvous=launcher://pmix");
  EXPECT_THAT(answer(kSlurm + Vars{{"FARANDOLE_JOB_KEY", "0123456789abcdef"}}, kServed),
              HasSubstr("rendezvous=tcp://n07:"));
}

TEST(LauncherServiceOfRanksTest, IsNotUsedOnOneHost) {
  EXPECT_THAT(answer(kOpenMpi, kServed), HasSubstr("rendezvous=unix:@"));
  EXPECT_THAT(answer(kHydra, kServed), HasSubstr("rendezvous=unix:@"));
}

TEST(LauncherServiceOfRanksTest, GivesWayToAGivenRendezvous) {
  EXPECT_THAT(answer(kOpenMpiOnTwoHosts + Vars{{"FARANDOLE_RENDEZVOUS", "tcp://a:1"}}, kServed),
              HasSubstr("rendezvous=tcp://a:1 key=derived"));
}

TEST(LauncherServiceOfRanksTest, CanBeAskedForAndMisspelt) {
  EXPECT_THAT(answer(kHydra + Vars{{"FARANDOLE_RENDEZVOUS", "launcher://pmi"}}), HasSubstr("launcher://pmi"));
  EXPECT_THAT(answer(kHydra + Vars{{"FARANDOLE_RENDEZVOUS", "launcher://pni"}}),
              HasSubstr("'launcher://pni' is not tcp://host:port"));
}

TEST(LauncherServiceOfRanksTest, LeavesThePlaceToAnInnerLauncher) {
  const Vars both = kOpenMpiOnTwoHosts + Vars{{"RANK", "1"},        {"WORLD_SIZE", "2"},
                                              {"LOCAL_RANK", "0"},  {"LOCAL_WORLD_SIZE", "1"},
                                              {"MASTER_ADDR", "a"}, {"MASTER_PORT", "5"}};
  EXPECT_THAT(answer(both, kServed), HasSubstr("rendezvous=tcp://a:6-21"));
}

TEST(Launchers, EveryTraceOfAJobForbidsASingleProcess) {
  for (const char* name :
       {"PMI_RANK", "PMIX_RANK", "FLUX_TASK_RANK", "SLURM_PROCID", "PET_NODE_RANK", "PET_RDZV_ENDPOINT", "RANK",
        "JAX_PROCESS_ID", "K_MPI_JOB_ROLE", "FARANDOLE_NNODES", "LWS_WORKER_INDEX", "TF_CONFIG", "SKYPILOT_NODE_RANK",
        "AWS_BATCH_JOB_NODE_INDEX", "SM_CURRENT_HOST", "VC_TASK_INDEX", "JOB_COMPLETION_INDEX"}) {
    EXPECT_THAT(answer({{name, "0"}}), MatchesRegex("INVALID_ARGUMENT: .*" + std::string(name) + ".*")) << name;
  }
}

// ---- Several launchers at once ----

TEST(Launchers, InnerLauncherWinsAndTheConflictIsLoggedOnce) {
  Warnings warnings;
  EXPECT_THAT(answer(kTorchrun + kOpenMpi), HasSubstr("rank 3/8 local 1/2 node 1/4 source=torchrun"));
  ASSERT_EQ(warnings.lines().size(), 1u);
  EXPECT_EQ(
      warnings.lines()[0],
      "launchers contradict each other: torchrun gives rank 3 of 8, but OMPI_COMM_WORLD_RANK = '1' and "
      "OMPI_COMM_WORLD_SIZE = '2' give rank 1 of 2; unset what is left over from another launcher; torchrun wins");
}

TEST(Launchers, ConflictIsAnErrorWithStrictEnv) {
  Warnings warnings;
  EXPECT_THAT(
      answer(kTorchrun + kOpenMpi + Vars{{"FARANDOLE_STRICT_ENV", "1"}}),
      MatchesRegex("INVALID_ARGUMENT: launchers contradict each other: torchrun gives rank 3 of 8, but .*error\\)"));
  EXPECT_THAT(warnings.lines(), ElementsAre());
}

TEST(Launchers, BrokenVariablesOfALowerRowAreOnlyAConflict) {
  Warnings warnings;
  EXPECT_THAT(answer(kTorchrun + Vars{{"OMPI_COMM_WORLD_RANK", "1"}}), HasSubstr("source=torchrun"));
  ASSERT_EQ(warnings.lines().size(), 1u);
  EXPECT_THAT(warnings.lines()[0], HasSubstr("OMPI_COMM_WORLD_RANK = '1' but OMPI_COMM_WORLD_SIZE is not set"));
}

TEST(Launchers, OuterLauncherOfOneProcessPerNodeIsNoConflict) {
  Warnings warnings;
  // srun starts torchrun on each of four nodes; this is node 1.
  const Vars outer = {{"SLURM_PROCID", "1"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_STEP_ID", "0"}};
  EXPECT_THAT(answer(kTorchrun + outer + Vars{{"FARANDOLE_STRICT_ENV", "1"}}), HasSubstr("(also saw: SLURM_PROCID=1)"));
  EXPECT_THAT(warnings.lines(), ElementsAre());
}

TEST(Launchers, AgreeingLauncherSuppliesAMissingRendezvous) {
  const auto identity = identify(kTorchrun + Vars{{"HOROVOD_RANK", "3"}, {"HOROVOD_SIZE", "8"}});
  ASSERT_TRUE(identity.ok()) << identity.status().text();
  EXPECT_EQ(identity->source, "horovod");
  EXPECT_EQ(identity->rendezvous, "tcp://a-0.a:29501-29516");
}

// ---- Keys and rendezvous addresses ----

TEST(Launchers, AllRanksDeriveTheSameKeyAndRendezvous) {
  const auto one = identify(kTorchrun);
  const auto other = identify(kTorchrun + Vars{{"RANK", "0"}, {"LOCAL_RANK", "0"}, {"GROUP_RANK", "0"}});
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_EQ(one->job_key, other->job_key);
  EXPECT_EQ(one->rendezvous, other->rendezvous);
  EXPECT_EQ(one->job_key.size(), 64u);
  EXPECT_TRUE(one->job_key_is_derived);
}

TEST(Launchers, AnotherJobOrRestartHasAnotherKey) {
  const auto one = identify(kTorchrun);
  const auto restarted = identify(kTorchrun + Vars{{"TORCHELASTIC_RESTART_COUNT", "1"}});
  const auto another = identify(kTorchrun + Vars{{"TORCHELASTIC_RUN_ID", "job-8"}});
  ASSERT_TRUE(one.ok() && restarted.ok() && another.ok());
  EXPECT_NE(one->job_key, restarted->job_key);
  EXPECT_NE(one->job_key, another->job_key);
}

TEST(Launchers, OpenMpiJobsOfOneHostHaveDifferentRendezvous) {
  const auto one = identify(kOpenMpi);
  const auto same = identify(kOpenMpi + Vars{{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "0"}});
  const auto another = identify(kOpenMpi + Vars{{"PMIX_NAMESPACE", "prterun-a-18@1"}});
  ASSERT_TRUE(one.ok() && same.ok() && another.ok());
  EXPECT_EQ(one->rendezvous, same->rendezvous);
  EXPECT_NE(one->rendezvous, another->rendezvous);
  EXPECT_NE(one->job_key, another->job_key);
}

TEST(Launchers, GivenKeyPrecedesTheDerivedOne) {
  const auto identity = identify(kTorchrun + Vars{{"FARANDOLE_JOB_KEY", "sixteen-or-more!"}});
  ASSERT_TRUE(identity.ok());
  EXPECT_EQ(identity->job_key, "sixteen-or-more!");
  EXPECT_FALSE(identity->job_key_is_derived);
}

TEST(Launchers, RankZeroServesUnlessACoordinatorExists) {
  EXPECT_TRUE(identify(kByHand)->rank_zero_serves);
  EXPECT_FALSE(identify(kByHand + Vars{{"FARANDOLE_RENDEZVOUS", "tcp://a:4242?coordinator=1"}})->rank_zero_serves);
  EXPECT_FALSE(identify(kByHand + Vars{{"FARANDOLE_RENDEZVOUS", "unix:@x?coordinator=1"}})->rank_zero_serves);
  EXPECT_FALSE(identify(kByHand + Vars{{"FARANDOLE_RENDEZVOUS", "unix:@x?hub=1"}})->rank_zero_serves)
      << "the former spelling";
}

TEST(Launchers, SingleProcessHasARandomKeyAndAMemoryRendezvous) {
  const auto one = identify({});
  const auto other = identify({});
  ASSERT_TRUE(one.ok() && other.ok());
  EXPECT_THAT(one->rendezvous, MatchesRegex("memory://alone-[0-9a-f]+"));
  EXPECT_NE(one->rendezvous, other->rendezvous);
  EXPECT_NE(one->job_key, other->job_key);
  EXPECT_FALSE(one->job_key_is_derived);
}

TEST(Launchers, AreListedInOrderOfPrecedence) {
  std::vector<std::string> names;
  for (const LauncherRow& row : supported_launchers()) {
    names.push_back(row.name);
    EXPECT_FALSE(row.sentence.empty()) << row.name;
  }
  EXPECT_THAT(names, ElementsAre("farandole", "horovod", "torchrun", "openmpi", "pmi", "mvapich", "mvapich-plus",
                                 "flux", "slurm", "node", "pet", "bare-rank", "jax", "lws", "tf-config", "skypilot",
                                 "aws-batch", "sagemaker", "volcano", "indexed-job", "hostname", "elastic-pet"));
}

// ---- Rendezvous text and Slurm's lists ----

TEST(RendezvousText, IsParsed) {
  const auto range = parse_rendezvous("tcp://[::1]:10-12,b:5?coordinator=1");
  ASSERT_TRUE(range.ok()) << range.status().text();
  ASSERT_EQ(range->endpoints.size(), 2u);
  EXPECT_EQ(range->endpoints[0].host, "::1");
  EXPECT_EQ(range->endpoints[0].first_port, 10);
  EXPECT_EQ(range->endpoints[0].last_port, 12);
  EXPECT_EQ(range->endpoints[1].host, "b");
  EXPECT_EQ(range->endpoints[1].last_port, 5);
  EXPECT_TRUE(range->coordinator_is_there);
  EXPECT_FALSE(range->names_all_nodes);
  const auto service = parse_rendezvous("dns://train.web:29500");
  ASSERT_TRUE(service.ok()) << service.status().text();
  EXPECT_EQ(service->kind, Rendezvous::Kind::tcp);
  EXPECT_TRUE(service->names_all_nodes);
  EXPECT_EQ(service->endpoints.at(0).host, "train.web");
  EXPECT_EQ(parse_rendezvous("file:///a/b")->name, "/a/b");
  EXPECT_EQ(parse_rendezvous("unix:@x-1")->name, "x-1");
  EXPECT_EQ(parse_rendezvous("memory://m")->name, "m");
}

TEST(RendezvousText, InvalidTextIsQuoted) {
  for (const char* text :
       {"",           "tcp://",      "tcp://a",  "tcp://a:",  "tcp://a:x", "tcp://a:70000", "tcp://a:9-8",   "tcp://:1",
        "tcp://a:1,", "tcp://::1:5", "dns://",   "dns://a",   "dns://a:0", "dns://a:1-2",   "dns://a:1,b:1", "unix:x",
        "unix:@",     "file://a",    "file:///", "memory://", "http://a:1"}) {
    const auto parsed = parse_rendezvous(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_THAT(parsed.status().text(), HasSubstr("'" + std::string(text) + "'"));
  }
}

TEST(SlurmLists, BeginWithAHost) {
  EXPECT_EQ(*first_slurm_host("n[07-09,11],m"), "n07");
  EXPECT_EQ(*first_slurm_host("r[1-2]n[03-04]-ib,q"), "r1n03-ib");
  EXPECT_EQ(*first_slurm_host("[5]"), "5");
  EXPECT_EQ(*first_slurm_host("one,two[1]"), "one");
  for (const char* text : {"", "a,", ",a", "a[", "a[1", "a[]", "a[x]", "a[1,]", "a[-1]", "a[3-1]", "a[1-2-3]", "a]",
                           "a]b[1]", "a[1]]", "a[[1]]", "a[1-99999999]", "a[99999999999999999999]", "a,b[x]"}) {
    EXPECT_FALSE(first_slurm_host(text).ok()) << text;
  }
}

TEST(SlurmLists, HaveACountForEachNode) {
  std::vector<std::optional<int>> found;
  for (const int node : {-1, 0, 2, 3, 4, 5}) found.push_back(*slurm_tasks_of_node("2(x3),1,0", node));
  EXPECT_THAT(found, ElementsAre(std::nullopt, 2, 2, 1, 0, std::nullopt));
  for (const char* text :
       {"", "x", "1,", "2(3)", "2(x3", "2(x)", "2(x0)", "2(x-1)", "-1", "1000001", "1(x99999999)", "1,x"}) {
    EXPECT_FALSE(slurm_tasks_of_node(text, 0).ok()) << text;
  }
}

// Each of these texts stood for a million hosts or more, which were made one by one.
TEST(SlurmLists, AreNotExpanded) {
  EXPECT_EQ(*first_slurm_host("a[0-1048575]"), "a0");
  std::string many = "a";
  for (int i = 0; i < 1000; ++i) many += "[0-1048575]";
  EXPECT_EQ(*first_slurm_host(many), "a" + std::string(1000, '0'));
  EXPECT_FALSE(first_slurm_host(many + "]").ok());
  std::string counts = "3(x1048576)";
  for (int i = 0; i < 1000; ++i) counts += ",2(x1048576)";
  EXPECT_EQ(*slurm_tasks_of_node(counts, 1'048'576), std::optional<int>(2));
}

// ---- This machine ----

TEST(ThisMachine, HasANameAndABootId) {
  const HostFacts facts = host_facts();
  EXPECT_FALSE(facts.host_name.empty());
  EXPECT_FALSE(facts.boot_id.empty());
  EXPECT_EQ(facts.process_id, ::getpid());
  EXPECT_EQ(facts.boot_id, host_facts().boot_id);
}

TEST(ThisMachine, HasAtLeastOneUsableCoreAndNotMoreThanItsAffinityAllows) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), CPU_COUNT(&before));
  cpu_set_t one;
  CPU_ZERO(&one);
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  }
  ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
  EXPECT_EQ(usable_cores(), 1);
  ASSERT_EQ(::sched_setaffinity(0, sizeof before, &before), 0);
}

// Starts a child that is bound to one core and lives until `alive` is closed; returns its process id.
int bound_child(int core, const int (&alive)[2]) {
  int ready[2];
  EXPECT_EQ(::pipe(ready), 0);
  const int child = ::fork();
  char byte = 0;
  if (child == 0) {
    ::close(alive[1]);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    ::sched_setaffinity(0, sizeof one, &one);
    if (::write(ready[1], &byte, 1) == 1) (void)!::read(alive[0], &byte, 1);
    ::_exit(0);
  }
  EXPECT_EQ(::read(ready[0], &byte, 1), 1);
  ::close(ready[0]);
  ::close(ready[1]);
  return child;
}

TEST(ThisMachine, CountsTheCoresOfBoundProcessesTogether) {
  cpu_set_t all;
  ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
  std::vector<int> cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &all)) cores.push_back(core);
  }
  int alive[2];
  ASSERT_EQ(::pipe(alive), 0);
  const int children[] = {bound_child(cores.front(), alive), bound_child(cores.back(), alive)};
  EXPECT_EQ(cores_in_affinity(std::span(children).first(1)), 1);
  const int myself[] = {0};
  EXPECT_EQ(cores_in_affinity(children), std::min(2, cores_in_affinity(myself)));
  ::close(alive[0]);
  ::close(alive[1]);
  for (const int child : children) ::waitpid(child, nullptr, 0);
}

TEST(ThisMachine, IsDescribedInOneSentence) {
  EXPECT_THAT(describe_machine(), HasSubstr(" NUMA node"));
  EXPECT_THAT(describe_machine(), HasSubstr("core"));
}

}  // namespace
}  // namespace fdl
