// farandole kubernetes replaces this process by `python3`, which runs the Python part of the command.
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "cli/subcommands.h"

namespace fdl {
namespace {

constexpr int kExitNotFound = 127;  // a shell's code for a command that is not found

// The Python code prints a missing module as one sentence instead of a traceback.
constexpr char kModule[] =
    "import sys\n"
    "try:\n"
    "    from farandole.integrations.kubernetes.__main__ import main\n"
    "except ImportError as error:\n"
    "    sys.exit(f'farandole kubernetes: {sys.executable} cannot import it ({error}); this part of the command is "
    "Python: pip install \"farandole[kubernetes]\"')\n"
    "sys.exit(main(sys.argv[1:]))\n";

// Returns only when python3 cannot be executed.
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
