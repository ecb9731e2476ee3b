// farandole kubernetes: Python's part of the command; this program becomes `python3` with the module.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "cli/subcommands.h"

namespace fdl {
namespace {

constexpr int kExitNotFound = 127;  // as a shell says it

// A module that is missing is told in words, and not as a traceback.
constexpr char kModule[] =
    "import sys\n"
    "try:\n"
    "    from farandole.integrations.kubernetes.__main__ import main\n"
    "except ImportError as error:\n"
    "    sys.exit(f'farandole kubernetes: {sys.executable} cannot import it ({error}); this part of the command is "
    "Python: pip install \"farandole[kubernetes]\"')\n"
    "sys.exit(main(sys.argv[1:]))\n";

int become_python(const std::vector<std::string>& words) {
  std::vector<const char*> arguments{"python3", "-c", kModule};
  for (const std::string& word : words) arguments.push_back(word.c_str());
  arguments.push_back(nullptr);
  execvp(arguments[0], const_cast<char* const*>(arguments.data()));
  std::fprintf(stderr,
               "farandole kubernetes: python3 does not start (%s); this part of the command is Python: install it, and "
               "pip install \"farandole[kubernetes]\"\n",
               std::strerror(errno));
  return kExitNotFound;
}

}  // namespace

void add_kubernetes(CLI::App& app, Work& work, const std::vector<std::string>& words) {
  CLI::App* command =
      app.add_subcommand("kubernetes", "Manifests, logs and state of jobs on Kubernetes (needs Python; also k8s)");
  command->alias("k8s");
  command->callback([words, &work] { work = [words] { return become_python(words); }; });
}

}  // namespace fdl
