// snapmla._core: the public C++ API for Python, without a dependency on any array library.

#include "types.h"

namespace nb = nanobind;

NB_MODULE(_core, m) {
  m.doc() = "FP8 decode attention for Multi-head Latent Attention; use it as `snapmla`.";

  nb::exception<snapmla::InvalidArgument>(m, "InvalidArgument", PyExc_ValueError).doc() =
      "An argument breaks a rule; the message reads \"argument: expected rule, got value\".";
  nb::exception<snapmla::Unsupported>(m, "Unsupported", PyExc_NotImplementedError).doc() =
      "A well-formed request that the backend or this machine can't serve, with the reason.";
  nb::exception<snapmla::DeviceError>(m, "DeviceError", PyExc_RuntimeError).doc() =
      "A CUDA call or launch failed.";

  m.attr("__version__") = snapmla::version();
  m.attr("CACHE_FORMAT_NAME") = snapmla::kCacheFormatName;
  m.attr("CACHE_FORMAT_VERSION") = snapmla::kCacheFormatVersion;
  m.attr("PAGE_TOKENS") = snapmla::kPageTokens;
  m.attr("KV_LORA_RANK") = snapmla::kKvLoraRank;
  m.attr("ROPE_DIM") = snapmla::kRopeDim;
  m.attr("QK_DIM") = snapmla::kQkDim;
  m.attr("TOKEN_BYTES") = snapmla::kTokenBytes;
  m.attr("PACKED_CONTENT_OFFSET") = snapmla::kPackedContentOffset;
  m.attr("PACKED_ROPE_OFFSET") = snapmla::kPackedRopeOffset;
  m.attr("PACKED_SCALE_OFFSET") = snapmla::kPackedScaleOffset;
  m.attr("PACKED_PAGE_BYTES") = snapmla::kPackedPageBytes;
  m.attr("PLAN_BLOCK_TOKENS") = snapmla::kPlanBlockTokens;

  snapmla::python::bind_types(m);
  snapmla::python::bind_backends(m);
  snapmla::python::bind_operations(m);
}
