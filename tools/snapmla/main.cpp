#include <fmt/format.h>

#include <cstdio>
#include <new>
#include <vector>

#include "options.h"
#include "snapmla/snapmla.h"

namespace snapmla::tools {
namespace {

constexpr const char* kExitCodes =
    "Exit codes: 0 all is well, 1 a result is outside its accuracy gate (decode --check), 2 bad "
    "usage or input,\n"
    "3 this machine or backend can't do it (unsupported, device or output error)";

int run(int argc, char** argv) {
  CLI::App app("FP8 decode attention for Multi-head Latent Attention", "snapmla");
  app.set_version_flag("--version", std::string("snapmla ") + version());
  app.footer(kExitCodes);
  app.option_defaults()->always_capture_default();

  app.require_subcommand(0, 1);
  const std::vector<Command> commands = {add_info_command(app), add_decode_command(app),
                                         add_explain_command(app), add_accuracy_command(app),
                                         add_analyze_command(app)};
  for (const Command& command : commands) command.app->footer(kExitCodes);
  // No option takes an empty value; CLI11 would read one as the default.
  for (int i = 1; i < argc; ++i) {
    const bool after_option = argv[i - 1][0] == '-';
    if (argv[i][0] == '\0') {
      throw InvalidArgument(after_option ? argv[i - 1] : "arguments", "a value", "''");
    }
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "snapmla: {}\nRun snapmla --help, or snapmla COMMAND --help.\n",
               error.what());
    return kExitBadInput;
  }

  for (const Command& command : commands) {
    if (!command.app->parsed()) continue;
    const int code = command.run();
    if (std::fflush(stdout) != 0 || std::ferror(stdout)) {
      fmt::print(stderr, "snapmla: can't write to the standard output\n");
      return kExitFailed;
    }
    return code;
  }
  // Not left to CLI11, which would say so of a misspelled command too.
  fmt::print(stderr, "snapmla: no command given\n{}", app.help());
  return kExitBadInput;
}

}  // namespace
}  // namespace snapmla::tools

int main(int argc, char** argv) {
  using namespace snapmla::tools;
  try {
    return run(argc, argv);
  } catch (const snapmla::InvalidArgument& error) {
    fmt::print(stderr, "snapmla: {}\n", error.what());
    return kExitBadInput;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "snapmla: out of memory\n");
    return kExitFailed;
  } catch (const std::exception& error) {
    fmt::print(stderr, "snapmla: {}\n", error.what());
    return kExitFailed;
  }
}
