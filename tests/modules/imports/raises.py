from torch.autograd import Function

print("reading the configuration")


def configuration():
    return {}["path"]


configuration()


class Double(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 2 * grad
