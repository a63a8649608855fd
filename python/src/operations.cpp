#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "types.h"

namespace snapmla::python {

using namespace nb::literals;

namespace {

/// Runs an operation. CPU operations work until they return, so other Python threads may run
/// meanwhile; CUDA operations only enqueue, and giving the lock away could cost them milliseconds.
template <class Operation>
void run(Device device, Operation&& operation) {
  if (device.type == DeviceType::cpu) {
    nb::gil_scoped_release release;
    operation();
  } else {
    operation();
  }
}

ScaleMode to_scale_mode(const std::string& name) {
  if (name == "exact") return ScaleMode::exact;
  if (name == "power_of_two") return ScaleMode::power_of_two;
  throw InvalidArgument("scale_mode", "\"exact\" or \"power_of_two\"", '"' + name + '"');
}

void check_rank(const Array& array, int rank, const char* argument, const char* shape) {
  if (array.view.rank != rank) {
    throw InvalidArgument(argument, std::string("shape ") + shape, to_string(array.view));
  }
}

/// Content and RoPE in one array, or in two if there is a second.
struct PyContentRope {
  Array first, second;
  ContentRope both;

  PyContentRope(nb::handle content, nb::handle rope, const char* joined_name, const char* rope_name,
                Access access)
      : first(to_array(content, joined_name, access)),
        second(to_optional_array(rope, rope_name, access)),
        both(second.view.defined() ? ContentRope(first.view, second.view)
                                   : ContentRope(first.view)) {}
};

nb::object quantize_query_(nb::handle q, nb::handle q_rope, nb::handle out,
                           const std::string& scale_mode, nb::handle stream) {
  const PyContentRope input(q, q_rope, q_rope.is_none() ? "q" : "q_nope", "q_rope", Access::read);
  const Device device = input.first.view.device;
  const QuantizeOptions options{to_scale_mode(scale_mode)};
  const Stream on = to_stream(stream, device, input.first.api);
  nb::object result = nb::borrow(out);
  if (out.is_none()) {
    check_rank(input.first, 4, "q", "[b, s_q, h_q, 576] (or 512 with q_rope)");
    const auto& shape = input.first.view.shape;
    const std::vector<std::int64_t> lead = {shape[0], shape[1], shape[2]};
    const auto with = [&](std::int64_t last) {
      std::vector<std::int64_t> dims = lead;
      dims.push_back(last);
      return dims;
    };
    result =
        nb::make_tuple(new_array(q, with(kKvLoraRank), DType::e4m3), new_array(q, lead, DType::f32),
                       new_array(q, with(kRopeDim), DType::bf16));
  }
  PyQuery storage;
  const PyQuery& query = to_query(result, storage, "out", Access::write);
  run(device, [&] { quantize_query(input.both, query.query, options, on); });
  return nb::isinstance<PyQuery>(result) ? result : nb::cast(query);
}

void append_kv_(nb::handle cache, nb::handle kv, nb::handle slots, nb::handle k_rope,
                const std::string& scale_mode, std::optional<std::int64_t> pad_slot,
                nb::handle status, nb::handle stream) {
  PyCache storage;
  const PyCache& to = to_cache(cache, storage, Access::write);
  const PyContentRope tokens(kv, k_rope, k_rope.is_none() ? "kv" : "content", "rope", Access::read);
  const Array at = to_array(slots, "slots");
  const Array counter = to_optional_array(status, "status", Access::write);
  const Device device = to.arrays[0].view.device;
  const Stream on = to_stream(stream, device, to.arrays[0].api);
  const AppendOptions options{to_scale_mode(scale_mode), pad_slot, counter.view};
  run(device, [&] { append_kv(to.cache, tokens.both, at.view, options, on); });
}

/// `out` as an array of 576 wide rows or a pair (content, rope).
PyContentRope to_output(nb::handle out) {
  const bool pair = PyTuple_Check(out.ptr()) || PyList_Check(out.ptr());
  if (!pair) return {out, nb::none(), "out", "out.rope", Access::write};
  if (nb::len(out) != 2) {
    throw InvalidArgument("out", "an array, or two (content, rope)",
                          std::to_string(nb::len(out)) + " of them");
  }
  return {out[0], out[1], "out.content", "out.rope", Access::write};
}

nb::object fetch_dequant_(nb::handle cache, nb::handle slots, nb::handle out,
                          const std::string& dtype, nb::handle status, nb::handle stream) {
  PyCache storage;
  const PyCache& from = to_cache(cache, storage, Access::read);
  const Array at = to_array(slots, "slots");
  const DType element = to_float_dtype(dtype, "dtype");
  nb::object result = nb::borrow(out);
  if (out.is_none()) {
    check_rank(at, 1, "slots", "[n]");
    result = new_array(from.objects[0], {at.view.shape[0], kQkDim}, element);
  }
  const PyContentRope to = to_output(result);
  const Array counter = to_optional_array(status, "status", Access::write);
  const Device device = from.arrays[0].view.device;
  const Stream on = to_stream(stream, device, from.arrays[0].api);
  run(device, [&] { fetch_dequant(from.cache, at.view, to.both, counter.view, on); });
  return result;
}

void fetch_dequant_ranges_(nb::handle cache, nb::handle block_table, nb::handle starts,
                           nb::handle lengths, nb::handle offsets, nb::handle out,
                           nb::handle status, nb::handle stream) {
  PyCache storage;
  const PyCache& from = to_cache(cache, storage, Access::read);
  const Array table = to_array(block_table, "block_table");
  const Array first = to_array(starts, "starts");
  const Array count = to_array(lengths, "lengths");
  const Array row = to_array(offsets, "offsets");
  const PyContentRope to = to_output(out);
  const Array counter = to_optional_array(status, "status", Access::write);
  const Device device = from.arrays[0].view.device;
  const Stream on = to_stream(stream, device, from.arrays[0].api);
  const TokenRanges ranges{table.view, first.view, count.view, row.view};
  run(device, [&] { fetch_dequant(from.cache, ranges, to.both, counter.view, on); });
}

void copy_tokens_(nb::handle cache, nb::handle src, nb::handle dst, nb::handle status,
                  nb::handle stream) {
  PyCache storage;
  const PyCache& in = to_cache(cache, storage, Access::write);
  const Array from = to_array(src, "src");
  const Array to = to_array(dst, "dst");
  const Array counter = to_optional_array(status, "status", Access::write);
  const Device device = in.arrays[0].view.device;
  const Stream on = to_stream(stream, device, in.arrays[0].api);
  run(device, [&] { copy_tokens(in.cache, from.view, to.view, counter.view, on); });
}

PlanSpec make_spec(std::int64_t b, std::int64_t rows, std::int64_t max_seqlen, Device device) {
  PlanSpec spec;
  spec.b = b;
  spec.rows = rows;
  spec.max_seqlen = max_seqlen;
  spec.device = device;
  return spec;
}

nb::object plan_decode_(nb::handle cache_seqlens, std::int64_t rows, std::int64_t max_seqlen,
                        const PlanOptions* options, nb::handle out, nb::handle stream) {
  const Array seqlens = to_array(cache_seqlens, "cache_seqlens");
  check_rank(seqlens, 1, "cache_seqlens", "[b]");
  const Device device = seqlens.view.device;
  const PlanSpec spec = make_spec(seqlens.view.shape[0], rows, max_seqlen, device);
  const PlanOptions with = options ? *options : PlanOptions{};
  const std::int64_t workspace = workspace_bytes(spec, with);
  nb::object made = nb::borrow(out);
  if (out.is_none()) {
    const PlanSize size = plan_size(spec, with);
    made = nb::make_tuple(
        new_array(cache_seqlens, {size.schedule_rows, size.schedule_cols}, DType::i32),
        new_array(cache_seqlens, {size.num_splits}, DType::i32));
  }
  PyPlan storage;
  const PyPlan& plan = to_plan(made, storage, Access::write);
  const Stream on = to_stream(stream, device, seqlens.api);
  run(device, [&] { plan_decode(seqlens.view, spec, with, plan.plan, on); });
  PyPlan* own = nullptr;
  if (!nb::try_cast(made, own)) {
    made = nb::cast(plan);
    own = nb::cast<PyPlan*>(made);
  }
  own->workspace_bytes = workspace;
  return made;
}

nb::object decode_(nb::handle plan, nb::handle query, nb::handle cache, nb::handle block_table,
                   nb::handle cache_seqlens, double softmax_scale, bool causal, nb::handle out,
                   nb::handle lse, nb::handle workspace, const std::string& out_dtype,
                   nb::handle status, const NumericsOptions* numerics, nb::handle stream) {
  PyPlan plan_storage;
  PyQuery query_storage;
  PyCache cache_storage;
  const PyPlan& planned = to_plan(plan, plan_storage, Access::read);
  const PyQuery& q = to_query(query, query_storage, "query", Access::read);
  const PyCache& from = to_cache(cache, cache_storage, Access::read);
  const Array table = to_array(block_table, "block_table");
  const Array seqlens = to_array(cache_seqlens, "cache_seqlens");
  const Array counter = to_optional_array(status, "status", Access::write);
  const Device device = from.arrays[0].view.device;
  const Stream on = to_stream(stream, device, from.arrays[0].api);

  const auto& shape = q.arrays[0].view.shape;
  nb::object out_object = nb::borrow(out), lse_object = nb::borrow(lse),
             workspace_object = nb::borrow(workspace);
  const bool no_lse = lse.ptr() == Py_False;
  if (no_lse) lse_object = nb::none();
  if (out.is_none() || (lse.is_none() && !no_lse) || workspace.is_none()) {
    check_rank(q.arrays[0], 4, "query.codes", "[b, s_q, h_q, 512]");
    if (out.is_none()) {
      out_object = new_array(q.codes, {shape[0], shape[1], shape[2], kKvLoraRank},
                             to_float_dtype(out_dtype, "out_dtype"));
    }
    if (lse.is_none() && !no_lse) {
      lse_object = new_array(q.codes, {shape[0], shape[2], shape[1]}, DType::f32);
    }
    if (workspace.is_none()) {
      const std::int64_t bytes =
          planned.workspace_bytes
              ? *planned.workspace_bytes
              : workspace_bytes(make_spec(shape[0], shape[1] * shape[2], 0, device), {});
      workspace_object = new_array(q.codes, {bytes}, DType::u8);
    }
  }
  const Array to = to_array(out_object, "out", Access::write);
  const Array to_lse = to_optional_array(lse_object, "lse", Access::write);
  const Array scratch = to_array(workspace_object, "workspace", Access::write);
  DecodeOptions options;
  if (numerics) options.numerics = *numerics;
  options.status = counter.view;
  run(device, [&] {
    decode(planned.plan, q.query, from.cache, table.view, seqlens.view,
           static_cast<float>(softmax_scale), causal, to.view, to_lse.view, scratch.view, on,
           options);
  });
  return nb::make_tuple(out_object, lse_object);
}

nb::object merge_states_(nb::handle outs, nb::handle lses, nb::handle out, nb::handle lse,
                         const std::string& out_dtype, nb::handle stream) {
  const Array parts = to_array(outs, "outs");
  const Array part_lses = to_array(lses, "lses");
  const Device device = parts.view.device;
  const Stream on = to_stream(stream, device, parts.api);
  nb::object out_object = nb::borrow(out), lse_object = nb::borrow(lse);
  if (out.is_none() || lse.is_none()) {
    check_rank(parts, 5, "outs", "[n, b, s_q, h_q, 512]");
    const auto& shape = parts.view.shape;
    if (out.is_none()) {
      out_object = new_array(outs, {shape[1], shape[2], shape[3], kKvLoraRank},
                             to_float_dtype(out_dtype, "out_dtype"));
    }
    if (lse.is_none()) {
      lse_object = new_array(outs, {shape[1], shape[3], shape[2]}, DType::f32);
    }
  }
  const Array to = to_array(out_object, "out", Access::write);
  const Array to_lse = to_array(lse_object, "lse", Access::write);
  run(device, [&] { merge_states(parts.view, part_lses.view, to.view, to_lse.view, on); });
  return nb::make_tuple(out_object, lse_object);
}

}  // namespace

void bind_operations(nb::module_& m) {
  m.def(
      "quantize_query", &quantize_query_, "q"_a.none(), "q_rope"_a = nb::none(), nb::kw_only(),
      "out"_a = nb::none(), "scale_mode"_a = "exact", "stream"_a = nb::none(),
      nb::sig("def quantize_query(q: Array, q_rope: Array | None = None, *, out: QuantizedQuery | "
              "tuple[Array, Array, Array] | None = None, scale_mode: ScaleMode = \"exact\", "
              "stream: Stream = None) -> QuantizedQuery"),
      R"(Quantizes absorbed queries, one scale per (token, head): codes e4m3 [b, s_q, h_q, 512], scale
float32 [b, s_q, h_q], rope bf16 [b, s_q, h_q, 64] divided by the scale.

q: bf16 or float32 [b, s_q, h_q, 576], or q_nope [b, s_q, h_q, 512] with q_rope [b, s_q, h_q, 64];
leading dimensions may have any strides.
out: arrays to write to; made if None.
stream: a CUDA stream; None is the current stream of the array's library.
Raises InvalidArgument (a ValueError) naming argument, rule and value.)");
  m.def(
      "append_kv", &append_kv_, "cache"_a.none(), "kv"_a.none(), "slots"_a.none(), nb::kw_only(),
      "k_rope"_a = nb::none(), "scale_mode"_a = "exact", "pad_slot"_a = nb::none(),
      "status"_a = nb::none(), "stream"_a = nb::none(),
      nb::sig("def append_kv(cache: CacheLike, kv: Array, slots: Array, *, k_rope: Array | None = "
              "None, scale_mode: ScaleMode = \"exact\", pad_slot: int | None = None, status: Array "
              "| None = None, stream: Stream = None) -> None"),
      R"(Quantizes tokens and writes them to their slots.

kv: bf16 or float32 [T, 576], or content [T, 512] with k_rope [T, 64]; T may be 0.
slots: int32 or int64 [T], slot = page * 64 + offset; -1 and pad_slot are skipped.
status: int32 [1], incremented for every other slot outside the cache; such tokens are not written.
If one slot occurs twice, which of its tokens remains is unspecified.)");
  m.def("fetch_dequant", &fetch_dequant_, "cache"_a.none(), "slots"_a.none(), nb::kw_only(),
        "out"_a = nb::none(), "dtype"_a = "f32", "status"_a = nb::none(), "stream"_a = nb::none(),
        nb::sig("def fetch_dequant(cache: CacheLike, slots: Array, *, out: Array | tuple[Array, "
                "Array] | None = None, dtype: FloatDType = \"f32\", status: Array | None = None, "
                "stream: Stream = None) -> Any"),
        R"(Reads tokens back as real values (stored times scale), and returns `out`.

slots: int32 or int64 [n].   out: bf16 or float32 [n, 576], or a pair (content [n, 512], rope
[n, 64]); None makes one [n, 576] array of `dtype`. A slot outside the cache (-1 too) gives zeros and
is counted in status, int32 [1].)");
  m.def(
      "fetch_dequant_ranges", &fetch_dequant_ranges_, "cache"_a.none(), "block_table"_a.none(),
      "starts"_a.none(), "lengths"_a.none(), "offsets"_a.none(), "out"_a.none(), nb::kw_only(),
      "status"_a = nb::none(), "stream"_a = nb::none(),
      nb::sig("def fetch_dequant_ranges(cache: CacheLike, block_table: Array, starts: Array, "
              "lengths: Array, offsets: Array, out: Array | tuple[Array, Array], *, status: Array "
              "| None = None, stream: Stream = None) -> None"),
      R"(fetch_dequant by ranges: request r's tokens at positions [starts[r], starts[r] + lengths[r]) of its
row of block_table go to rows from offsets[r] of `out`.

block_table: int32 [b, max_blocks].   starts, lengths, offsets: int32 [b].   out: as fetch_dequant's.
Rows outside `out` are not written; positions without a page give zeros; status (int32 [1]) counts both.)");
  m.def(
      "copy_tokens", &copy_tokens_, "cache"_a.none(), "src"_a.none(), "dst"_a.none(), nb::kw_only(),
      "status"_a = nb::none(), "stream"_a = nb::none(),
      nb::sig("def copy_tokens(cache: CacheLike, src: Array, dst: Array, *, status: Array | None = "
              "None, stream: Stream = None) -> None"),
      R"(Copies tokens, codes and scale untouched, from slot src[i] to slot dst[i].

src, dst: int32 or int64 [n]. A pair with a slot outside the cache is skipped, and counted in status
(int32 [1]) unless one of the two is -1. No slot may be both read and written, or written twice.)");

  m.def(
      "plan_size",
      [](std::int64_t b, std::int64_t rows, std::int64_t max_seqlen, nb::handle device,
         const PlanOptions* options) {
        return plan_size(make_spec(b, rows, max_seqlen, to_device(device)),
                         options ? *options : PlanOptions{});
      },
      nb::kw_only(), "b"_a, "rows"_a, "max_seqlen"_a = 0, "device"_a = "cpu",
      "options"_a = nb::none(),
      nb::sig("def plan_size(*, b: int, rows: int, max_seqlen: int = 0, device: Any = \"cpu\", "
              "options: PlanOptions | None = None) -> PlanSize"),
      R"(Shapes of a plan's tensors: schedule int32 [schedule_rows, schedule_cols], num_splits int32 [b + 1].

The schedule's shape depends on rows = s_q * h_q and num_sms only, never on the batch or the lengths.)");
  m.def(
      "workspace_bytes",
      [](std::int64_t b, std::int64_t rows, std::int64_t max_seqlen, nb::handle device,
         const PlanOptions* options) {
        return workspace_bytes(make_spec(b, rows, max_seqlen, to_device(device)),
                               options ? *options : PlanOptions{});
      },
      nb::kw_only(), "b"_a, "rows"_a, "max_seqlen"_a = 0, "device"_a = "cpu",
      "options"_a = nb::none(),
      nb::sig("def workspace_bytes(*, b: int, rows: int, max_seqlen: int = 0, device: Any = "
              "\"cpu\", options: PlanOptions | None = None) -> int"),
      "Bytes of workspace that decode() needs for a plan of rows = s_q * h_q: enough for every "
      "length.");
  m.def("plan_decode", &plan_decode_, "cache_seqlens"_a.none(), "rows"_a, nb::kw_only(),
        "max_seqlen"_a = 0, "options"_a = nb::none(), "out"_a = nb::none(), "stream"_a = nb::none(),
        nb::sig("def plan_decode(cache_seqlens: Array, rows: int, *, max_seqlen: int = 0, options: "
                "PlanOptions | None = None, out: DecodePlan | tuple[Array, Array] | None = None, "
                "stream: Stream = None) -> DecodePlan"),
        R"(Spreads the work of a batch over the workers, once per step for all layers.

cache_seqlens: int32 [b], on the device of the cache.   rows: s_q * h_q.   max_seqlen: an upper bound of
the lengths, needed only with a split length in tokens.   out: a plan of plan_size()'s shapes to write
to; made if None. A plan stays correct when lengths change afterwards; only the balance suffers. No
host synchronization.)");
  m.def(
      "decode", &decode_, "plan"_a.none(), "query"_a.none(), "cache"_a.none(),
      "block_table"_a.none(), "cache_seqlens"_a.none(), nb::kw_only(), "softmax_scale"_a,
      "causal"_a, "out"_a = nb::none(), "lse"_a = nb::none(), "workspace"_a = nb::none(),
      "out_dtype"_a = "f32", "status"_a = nb::none(), "numerics"_a = nb::none(),
      "stream"_a = nb::none(),
      nb::sig("def decode(plan: PlanLike, query: QueryLike, cache: CacheLike, block_table: Array, "
              "cache_seqlens: Array, *, softmax_scale: float, causal: bool, out: Array | None = "
              "None, lse: Array | Literal[False] | None = None, workspace: Array | None = None, "
              "out_dtype: FloatDType = \"f32\", status: Array | None = None, numerics: "
              "NumericsOptions | None = None, stream: Stream = None) -> tuple[Any, Any]"),
      R"(Decode attention of every query row over its request's cached tokens; returns (out, lse).

    x_j = softmax_scale * (q . k_j), out = softmax(x) V, lse = ln sum exp(x_j), with V = content

plan: from plan_decode with rows = s_q * h_q.   query: from quantize_query.
block_table: int32 [b, max_blocks], any row stride.   cache_seqlens: int32 [b], the s_q new tokens
included.   softmax_scale: 192 ** -0.5 times any YaRN factor for DeepSeek models.
causal: query i sees positions < cache_seqlen - (s_q - 1 - i).
out: bf16 or float32 [b, s_q, h_q, 512]; None makes one of out_dtype.   lse: float32 [b, h_q, s_q],
natural log; None makes one, False leaves it out.   A row without a valid key gets out 0, lse -inf.
workspace: at least plan.workspace_bytes bytes, 16-byte aligned; None makes one.
status: int32 [1], incremented for every block-table entry of a valid position that names no page.
numerics: for the CPU backend.   stream: a CUDA stream; None is the current one of the cache's library.)");
  m.def(
      "merge_states", &merge_states_, "outs"_a.none(), "lses"_a.none(), nb::kw_only(),
      "out"_a = nb::none(), "lse"_a = nb::none(), "out_dtype"_a = "f32", "stream"_a = nb::none(),
      nb::sig("def merge_states(outs: Array, lses: Array, *, out: Array | None = None, lse: Array "
              "| None = None, out_dtype: FloatDType = \"f32\", stream: Stream = None) -> "
              "tuple[Any, Any]"),
      R"(Merges partial attention results over disjoint key sets; returns (out, lse).

    lse = ln sum_i exp(lse_i), out = sum_i exp(lse_i - lse) out_i

outs: bf16 or float32 [n, b, s_q, h_q, 512].   lses: float32 [n, b, h_q, s_q], natural log; -inf (or
+inf) marks an empty part.   out: [b, s_q, h_q, 512].   lse: [b, h_q, s_q].)");
}

}  // namespace snapmla::python
