#include "types.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

namespace snapmla::python {
namespace {

using namespace nb::literals;

PyCache from_planes(nb::handle content, nb::handle scale, nb::handle rope, Access access) {
  PyCache result;
  result.arrays.resize(3);
  result.arrays[0] = to_array(content, "cache.content", access);
  result.arrays[1] = to_array(scale, "cache.scale", access);
  result.arrays[2] = to_array(rope, "cache.rope", access);
  result.objects = {nb::borrow(content), nb::borrow(scale), nb::borrow(rope)};
  result.cache =
      Cache::from_planes(result.arrays[0].view, result.arrays[1].view, result.arrays[2].view);
  return result;
}

PyCache from_pages(nb::handle pages, Access access) {
  PyCache result;
  result.arrays.push_back(to_array(pages, "cache.pages", access));
  result.objects = {nb::borrow(pages)};
  result.cache = Cache::from_pages(result.arrays[0].view);
  return result;
}

PyQuery make_query(nb::handle codes, nb::handle scale, nb::handle rope, const char* argument,
                   Access access) {
  const std::string name = argument;
  PyQuery result;
  result.codes = nb::borrow(codes);
  result.scale = nb::borrow(scale);
  result.rope = nb::borrow(rope);
  result.arrays[0] = to_array(codes, (name + ".codes").c_str(), access);
  result.arrays[1] = to_array(scale, (name + ".scale").c_str(), access);
  result.arrays[2] = to_array(rope, (name + ".rope").c_str(), access);
  result.query = {result.arrays[0].view, result.arrays[1].view, result.arrays[2].view};
  return result;
}

PyPlan make_plan(nb::handle schedule, nb::handle num_splits, Access access) {
  PyPlan result;
  result.schedule = nb::borrow(schedule);
  result.num_splits = nb::borrow(num_splits);
  result.arrays[0] = to_array(schedule, "plan.schedule", access);
  result.arrays[1] = to_array(num_splits, "plan.num_splits", access);
  result.plan = {result.arrays[0].view, result.arrays[1].view};
  return result;
}

std::size_t sequence_size(nb::handle object) {
  const bool sequence = PyTuple_Check(object.ptr()) || PyList_Check(object.ptr());
  return sequence ? nb::len(object) : 0;
}

[[noreturn]] void throw_type(const char* argument, const char* rule, nb::handle got) {
  const std::size_t size = sequence_size(got);
  throw InvalidArgument(
      argument, rule,
      std::string(nb::inst_name(got).c_str()) + (size ? " of " + std::to_string(size) : ""));
}

nb::tuple as_tuple(const std::vector<nb::object>& objects) {
  nb::list list;
  for (const nb::object& object : objects) list.append(object);
  return nb::tuple(list);
}

template <class T>
T choose(const std::string& value, const char* argument,
         std::initializer_list<std::pair<const char*, T>> choices) {
  std::string rule;
  for (const auto& [name, choice] : choices) {
    if (value == name) return choice;
    rule += (rule.empty() ? "\"" : " or \"") + std::string(name) + '"';
  }
  throw InvalidArgument(argument, rule, '"' + value + '"');
}

}  // namespace

const PyCache& to_cache(nb::handle cache, PyCache& storage, Access access) {
  const PyCache* own = nullptr;
  if (nb::try_cast(cache, own) && own) {
    if (access == Access::write) {
      for (const nb::object& object : own->objects) to_array(object, "cache", access);
    }
    return *own;
  }
  const std::size_t size = sequence_size(cache);
  if (size == 3) {
    storage = from_planes(cache[0], cache[1], cache[2], access);
  } else if (size == 1) {
    storage = from_pages(cache[0], access);
  } else {
    throw_type("cache", "a Cache, three planes (content, scale, rope) or one tensor of pages",
               cache);
  }
  return storage;
}

const PyQuery& to_query(nb::handle query, PyQuery& storage, const char* argument, Access access) {
  const PyQuery* own = nullptr;
  if (nb::try_cast(query, own) && own) {
    if (access == Access::read) return *own;
    storage = make_query(own->codes, own->scale, own->rope, argument, access);
    return storage;
  }
  if (sequence_size(query) != 3) {
    throw_type(argument, "a QuantizedQuery or its three arrays (codes, scale, rope)", query);
  }
  storage = make_query(query[0], query[1], query[2], argument, access);
  return storage;
}

const PyPlan& to_plan(nb::handle plan, PyPlan& storage, Access access) {
  const PyPlan* own = nullptr;
  if (nb::try_cast(plan, own) && own) {
    if (access == Access::read) return *own;
    storage = make_plan(own->schedule, own->num_splits, access);
    return storage;
  }
  if (sequence_size(plan) != 2) {
    throw_type("plan", "a DecodePlan or its two arrays (schedule, num_splits)", plan);
  }
  storage = make_plan(plan[0], plan[1], access);
  return storage;
}

void bind_types(nb::module_& m) {
  nb::class_<PyCache>(
      m, "Cache", R"(A paged cache of one layer: views of the caller's arrays, which it keeps alive.

Every operation that takes a cache also takes its arrays as a tuple or list: (content, scale, rope),
or (pages,).)")
      .def_static(
          "from_planes",
          [](nb::handle content, nb::handle scale, nb::handle rope) {
            return from_planes(content, scale, rope, Access::read);
          },
          "content"_a.none(), "scale"_a.none(), "rope"_a.none(),
          nb::sig("def from_planes(content: Array, scale: Array, rope: Array) -> Cache"),
          R"(The planes form.

content: e4m3 or uint8 [num_pages, 64, 512].   scale: float32 [num_pages, 64].
rope: bf16 (or its bits as uint16) [num_pages, 64, 64], divided by the scale.
Pages are contiguous; the stride between them is free. Shapes are checked by the operation that
uses the cache.)")
      .def_static(
          "from_pages", [](nb::handle pages) { return from_pages(pages, Access::read); },
          "pages"_a.none(), nb::sig("def from_pages(pages: Array) -> Cache"),
          R"(The packed form: one tensor, uint8 or e4m3 [num_pages, >= 41216]. Its first stride is the page
stride, so pools with larger pages or a gap between pages work.)")
      .def_prop_ro(
          "form", [](const PyCache& c) { return cache_form_name(c.cache.form); },
          "\"planes\" or \"packed\".")
      .def_prop_ro(
          "num_pages", [](const PyCache& c) { return c.cache.num_pages; },
          "Bounds every page id and slot.")
      .def_prop_ro(
          "page_stride_bytes", [](const PyCache& c) { return c.cache.page_stride_bytes; },
          "Packed only: bytes from one page to the next.")
      .def_prop_ro(
          "device", [](const PyCache& c) { return to_string(c.arrays[0].view.device); },
          "\"cpu\" or \"cuda:<index>\".")
      .def_prop_ro(
          "arrays", [](const PyCache& c) { return as_tuple(c.objects); },
          nb::sig("def arrays(self) -> tuple[Array, ...]"),
          "The caller's own arrays: (content, scale, rope) or (pages,).")
      .def("__repr__", [](const PyCache& c) {
        return "<snapmla.Cache " + std::string(cache_form_name(c.cache.form)) + ", " +
               std::to_string(c.cache.num_pages) + " pages on " +
               to_string(c.arrays[0].view.device) + ">";
      });

  nb::class_<PyQuery>(m, "QuantizedQuery", R"(A quantized query: what decode() reads.

Wherever one is taken, a tuple (codes, scale, rope) is too; it unpacks into the same.)")
      .def(
          "__init__",
          [](PyQuery* self, nb::handle codes, nb::handle scale, nb::handle rope) {
            new (self) PyQuery(make_query(codes, scale, rope, "query", Access::read));
          },
          "codes"_a.none(), "scale"_a.none(), "rope"_a.none(),
          nb::sig("def __init__(self, codes: Array, scale: Array, rope: Array) -> None"),
          R"(codes: e4m3 or uint8 [b, s_q, h_q, 512].   scale: float32 [b, s_q, h_q].
rope: bf16 (or its bits as uint16) [b, s_q, h_q, 64], divided by the scale.)")
      .def_ro("codes", &PyQuery::codes, nb::for_getter(nb::sig("def codes(self) -> Array")),
              "e4m3 or uint8 [b, s_q, h_q, 512].")
      .def_ro("scale", &PyQuery::scale, nb::for_getter(nb::sig("def scale(self) -> Array")),
              "float32 [b, s_q, h_q].")
      .def_ro("rope", &PyQuery::rope, nb::for_getter(nb::sig("def rope(self) -> Array")),
              "bf16 [b, s_q, h_q, 64], divided by the scale.")
      .def(
          "__iter__",
          [](const PyQuery& q) { return nb::iter(nb::make_tuple(q.codes, q.scale, q.rope)); },
          nb::sig("def __iter__(self) -> Iterator[Array]"));

  nb::class_<PlanOptions>(m, "PlanOptions", "How plan_decode() cuts and spreads the work.")
      .def(
          "__init__",
          [](PlanOptions* self, bool batch_invariant, int forced_splits, int split_tokens,
             int num_sms, int p_block) {
            new (self) PlanOptions{batch_invariant, forced_splits, split_tokens, num_sms, p_block};
          },
          nb::kw_only(), "batch_invariant"_a = false, "forced_splits"_a = 0, "split_tokens"_a = 0,
          "num_sms"_a = 0, "p_block"_a = 0)
      .def_rw(
          "batch_invariant", &PlanOptions::batch_invariant,
          "A row's result is then bitwise the same whatever the batch mates, page order and s_q.")
      .def_rw("forced_splits", &PlanOptions::forced_splits,
              "> 0: every sequence is cut into this many parts.")
      .def_rw("split_tokens", &PlanOptions::split_tokens,
              "> 0: every sequence is cut each so many tokens; a multiple of 128.")
      .def_rw("num_sms", &PlanOptions::num_sms,
              "Workers to spread the work over; 0 = the device's SMs (CUDA) or threads (CPU).")
      .def_rw("p_block", &PlanOptions::p_block,
              "Tokens per P quantization block: 64, 128 (CPU backends only), 0 = the backend's "
              "choice.");

  nb::class_<PyPlan>(m, "DecodePlan", R"(Planned work of one decode step, for all its layers.

Wherever one is taken, a tuple (schedule, num_splits) is too.)")
      .def(
          "__init__",
          [](PyPlan* self, nb::handle schedule, nb::handle num_splits) {
            new (self) PyPlan(make_plan(schedule, num_splits, Access::read));
          },
          "schedule"_a.none(), "num_splits"_a.none(),
          nb::sig("def __init__(self, schedule: Array, num_splits: Array) -> None"),
          R"(schedule: int32 [schedule_rows, schedule_cols] of plan_size().   num_splits: int32 [b + 1].)")
      .def_ro("schedule", &PyPlan::schedule, nb::for_getter(nb::sig("def schedule(self) -> Array")),
              "int32 [schedule_rows, schedule_cols]; the shape depends on rows and num_sms only.")
      .def_ro("num_splits", &PyPlan::num_splits,
              nb::for_getter(nb::sig("def num_splits(self) -> Array")), "int32 [b + 1].")
      .def_ro("workspace_bytes", &PyPlan::workspace_bytes,
              "Bytes of workspace that decode() needs for it; None for a plan built from arrays.");

  nb::class_<PlanSize>(m, "PlanSize", "Shapes of a plan's tensors.")
      .def_ro("schedule_rows", &PlanSize::schedule_rows)
      .def_ro("schedule_cols", &PlanSize::schedule_cols)
      .def_ro("num_splits", &PlanSize::num_splits, "b + 1")
      .def("__repr__", [](const PlanSize& s) {
        return "PlanSize(schedule_rows=" + std::to_string(s.schedule_rows) +
               ", schedule_cols=" + std::to_string(s.schedule_cols) +
               ", num_splits=" + std::to_string(s.num_splits) + ")";
      });

  using Numerics = NumericsOptions;
  nb::class_<Numerics>(
      m, "NumericsOptions",
      "How the `cpu` backend computes; other backends refuse anything but the default.")
      .def(
          "__init__",
          [](Numerics* self, const std::string& form, const std::string& accumulate,
             int qk_accumulators, bool normalize_by_quantized_p) {
            new (self)
                Numerics{choose<Numerics::Form>(form, "form",
                                                {{"log_domain", Numerics::Form::log_domain},
                                                 {"chained", Numerics::Form::chained}}),
                         choose<Numerics::Accumulate>(accumulate, "accumulate",
                                                      {{"exact", Numerics::Accumulate::exact},
                                                       {"hopper", Numerics::Accumulate::hopper}}),
                         qk_accumulators, normalize_by_quantized_p};
          },
          nb::kw_only(), "form"_a = "log_domain", "accumulate"_a = "exact", "qk_accumulators"_a = 1,
          "normalize_by_quantized_p"_a = false,
          nb::sig(
              "def __init__(self, *, form: Literal[\"log_domain\", \"chained\"] = \"log_domain\", "
              "accumulate: Literal[\"exact\", \"hopper\"] = \"exact\", qk_accumulators: int = 1, "
              "normalize_by_quantized_p: bool = False) -> None"),
          R"(form: log_domain, or chained, the SnapMLA paper's Algorithm 1.
accumulate: exact fp32, or hopper, an emulation of the e4m3 tensor core.
qk_accumulators: with hopper, partial accumulators for QK: 1, 2 or 4.
normalize_by_quantized_p: divide by the sum of quantized P.)");
}

}  // namespace snapmla::python
