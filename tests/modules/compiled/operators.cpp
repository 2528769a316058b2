// Three operators: a right one, one with a wrong gradient, one whose Function stands under the CPU key.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <ATen/ATen.h>

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

template <int Factor>
struct Square : public Function<Square<Factor>> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, double scale) {
    ctx->save_for_backward({x});
    ctx->saved_data["scale"] = scale;
    return x * x * scale;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grad_outputs) {
    auto x = ctx->get_saved_variables()[0];
    auto scale = ctx->saved_data["scale"].toDouble();
    return {grad_outputs[0] * x * (Factor * scale), at::Tensor()};
  }
};

template <int Factor>
at::Tensor square(const at::Tensor& x, double scale) {
  return Square<Factor>::apply(x, scale);
}

at::Tensor plain(const at::Tensor& x, double scale) { return x * x * scale; }

TORCH_LIBRARY(gradverify_compiled, library) {
  library.def("right(Tensor x, float scale=1.0) -> Tensor");
  library.def("wrong(Tensor x, float scale=1.0) -> Tensor");
  library.def("misplaced(Tensor x, float scale=1.0) -> Tensor");
  library.def("composite(Tensor x) -> Tensor", [](const at::Tensor& x) { return x * x; });
}

TORCH_LIBRARY_IMPL(gradverify_compiled, CPU, library) {
  library.impl("right", plain);
  library.impl("wrong", plain);
  library.impl("misplaced", square<2>);
}

TORCH_LIBRARY_IMPL(gradverify_compiled, Autograd, library) {
  library.impl("right", square<2>);
  library.impl("wrong", square<1>);
}
