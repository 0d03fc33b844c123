"""Matrices of few bits for make_checkpoint.py: random values in the layouts that GPTQ and AWQ checkpoints
are published in, and the float matrix that they stand for. See common/model/quantization.h.

Values, zero points and scales come from the same hash as all others, and are drawn so that the matrix
has the standard deviation that its float version would have.
"""

import numpy as np

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # which row each nibble of a word is, from the lowest


class Quantization:
    def __init__(self, method, bits, group_size, symmetric, reordered, version, scale_dtype, float_modules):
        self.method, self.bits, self.group_size = method, bits, group_size
        self.symmetric, self.reordered, self.version = symmetric, reordered, version
        self.scale_dtype, self.float_modules = scale_dtype, float_modules

    def has(self, name):
        return name.endswith(("_proj.weight", "_proj_with_mqa.weight")) and not any(part in name for part in self.float_modules)

    def config(self):
        """quantization_config as AutoGPTQ and AutoAWQ write it."""
        if self.method == "mxfp4":
            return {"quant_method": "mxfp4", "modules_to_not_convert": [
                "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}
        if self.method == "awq":
            return {"quant_method": "awq", "bits": self.bits, "group_size": self.group_size,
                    "zero_point": True, "version": "gemm", "backend": "autoawq",
                    "modules_to_not_convert": list(self.float_modules) or None}
        config = {"quant_method": "gptq", "bits": self.bits, "group_size": self.group_size,
                  "sym": self.symmetric, "desc_act": self.reordered, "damp_percent": 0.01,
                  "static_groups": False, "true_sequential": True}
        if self.version == 2:
            config["checkpoint_format"] = "gptq_v2"
        return config

    def matrix(self, name, shape, deviation, uniform):
        """q, zero and scale of W [rows, cols] = (q - zero) * scale: [rows, cols], [rows, groups] twice; and
        the group of each column. uniform(name, count): float32 of variance 1 within sqrt 3."""
        rows, cols = shape
        size = cols if self.group_size < 0 else self.group_size
        groups = -(-cols // size)
        top = 1 << self.bits

        def whole(suffix, count, limit):
            # From (-sqrt 3, sqrt 3) to 0 .. limit - 1.
            unit = uniform(name + suffix, count).astype(np.float64) / (2 * 3 ** 0.5) + 0.5
            return np.minimum((unit * limit).astype(np.int64), limit - 1)

        q = whole(".q", rows * cols, top).reshape(rows, cols)
        zero = np.full((rows, groups), top // 2)
        if not self.symmetric:
            zero += whole(".z", rows * groups, top // 4 + 1).reshape(rows, groups) - top // 8
        scale = 1 + 0.15 * uniform(name + ".s", rows * groups).reshape(rows, groups)
        scale = scale * np.float32(deviation * 12 ** 0.5 / top)
        group_of = np.arange(cols) // size
        if self.reordered:
            # As activation order leaves them: the groups' sizes are those of columns in order. Modules that
            # see one input have one order.
            module = name.replace("k_proj", "q_proj").replace("v_proj", "q_proj").replace("up_proj", "gate_proj")
            group_of = group_of[np.argsort(uniform(module + ".o", cols), kind="stable")]
        return q, zero, scale.astype(np.float32), group_of


FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def mxfp4(name, shape, deviation, uniform):
    """Bytes of two codes, the even column's low; exponents of 32 columns each, plus 127; and the values."""
    def whole(suffix, count, limit):
        unit = uniform(name + suffix, count).astype(np.float64) / (2 * 3 ** 0.5) + 0.5
        return np.minimum((unit * limit).astype(np.int64), limit - 1)

    count = int(np.prod(shape))
    codes = whole(".q", count, 16).reshape(*shape[:-1], shape[-1] // 32, 32)
    middle = 127 + round(float(np.log2(deviation / np.sqrt(np.mean(FP4 ** 2)))))
    exponents = (middle - 1 + whole(".s", count // 32, 3)).reshape(codes.shape[:-1])
    values = FP4[codes] * np.exp2(exponents - 127).astype(np.float32)[..., None]
    packed = (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8)
    return packed, exponents.astype(np.uint8), values.reshape(shape)


def pack(values, bits):
    """Along the last axis: int32 words, the first value lowest."""
    per_word = 32 // bits
    values = values.reshape(*values.shape[:-1], -1, per_word).astype(np.uint32)
    shifts = np.arange(per_word, dtype=np.uint32) * np.uint32(bits)
    return np.bitwise_or.reduce(values << shifts, axis=-1).astype("<u4")


def gptq_tensors(module, quantization, q, zero, group_of):
    bits = quantization.bits
    stored = zero - 1 if quantization.version == 1 else zero
    yield module + "qweight", "I32", pack(q, bits).T
    yield module + "qzeros", "I32", pack(stored.T, bits)
    yield module + "g_idx", "I32", group_of.astype("<i4")


def awq_tensors(module, q, zero):
    def interleaved(values):  # [.., rows] to words of eight rows
        eights = values.reshape(values.shape[0], -1, 8)[:, :, AWQ_ORDER]
        return pack(eights.reshape(values.shape), 4)
    yield module + "qweight", "I32", interleaved(q.T)
    yield module + "qzeros", "I32", interleaved(zero.T)
