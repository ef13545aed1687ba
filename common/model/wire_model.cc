#include "common/model/wire_model.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace weir {

v1::Model ToProto(const ModelSpec& model) {
  v1::Model out;
  for (const TensorSpec& t : model.tensors) {
    v1::Tensor* p = out.add_tensors();
    p->set_name(t.name);
    p->mutable_shape()->Add(t.shape.begin(), t.shape.end());
    p->set_kind(static_cast<v1::Tensor::Kind>(t.kind));
    p->set_init(static_cast<v1::Tensor::Initializer>(t.init.kind));
    p->set_init_value(t.init.value);
    p->mutable_aliases()->Assign(t.aliases.begin(), t.aliases.end());
  }
  return out;
}

absl::StatusOr<ModelSpec> FromProto(const v1::Model& model) {
  ModelSpec out;
  for (const v1::Tensor& p : model.tensors()) {
    if (!v1::Tensor::Kind_IsValid(p.kind()) || !v1::Tensor::Initializer_IsValid(p.init())) {
      return absl::InvalidArgumentError(absl::StrCat("tensor '", p.name(), "': kind ", p.kind(),
                                                     " or initializer ", p.init(), " is unknown here"));
    }
    out.tensors.push_back({p.name(),
                           {p.shape().begin(), p.shape().end()},
                           static_cast<TensorKind>(p.kind()),
                           {static_cast<Initializer::Kind>(p.init()), p.init_value()},
                           {p.aliases().begin(), p.aliases().end()}});
  }
  WEIR_RETURN_IF_ERROR(out.Validate());
  return out;
}

}  // namespace weir
