#pragma once

// The classes of the Python API. Each keeps the caller's arrays alive and their views ready;
// wherever one is taken, a tuple or list of its arrays is too.

#include <optional>

#include "array.h"

namespace snapmla::python {

struct PyCache {
  Cache cache;
  std::vector<nb::object> objects;  ///< content, scale, rope; or pages
  std::vector<Array> arrays;
};

struct PyQuery {
  QuantizedQuery query;
  nb::object codes, scale, rope;
  Array arrays[3];
};

struct PyPlan {
  DecodePlan plan;
  nb::object schedule, num_splits;
  Array arrays[2];
  std::optional<std::int64_t> workspace_bytes;  ///< known for plans that plan_decode made
};

/// Each gives the object's own value, or fills `storage` from a tuple or list.
const PyCache& to_cache(nb::handle cache, PyCache& storage, Access access);
const PyQuery& to_query(nb::handle query, PyQuery& storage, const char* argument, Access access);
const PyPlan& to_plan(nb::handle plan, PyPlan& storage, Access access);

void bind_types(nb::module_& module);
void bind_backends(nb::module_& module);
void bind_operations(nb::module_& module);

}  // namespace snapmla::python
