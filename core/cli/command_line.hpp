#pragma once

#include <boost/program_options.hpp>
#include <string>
#include <vector>

#include "command.hpp"

namespace fastpath::cli {

namespace po = boost::program_options;

/// Options and help text of one command.
class CommandLine {
 public:
  /// @param name     "fastpath eval".
  /// @param operands What follows the options in the usage line: "FILE...".
  /// @param summary  One sentence.
  CommandLine(std::string name, std::string operands, std::string summary);

  po::options_description_easy_init add() { return visible_.add_options(); }
  /// Operands are collected under `name`. @param limit  The most that are accepted; -1: any number.
  void operands(const char* name, int limit);
  /// An option with a value for the program's own use, which no help text shows.
  void hidden_option(const char* name) { own_.add_options()(name, po::value<std::string>()); }
  /// Paragraphs between the usage line and the options; what stands after them.
  void describe(std::string text) { description_ = std::move(text); }
  void example(std::string text) { examples_.push_back(std::move(text)); }

  /// Parses, or prints the help text. False if there is nothing left to do.
  /// @throws Error(invalid_argument) naming the option, what was found, and the nearest option if it is unknown.
  bool parse(const Arguments& arguments);

  bool given(const std::string& option) const { return values_.count(option) > 0; }
  /// Whether the value is the default one.
  bool defaulted(const std::string& option) const {
    const po::variable_value& value = values_[option];
    return value.empty() || value.defaulted();
  }
  template <class T>
  const T& get(const std::string& option) const {
    return values_[option].as<T>();
  }
  std::string text(const std::string& option) const { return given(option) ? get<std::string>(option) : std::string(); }
  std::vector<std::string> list(const std::string& option) const {
    return given(option) ? get<std::vector<std::string>>(option) : std::vector<std::string>();
  }
  /// A whole number of at least zero. @throws Error(invalid_argument) naming the option and the text.
  std::uint64_t number(const std::string& option) const;
  /// @throws Error(invalid_argument) naming the option if it was not given.
  void require(const std::string& option, const std::string& what) const;
  /// An invalid_argument that ends by pointing to the help text.
  [[noreturn]] void fail(const std::string& text) const;

 private:
  std::string help() const;

  std::string name_, operands_, summary_, description_;
  std::vector<std::string> examples_;
  po::options_description visible_{"Options", 80, 44};
  po::options_description hidden_, own_;
  po::positional_options_description positional_;
  po::variables_map values_;
};

}  // namespace fastpath::cli
