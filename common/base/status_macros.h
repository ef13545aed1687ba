#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Early return on error: WEIR_RETURN_IF_ERROR(DoIt()); WEIR_ASSIGN_OR_RETURN(auto x, MakeX());
#define WEIR_RETURN_IF_ERROR(expr)               \
  do {                                           \
    absl::Status weir_status_ = (expr);          \
    if (!weir_status_.ok()) return weir_status_; \
  } while (false)

#define WEIR_CONCAT_INNER_(a, b) a##b
#define WEIR_CONCAT_(a, b) WEIR_CONCAT_INNER_(a, b)
#define WEIR_ASSIGN_OR_RETURN(lhs, expr) \
  WEIR_ASSIGN_OR_RETURN_IMPL_(WEIR_CONCAT_(weir_statusor_, __LINE__), lhs, expr)
#define WEIR_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, expr)   \
  auto statusor = (expr);                                  \
  if (!statusor.ok()) return std::move(statusor).status(); \
  lhs = std::move(statusor).value()
