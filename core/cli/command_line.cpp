#include "command_line.hpp"

#include <fmt/format.h>

#include <charconv>
#include <sstream>

#include "fastpath/error.hpp"
#include "nearest.hpp"
#include "terminal.hpp"

namespace fastpath::cli {

CommandLine::CommandLine(std::string name, std::string operands, std::string summary)
    : name_(std::move(name)), operands_(std::move(operands)), summary_(std::move(summary)) {}

void CommandLine::operands(const char* name, int limit) {
  hidden_.add_options()(name, po::value<std::vector<std::string>>());
  positional_.add(name, limit);
}

bool CommandLine::parse(const Arguments& arguments) {
  visible_.add_options()("help,h", "print this text");
  po::options_description all;
  all.add(visible_).add(hidden_).add(own_);
  namespace style = po::command_line_style;
  try {
    po::store(po::command_line_parser(arguments)
                  .options(all)
                  .positional(positional_)
                  .style(style::unix_style & ~style::allow_guessing)
                  .run(),
              values_);
    po::notify(values_);
  } catch (const po::unknown_option& error) {
    std::vector<std::string> known;
    for (const auto& option : visible_.options()) known.push_back("--" + option->long_name());
    fail(fmt::format("unknown option '{}'{}", error.get_option_name(), did_you_mean(error.get_option_name(), known)));
  } catch (const po::too_many_positional_options_error&) {
    fail("too many operands");
  } catch (const po::error& error) {
    fail(error.what());
  }
  // An operand that was given under the name of its hidden option is an unknown option like any other.
  for (const auto& option : hidden_.options()) {
    for (const std::string& argument : arguments) {
      if (argument == "--") break;
      if (argument.substr(0, argument.find('=')) == "--" + option->long_name()) {
        fail(fmt::format("unknown option '{}'", argument));
      }
    }
  }
  if (!given("help")) return true;
  print(help());
  return false;
}

std::uint64_t CommandLine::number(const std::string& option) const {
  const std::string value = text(option);
  std::uint64_t result = 0;
  const auto [end, status] = std::from_chars(value.data(), value.data() + value.size(), result);
  if (status != std::errc() || end != value.data() + value.size()) {
    fail(fmt::format("--{}: '{}' is not a whole number from 0 to 2^64 - 1", option, value));
  }
  return result;
}

void CommandLine::require(const std::string& option, const std::string& what) const {
  if (!given(option)) fail(fmt::format("{} is missing", what));
}

void CommandLine::fail(const std::string& text) const { throw usage_error(name_, text); }

std::string CommandLine::help() const {
  std::ostringstream out;
  out << name_ << ": " << summary_ << "\n\nUsage: " << name_ << " [OPTION...]" << (operands_.empty() ? "" : " ")
      << operands_ << "\n\n";
  if (!description_.empty()) out << description_ << "\n\n";
  out << visible_;
  out << (examples_.size() > 1 ? "\nExamples:\n" : "\nExample:\n");
  for (const std::string& example : examples_) out << "  " << example << "\n";
  return out.str();
}

}  // namespace fastpath::cli
