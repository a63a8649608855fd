#pragma once

#include <stdexcept>
#include <string>

namespace snapmla {

/// Base of every exception the library throws, memory exhaustion (std::bad_alloc) apart. It never
/// prints, exits or aborts.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A caller's argument breaks a rule. Thrown before anything is launched or written.
/// what() reads "<argument>: expected <rule>, got <value>".
class InvalidArgument : public Error {
 public:
  InvalidArgument(std::string argument, std::string rule, std::string value)
      : Error(argument + ": expected " + rule + ", got " + value),
        argument_(std::move(argument)),
        rule_(std::move(rule)),
        value_(std::move(value)) {}

  const std::string& argument() const noexcept { return argument_; }
  const std::string& rule() const noexcept { return rule_; }
  const std::string& value() const noexcept { return value_; }

 private:
  std::string argument_, rule_, value_;
};

/// A well-formed request that the selected backend or this machine cannot serve. what() gives the
/// reason that supports() gives, and what to use instead.
class Unsupported : public Error {
 public:
  using Error::Error;
};

/// A CUDA call or launch failed. what() names the call and the CUDA error.
class DeviceError : public Error {
 public:
  using Error::Error;
};

}  // namespace snapmla
