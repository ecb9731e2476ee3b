"""Models: how many elements the gradients of two well-known networks have, tensor by tensor, computed from their
architectures."""


def resnet50():
    """ "Deep Residual Learning for Image Recognition", 50 layers, 1000 classes: 161 tensors, 25.6 million elements."""

    def convolution(inputs, outputs, kernel):
        return [inputs * outputs * kernel * kernel, outputs, outputs]  # and its normalization

    counts = convolution(3, 64, 7)
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            counts += convolution(channels, width, 1) + convolution(width, width, 3) + convolution(width, 4 * width, 1)
            if block == 0:
                counts += convolution(channels, 4 * width, 1)
            channels = 4 * width
    return counts + [channels * 1000, 1000]


def bert_base():
    """ "BERT: Pre-training of Deep Bidirectional Transformers", base, uncased: 199 tensors, 109.5 million elements."""
    width, inner = 768, 3072

    def linear(inputs, outputs):
        return [inputs * outputs, outputs]

    normalization = [width, width]
    embeddings = [30522 * width, 512 * width, 2 * width] + normalization
    attention = 4 * linear(width, width) + normalization
    layer = attention + linear(width, inner) + linear(inner, width) + normalization
    return embeddings + 12 * layer + linear(width, width)


assert (len(resnet50()), sum(resnet50())) == (161, 25_557_032)
assert (len(bert_base()), sum(bert_base())) == (199, 109_482_240)
