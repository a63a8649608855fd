#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "types.h"

namespace snapmla::python {

using namespace nb::literals;

namespace {

CacheForm to_form(const std::string& name) {
  if (name == "planes") return CacheForm::planes;
  if (name == "packed") return CacheForm::packed;
  throw InvalidArgument("form", "\"planes\" or \"packed\"", '"' + name + '"');
}

nb::dict layout_dict(const std::string& form) {
  const LayoutDescription layout = describe_layout(to_form(form));
  nb::list planes;
  for (const PlaneLayout& plane : layout.planes) {
    nb::dict entry;
    entry["name"] = plane.name;
    entry["dtype"] = dtype_name(plane.dtype);
    entry["elements_per_token"] = plane.elements_per_token;
    entry["offset"] = plane.offset;
    entry["token_stride"] = plane.token_stride;
    entry["page_bytes"] = plane.page_bytes;
    planes.append(entry);
  }
  nb::dict result;
  result["name"] = layout.name;
  result["version"] = layout.version;
  result["form"] = cache_form_name(layout.form);
  result["page_tokens"] = layout.page_tokens;
  result["token_bytes"] = layout.token_bytes;
  result["page_bytes"] = layout.page_bytes;
  result["planes"] = planes;
  return result;
}

}  // namespace

void bind_backends(nb::module_& m) {
  nb::class_<BackendInfo>(m, "BackendInfo", "A backend as this machine sees it.")
      .def_ro("name", &BackendInfo::name, "What force_backend() takes.")
      .def_ro("description", &BackendInfo::description)
      .def_prop_ro(
          "device",
          [](const BackendInfo& b) { return b.device == DeviceType::cpu ? "cpu" : "cuda"; },
          "Where the tensors are that it works on: \"cpu\" or \"cuda\".")
      .def_ro("available", &BackendInfo::available)
      .def_ro("reason", &BackendInfo::reason,
              "The device found, or why it can't be used here and what to use instead.")
      .def("__repr__", [](const BackendInfo& b) {
        return "<snapmla.BackendInfo " + b.name + ": " +
               (b.available ? b.description : "not usable: " + b.reason) + ">";
      });
  m.def("list_backends", &list_backends,
        "All backends of this build, in the order in which automatic selection asks them.");
  m.def(
      "find_backend", [](const std::string& name) { return find_backend(name); }, "name"_a,
      "The backend of that name; InvalidArgument lists the known names otherwise.");
  m.def(
      "force_backend", [](const std::string& name) { force_backend(name); }, "name"_a,
      R"(Makes every following call of this process use one backend; "" returns to automatic selection.

A call that the forced backend can't serve raises; nothing falls back.)");
  m.def("forced_backend", &forced_backend, "The forced backend's name, or \"\".");
  m.def(
      "describe_layout", &layout_dict, "form"_a,
      nb::sig("def describe_layout(form: Literal[\"planes\", \"packed\"]) -> dict[str, Any]"),
      R"(What another program needs to read or move pages: name, version, form, page_tokens, token_bytes,
page_bytes, and for each plane its name, dtype, elements_per_token, offset, token_stride and page_bytes
(bytes). Depends on the form alone, never on a shape.)");

  nb::class_<DecodeProblem>(m, "DecodeProblem", "A decode call described by its sizes.")
      .def(
          "__init__",
          [](DecodeProblem* self, std::int64_t h_q, std::int64_t b, std::int64_t s_q,
             std::int64_t max_seqlen, const std::string& form, const std::string& out_dtype,
             nb::handle device, const PlanOptions* plan, const NumericsOptions* numerics) {
            DecodeProblem problem;
            problem.b = b;
            problem.s_q = s_q;
            problem.h_q = h_q;
            problem.max_seqlen = max_seqlen;
            problem.form = to_form(form);
            problem.out_dtype = to_float_dtype(out_dtype, "out_dtype");
            problem.device = to_device(device);
            if (plan) problem.plan = *plan;
            if (numerics) problem.numerics = *numerics;
            new (self) DecodeProblem(problem);
          },
          nb::kw_only(), "h_q"_a, "b"_a = 1, "s_q"_a = 1, "max_seqlen"_a = 0, "form"_a = "planes",
          "out_dtype"_a = "bf16", "device"_a = "cpu", "plan"_a = nb::none(),
          "numerics"_a = nb::none(),
          nb::sig("def __init__(self, *, h_q: int, b: int = 1, s_q: int = 1, max_seqlen: int = 0, "
                  "form: Literal[\"planes\", \"packed\"] = \"planes\", out_dtype: Literal[\"f32\", "
                  "\"bf16\"] = \"bf16\", device: Any = \"cpu\", plan: PlanOptions | None = None, "
                  "numerics: NumericsOptions | None = None) -> None"));
  nb::class_<Support>(m, "Support", "Whether a problem can run, and why not.")
      .def_ro("ok", &Support::ok)
      .def_ro("reason", &Support::reason, "Empty when ok.")
      .def("__bool__", [](const Support& s) { return s.ok; })
      .def("__repr__", [](const Support& s) {
        return s.ok ? std::string("Support(ok=True)")
                    : "Support(ok=False, reason='" + s.reason + "')";
      });
  m.def(
      "supports",
      [](const DecodeProblem& problem, const char* backend) {
        return backend ? supports(problem, backend) : supports(problem);
      },
      "problem"_a, "backend"_a.none() = nb::none(),
      "Whether `backend`, or the one that a call would use, can run the problem on this machine.");

  nb::class_<Explanation>(m, "Explanation",
                          "What a decode call would do. Times are estimates, not measurements.")
      .def_ro("backend", &Explanation::backend)
      .def_ro("kernel", &Explanation::kernel, "The code path within the backend.")
      .def_ro("passed_over", &Explanation::passed_over,
              "\"name: reason\" of backends asked before.")
      .def_ro("row_tiles", &Explanation::row_tiles, "64-row tiles per request.")
      .def_ro("workers", &Explanation::workers)
      .def_ro("p_block", &Explanation::p_block)
      .def_ro("splits", &Explanation::splits,
              "Parts of the longest sequence when all are that long.")
      .def_ro("workspace_bytes", &Explanation::workspace_bytes)
      .def_ro("cache_bytes", &Explanation::cache_bytes, "Cache bytes, read once.")
      .def_ro("flops", &Explanation::flops, "2 * rows * tokens * (576 + 512).")
      .def_ro("bound", &Explanation::bound, "\"memory\", \"compute\" or \"latency\".")
      .def_ro("estimated_us", &Explanation::estimated_us)
      .def_ro("basis", &Explanation::basis, "The limits behind the estimate.");
  m.def("explain", &explain, "problem"_a,
        "The backend, splits, workspace and expected time of a call.");
}

}  // namespace snapmla::python
